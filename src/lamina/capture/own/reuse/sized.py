"""A step of a driver that runs one graph for the integers that each call finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lamina.capture.own.frame import MOST_KEPT
from lamina.capture.own.writing import Meeting

__all__ = ["Numbers", "Sized", "function_of", "layout"]

Numbers = tuple[int, ...]


class Sized:
    """``run``, a compiled graph with integers as inputs, for those that ``read`` gives of what a call gives it.

    That are as many tensors as ``tensors`` says, then integers. ``read`` gives None for inputs of another graph.
    ``known`` has integers of which is known whether the graph stands for them, ``holds`` says it of others, if somebody
    can. Where it does not, ``Meeting`` sends the call to another version.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        tensors: int,
        read: Callable[..., Numbers | None],
        known: dict[Numbers, bool],
        holds: Callable[[Numbers], bool] | None,
        form: Any = None,
    ) -> None:
        self.run, self.tensors, self.read, self.form = run, tensors, read, form
        self.known, self.holds = known, holds

    def __call__(self, *given: Any) -> Any:
        values = self.read(*given)
        if values is None or not (self.known.get(values) or self._stands_for(values)):
            raise Meeting
        return self.run(*values, *given[: self.tensors])

    def _stands_for(self, values: Numbers) -> bool:
        if values in self.known or self.holds is None:
            return False
        if len(self.known) > MOST_KEPT:
            self.known.clear()
        found = self.known[values] = self.holds(values)
        return found


def function_of(text: str, name: str) -> Callable[..., Any]:
    """The function ``name`` that a text of Python defines."""
    space: dict[str, Any] = {"layout": layout}
    exec(compile(text, "<integers of a call>", "exec"), space)
    found: Callable[..., Any] = space[name]
    return found


def layout(numbers: Sequence[int]) -> tuple[Any, ...]:
    """Sizes, strides and offset of a tensor without the strides that no element's place depends on."""
    rank = len(numbers) // 2
    sizes, strides = numbers[:rank], numbers[rank:-1]
    moves = [size > 1 and 0 not in sizes for size in sizes]
    return (*sizes, *(stride for stride, matters in zip(strides, moves, strict=True) if matters), numbers[-1])
