"""What is asked of tensors before a training step runs: hooks, memory in common, numbers that will be counted to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

from torch.fx import GraphModule

from lamina.artefacts.constants import Unstorable
from lamina.artefacts.graphs import calls_again, written_calls
from lamina.capture.own.reuse.ahead import Ahead, Apart
from lamina.capture.own.training.torch_private import Unhooked

__all__ = ["asked_again", "written_question"]


class _Calls:
    """The calls of a document, which are made into a function when they are first asked for."""

    def __init__(self, text: Mapping[str, Any]) -> None:
        self.text = text
        self._made: Callable[..., Any] | None = None

    def __call__(self, *inputs: Any) -> Any:
        if self._made is None:
            self._made = calls_again(self.text)
        return self._made(*inputs)


def written_question(value: Any) -> list[Any] | None:
    """A value of JSON for what asks something of tensors, None for other objects. Raises ``Unstorable``."""
    if type(value) is Unhooked:
        return ["no hooks"]
    if type(value) is Apart:
        return ["memories apart", value.count]
    return ["ahead", _written(value.calls)] if type(value) is Ahead else None


def _written(calls: Any) -> Mapping[str, Any]:
    if isinstance(calls, _Calls):
        return calls.text
    graph = calls.__self__ if type(calls) is MethodType else None
    if not isinstance(graph, GraphModule):
        raise Unstorable("numbers that are told ahead by no graph")
    return written_calls(graph)


def asked_again(name: list[Any]) -> Any:
    """What asks the same in this process; None for the name of another object."""
    how, *parts = name
    return _READERS[how](*parts) if how in _READERS else None


_READERS: dict[str, Callable[..., Any]] = {
    "no hooks": Unhooked,
    "memories apart": Apart,
    "ahead": lambda text: Ahead(_Calls(text)),
}
