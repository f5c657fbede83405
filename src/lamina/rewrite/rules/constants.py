"""Tensors that a captured graph computes from numbers alone, such as the mask of causal attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from lamina.base.devices import kind_of
from lamina.base.torch_private import OpOverload
from lamina.ops.aliasing import makes_view
from lamina.ops.calls import FUNCTIONS
from lamina.rewrite.rules.spelling import written
from lamina.rewrite.torch_private import is_alias

__all__ = ["Constants", "distinct"]

_MOST_BYTES = 1 << 27
"""Larger tensors are not computed while compiling: a mask takes a byte an element."""

_REPEATS = frozenset(("expand", "expand_as", "broadcast_to"))
"""Calls whose results take no memory of their own."""


class Constants:
    """The values of a graph's constant nodes, on the CPU, computed when asked for."""

    def __init__(self) -> None:
        self._known: dict[Node, Any] = {}

    def value(self, node: object) -> Tensor | None:
        """The tensor that ``node`` is at every call; None if it depends on an input or is too large."""
        if not isinstance(node, Node):
            return None
        found = self._evaluate(node)
        return found if isinstance(found, Tensor) else None

    def number(self, value: object) -> float | None:
        """``value`` as a plain number, be it one or a constant tensor of one element; None if it is neither."""
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        found = self.value(value)
        return float(found) if found is not None and found.numel() == 1 and not found.is_complex() else None

    def _evaluate(self, node: Node) -> Any:
        if node not in self._known:
            self._known[node] = self._computed(node)
        return self._known[node]

    def _computed(self, node: Node) -> Any:
        value = node.meta.get("example_value")
        if node.op not in ("call_function", "call_method") or not isinstance(value, Tensor):
            return None
        function = FUNCTIONS.get(_called(node))
        sizes = tuple(value.shape)
        if (
            function is None
            or not function.constant
            or _is_written(node)
            or not all(type(n) is int for n in sizes)
            or (value.numel() * value.itemsize > _MOST_BYTES and function.name not in _REPEATS)
        ):
            return None
        if any(self._evaluate(operand) is None for operand in node.all_input_nodes):
            if function.filled is None:
                return None
            return torch.full(sizes, function.filled, dtype=value.dtype, device="cpu")
        args, kwargs = self._arguments(node.args), self._arguments(node.kwargs)
        try:
            with torch.device("cpu"), torch.no_grad():
                run = getattr(args[0], function.name) if node.op == "call_method" else node.target
                return run(*(args[1:] if node.op == "call_method" else args), **kwargs)  # type: ignore[operator]
        except (
            RuntimeError,
            TypeError,
            ValueError,
            IndexError,
        ):  # it is not computed here, and fails at the call if at all
            return None

    def _arguments(self, value: Any) -> Any:
        """``value`` with tensors for nodes, on the CPU."""
        if isinstance(value, Node):
            return self._evaluate(value)
        if isinstance(value, (tuple, list)):
            return type(value)(self._arguments(v) for v in value)
        if isinstance(value, dict):
            return {k: self._arguments(v) for k, v in value.items()}
        if isinstance(value, slice):
            return slice(self._arguments(value.start), self._arguments(value.stop), self._arguments(value.step))
        if isinstance(value, torch.device) or (isinstance(value, str) and kind_of(value).generated):
            return torch.device("cpu")
        return value


def distinct(tensor: Tensor) -> Tensor:
    """The tensor without the repetitions that take no memory, and would where something is computed from them."""
    for dim, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _called(node: Node) -> str:
    """The name of what a node calls, without the overload of an operator."""
    name = node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", ""))
    return name.partition(".")[0]


def _is_written(node: Node) -> bool:
    """Whether a call writes to the tensor, itself or through whatever shares its memory: a view, ``m.float()`` of a
    float32 tensor, ``m.data``.
    """
    return any(written(user) or (_shares_memory(user, node) and _is_written(user)) for user in node.users)


def _shares_memory(user: Node, node: Node) -> bool:
    """Whether what ``user`` gives may lie where ``node`` does."""
    if isinstance(user.target, OpOverload) and makes_view(user.target):
        return True  # traced again, it may have a fake of its own
    return any(is_alias(made, given) for made in _tensors(user) for given in _tensors(node))


def _tensors(node: Node) -> list[Tensor]:
    """What a call gives: tensors, as one or as several."""
    value = node.meta.get("example_value")
    return [one for one in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(one, Tensor)]
