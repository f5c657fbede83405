"""Lookups of a graph in the making, which raise for indices that are out of range: tried before the graph runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Reversible, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from lamina.base.devices import kind_of
from lamina.base.drawing import may_draw
from lamina.base.torch_private import storage_of
from lamina.capture.own.torch_calls import name_of
from lamina.capture.own.writing import Anew

__all__ = ["SMALL", "Trials", "Tried"]

SMALL = 4096
"""Elements of a tensor that is computed to know whether it is a valid index, and of the memory that a tried write takes
for an operand."""
_BY_DIMENSION = frozenset(
    (
        "gather",
        "index_select",
        "index_copy",
        "index_copy_",
        "index_add",
        "index_add_",
        "index_fill",
        "index_fill_",
    )
)
"""Functions of a tensor, a dimension of it, and places in that."""
_WRITING = frozenset(
    ("setitem", *(name for name in _BY_DIMENSION if name.startswith("index_") and name != "index_select"))
)
"""Those that write, to a copy or in place, what may have another shape or dtype than the places."""


class Trials:
    """What is known of the small tensors of integers of one graph, whose nodes are looked at in order, each once.

    ``written`` are the nodes that write, with their targets. Inputs are not written to before the graph has run.
    """

    def __init__(self) -> None:
        self.values: dict[Node, torch.Tensor] = {}
        self.written: dict[Node, tuple[Node, ...]] = {}
        self._memories: set[int] = set()
        self._last: Node | None = None
        self._failed = False

    def fail(self, nodes: Reversible[Node], given: Mapping[Node, torch.Tensor], loud: Callable[[Node], bool]) -> bool:
        """Whether one of those of the ``nodes`` that are new raises, or may, with the inputs ``given``: ``loud`` says
        which may at all. No function mode is to be on. Once one has, that stays so.
        """
        new = list(takewhile(lambda node: node is not self._last, reversed(nodes)))
        self._last = new[0] if new else self._last
        with torch.no_grad():
            self._failed = self._failed or any(self._fails(node, given, loud(node)) for node in reversed(new))
        return self._failed

    def _fails(self, node: Node, given: Mapping[Node, torch.Tensor], loud: bool) -> bool:
        if node.op == "placeholder":
            if storage_of(given[node]) not in self._memories:
                self.values[node] = given[node]
            return False
        if loud and not self._is_in_range(node):
            return True
        if node in self.written:
            if not self._written_as_well(node, given):
                for target in self.written[node]:
                    self._forget(target)
        elif _is_told(node) and all(map(self._is_small, node.all_input_nodes)):
            with contextlib.suppress(Exception):
                self.values[node] = _called(node, self.values)
        return False

    def _written_as_well(self, node: Node, given: Mapping[Node, torch.Tensor]) -> bool:
        """Whether a write was done to what is known, which is not the memory of an input and is all that it needs."""
        if may_draw(_name(node)) or not all(map(self._is_small, node.all_input_nodes)):
            return False
        inputs = {storage_of(tensor) for tensor in given.values()}
        if any(storage_of(self.values[target]) in inputs for target in self.written[node]):
            return False
        try:
            _called(node, self.values)
        except Exception:
            return False
        return True

    def _is_small(self, node: Node) -> bool:
        return node in self.values and self.values[node].numel() <= SMALL

    def _forget(self, target: Node) -> None:
        """Nothing is known any more of what may lie in the memory of ``target``, which is written to.

        What is known is computed of what is known, so that views among that are told by their memory.
        """
        origins = (target,) if target in self.values else _origins(target)
        memories = {storage_of(self.values[node]) for node in origins if node in self.values}
        self._memories |= memories
        for node in [*self.values]:
            if storage_of(self.values[node]) in memories:
                del self.values[node]

    def _is_in_range(self, node: Node) -> bool:
        """Whether a lookup raises for none of its indices, which are known."""
        name = _name(node)
        args = list(node.args) + [node.kwargs[key] for key in ("input", "dim", "index", "weight") if key in node.kwargs]
        if name == "embedding":
            args = [args[1], 0, args[0]]
        elif name in _WRITING:
            return self._is_written(node, args[1 if name == "setitem" else 2])
        elif name == "getitem":
            shape = _example(args[0]).shape  # type: ignore[arg-type]
            return self._runs(lambda at: torch.empty(()).expand(_needed(shape, at))[at], args[1])
        elif name not in _BY_DIMENSION:
            return False
        table, dimension, places = args[:3]
        if not isinstance(table, Node) or type(dimension) is not int:
            return False
        rows = _example(table).shape[dimension]
        return self._runs(lambda at: torch.empty(()).expand(rows).index_select(0, at.reshape(-1)), places)

    def _is_written(self, node: Node, places: Any) -> bool:
        """Whether a write raises for none of its ``places``, which are known, and for no value of its dtype."""
        known: set[Node] = set()
        map_arg(places, known.add)
        others = [_example(n) for n in node.all_input_nodes if n not in known]
        if len({t.dtype for t in others}) != 1 or any(kind_of(t).queued or _extent(t) > SMALL for t in others):
            return False
        try:
            operands = {n: self.values[n].clone() if n in known else _unset(_example(n)) for n in node.all_input_nodes}
            _called(node, operands)
        except Exception:
            return False
        return True

    def _runs(self, lookup: Any, places: Any) -> bool:
        try:
            found = map_arg(places, lambda node: self.values[node])
            if isinstance(found, torch.Tensor) and kind_of(found).queued:
                return True  # where it is told later, to nobody who could handle it
            lookup(found)
        except Exception:
            return False
        return True


class Tried:
    """Calls of a compiled graph that may raise: whether the inputs are such that none of the ``loud`` ones does.

    ``written`` are nodes that write, as those of ``Trials``.
    """

    def __init__(self, graph: Graph, loud: Iterable[Node], written: Mapping[Node, tuple[Node, ...]]) -> None:
        self.nodes, self.loud, self.written = [*graph.nodes], frozenset(loud), dict(written)
        self.inputs = [node for node in self.nodes if node.op == "placeholder"]

    def hold(self, *inputs: torch.Tensor) -> bool:
        """Whether they are."""
        trials = Trials()
        trials.written = self.written
        return not trials.fail(self.nodes, dict(zip(self.inputs, inputs, strict=True)), self.loud.__contains__)

    def before(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """``run`` for such inputs; raises ``Anew`` for others."""

        def called(*inputs: Any) -> Any:
            if not self.hold(*inputs):
                raise Anew
            return run(*inputs)

        return called


def _name(node: Node) -> str:
    return node.target if isinstance(node.target, str) else name_of(node.target)


def _example(node: Node) -> torch.Tensor:
    found: torch.Tensor = node.meta["example_value"]
    return found


def _extent(tensor: torch.Tensor) -> int:
    """Elements of the memory between the first and the last one of ``tensor``."""
    return sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1


def _unset(tensor: torch.Tensor) -> torch.Tensor:
    """One that lies in memory as ``tensor`` does, of no values."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _is_told(node: Node) -> bool:
    """Whether a call gives a small tensor of integers, which is another one for no other reason than its operands."""
    value, name = node.meta.get("example_value"), _name(node)
    if (
        not isinstance(value, torch.Tensor)
        or may_draw(name)
        or "empty" in name
        or value.dtype.is_floating_point
        or value.dtype.is_complex
    ):
        return False
    return value.numel() <= SMALL


def _needed(shape: Sequence[int], at: Any) -> list[int]:
    """The shape with one element along the dimensions of which a lookup takes all: what it reads may be large."""
    found = list(shape)
    if isinstance(at, torch.Tensor):
        at = (at,)
    if not isinstance(at, tuple) or any(part is Ellipsis for part in at):
        return found
    k = 0
    for part in at:
        if isinstance(part, slice) and part.start is part.stop is part.step is None:
            found[k] = 1
        if part is not None and type(part) is not bool:
            k += part.dim() if isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8) else 1
    return [*found[:k], *[1] * len(found[k:])]


def _called(node: Node, values: Mapping[Node, torch.Tensor]) -> Any:
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _origins(node: Node) -> Iterator[Node]:
    """The node and all that it is computed of."""
    waiting, seen = [node], {node}
    while waiting:
        found = waiting.pop()
        yield found
        new = [n for n in found.all_input_nodes if n not in seen]
        seen.update(new)
        waiting.extend(new)
