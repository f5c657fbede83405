"""Custom operations replaced by what their lowerings say they compute, before the graph is partitioned."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.base.decision import Decision
from lamina.base.fx.copying import Made, Write, add_calls, copy_nodes
from lamina.base.fx.torch_private import graph_module
from lamina.base.lowering import CustomLowering, arguments_of, find_lowering
from lamina.errors import WrongLowering
from lamina.ops.aliasing import makes_view
from lamina.rewrite import reasons
from lamina.rewrite.torch_private import same_size, symbol_of
from lamina.rewrite.tracing import Fragment, Untraceable, trace

__all__ = ["lower_custom"]

Rules = Mapping[Any, Callable[..., Any]]
Note = Callable[[Decision], None]

aten = torch.ops.aten


def lower_custom(gm: GraphModule, decompositions: Rules, note: Note | None = None) -> GraphModule:
    """``gm`` with each call of an operation that has a lowering in torch's functions replaced by those functions.

    ``gm`` itself when there is none. Raises ``WrongLowering`` where a lowering gives something else than the operation
    does. A use with symbolic sizes that nothing in the graph computes stays a call; ``note`` is told.
    """
    if not any(find_lowering(node.target, "torch") for node in gm.graph.nodes if node.op == "call_function"):
        return gm
    return _Expansion(gm, decompositions, note or (lambda decision: None)).run()


class _Expansion:
    def __init__(self, gm: GraphModule, decompositions: Rules, note: Note) -> None:
        self.gm, self.decompositions, self.note = gm, decompositions, note
        self.graph = Graph()
        self.made: Made = {}
        self.traces: dict[Hashable, Fragment] = {}
        self.symbols: dict[Any, Node] = {}

    def run(self) -> GraphModule:
        writes: dict[Node, Write] = {}
        for node in self.gm.graph.nodes:
            found = find_lowering(node.target, "torch") if node.op == "call_function" else None
            if found is not None:
                writes[node] = partial(self.expanded, node, found)
                writes |= {user: partial(_part, user) for user in node.users if user.target is operator.getitem}
            elif node not in writes and symbol_of(node.meta.get("val")) is not None:
                writes[node] = partial(self.number, node)
        copy_nodes(self.graph, self.gm.graph.nodes, self.made, writes=writes)
        return graph_module(self.gm, self.graph)

    def number(self, node: Node, graph: Graph, made: Made) -> Node:
        """The copy of what computes a symbolic number, which is known from here on."""
        copied = graph.node_copy(node, made.__getitem__)
        self.symbols.setdefault(symbol_of(node.meta["val"]), copied)
        return copied

    def expanded(self, node: Node, lowering: CustomLowering, graph: Graph, made: Made) -> Node | list[Node]:
        """The results of the traced lowering of ``node``; the call, with the reason noted, where it stays one."""
        operands = list(dict.fromkeys(n for n in node.all_input_nodes if _is_tensor(n)))
        key = (str(node.target), _shape_of(node.args, operands), _shape_of(node.kwargs, operands))
        fragment = self.traces.get(key)
        if fragment is None:
            try:
                fragment = self.traced(node, lowering, operands)
            except _Symbolic as why:
                self.note(Decision("lowering", (str(node.target), node.name), False, reasons.SYMBOLIC_SIZE(why=why)))
                return graph.node_copy(node, made.__getitem__)
            self.traces[key] = fragment
        names = dict(zip(fragment.inputs, (made[n] for n in operands), strict=True))
        add_calls(graph, fragment.calls, names, node.meta)
        results = [self.own(node, names, fragment, r) for r in fragment.results]
        several = isinstance(node.meta["val"], (tuple, list))
        reason = reasons.LOWERED_BY_USER(place=lowering.place)
        self.note(Decision("lowering", (str(node.target), node.name), True, reason))
        return results if several else results[0]

    def traced(self, node: Node, lowering: CustomLowering, operands: list[Node]) -> Fragment:
        places = {n: k for k, n in enumerate(operands)}

        def function(tensors: Any) -> Any:
            args, kwargs = _filled((node.args, node.kwargs), lambda n: tensors[places[n]] if n in places else _value(n))
            args, kwargs = arguments_of(node.target, args, kwargs)
            return lowering.function(*args, **kwargs)

        tensors = [n.meta["val"] for n in operands]
        unknown: list[Any] = []

        def symbol(value: Any) -> Node | None:
            found = self.size(symbol_of(value), value)
            if found is None:
                unknown.append(value)
            return found

        try:
            fragment = trace(function, tensors, self.decompositions, symbol)
        except Untraceable as why:
            if unknown:
                raise _Symbolic(f"it uses the symbolic size {unknown[0]}, which nothing computes") from why
            raise _wrong(node, lowering, f"cannot be traced: {why}") from why
        except Exception as error:
            raise _wrong(node, lowering, f"raised {type(error).__name__}: {error}") from error
        _compare(node, lowering, fragment)
        return fragment

    def size(self, expr: Any, value: Any) -> Node | None:
        """The node whose value is a symbolic size: one that the graph has, or sums and products of such."""
        found = self.symbols.get(expr)
        if found is not None or not isinstance(value, torch.SymInt):
            return found
        combine = operator.add if expr.is_Add else operator.mul if expr.is_Mul else None
        if combine is None:
            return None
        operands = [int(part) if part.is_Integer else self.symbols.get(part) for part in expr.args]
        if any(operand is None for operand in operands):
            return None
        result: Any = operands[0]
        for operand in operands[1:]:
            total = combine(_number(result), _number(operand))
            result = self.graph.call_function(combine, (result, operand))
            result.meta["val"] = total
        self.symbols[expr] = result
        return result  # type: ignore[no-any-return]

    def own(self, node: Node, names: dict[Node, Node], fragment: Fragment, result: Node) -> Node:
        """The copied ``result``, in memory of its own: an operation returns no view of what it was given."""
        source = result
        while source not in fragment.inputs and makes_view(source.target) and source.all_input_nodes:
            source = source.all_input_nodes[0]
        wanted = _values(node.meta["val"])[fragment.results.index(result)]
        shared = source in fragment.inputs or fragment.results.count(result) > 1
        if not shared and _same_strides(result.meta["val"], wanted):
            return names[result]
        copied = self.graph.call_function(
            aten.clone.default, (names[result],), {"memory_format": torch.contiguous_format}
        )
        copied.meta = {**node.meta, "val": wanted}
        return copied


def _part(node: Node, graph: Graph, made: Made) -> Node:
    """One of several results of a custom operation that has been lowered or stays a call."""
    source: Any = node.args[0]
    place: Any = node.args[1]
    results = made[source]
    return results[place] if isinstance(results, list) else graph.node_copy(node, made.__getitem__)


class _Symbolic(Exception):
    """A symbolic size stands in the way."""


def _number(operand: Any) -> Any:
    return operand.meta["val"] if isinstance(operand, Node) else operand


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _value(node: Node) -> Any:
    return node.meta["val"]


def _values(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _filled(value: Any, fill: Callable[[Node], Any]) -> Any:
    if isinstance(value, Node):
        return fill(value)
    if isinstance(value, (tuple, list)):
        return type(value)([_filled(v, fill) for v in value])
    if isinstance(value, dict):
        return {k: _filled(v, fill) for k, v in value.items()}
    return value


def _shape_of(value: Any, operands: list[Node]) -> Hashable:
    """``value`` as something equal for uses that trace alike."""
    if isinstance(value, Node):
        val = value.meta.get("val")
        if not isinstance(val, torch.Tensor):
            return ("symbol", str(val))
        sizes = (tuple(map(str, val.shape)), tuple(map(str, val.stride())))
        return (operands.index(value), *sizes, val.dtype, val.device)
    if isinstance(value, (tuple, list)):
        return tuple(_shape_of(v, operands) for v in value)
    if isinstance(value, dict):
        return tuple((k, _shape_of(v, operands)) for k, v in value.items())
    return (type(value), repr(value))


def _same_strides(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return all(same_size(a, b) or n == 1 for a, b, n in zip(found.stride(), wanted.stride(), wanted.shape, strict=True))


def _compare(node: Node, lowering: CustomLowering, fragment: Fragment) -> None:
    """Raise ``WrongLowering`` unless the traced results are what the operation's fake implementation says."""
    wanted = _values(node.meta["val"])
    if len(fragment.results) != len(wanted):
        raise _wrong(node, lowering, f"returns {len(fragment.results)} results, the operation {len(wanted)}")
    for number, (result, val) in enumerate(zip(fragment.results, wanted, strict=True)):
        which = "" if len(wanted) == 1 else f" as result {number}"
        found = result.meta["val"] if isinstance(result, Node) else result
        if not isinstance(found, torch.Tensor) or not isinstance(val, torch.Tensor):
            kinds = f"returns a {type(found).__name__}{which}, the operation a {type(val).__name__}"
            raise _wrong(node, lowering, kinds)
        sizes = found.dim() == val.dim() and all(same_size(a, b) for a, b in zip(found.shape, val.shape, strict=True))
        if not sizes or found.dtype != val.dtype or found.device != val.device:
            raise _wrong(node, lowering, f"returns {_text(found)}{which}, the operation {_text(val)}")


def _text(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}[{', '.join(map(str, tensor.shape))}] on {tensor.device}"


def _wrong(node: Node, lowering: CustomLowering, what: str) -> WrongLowering:
    source = str(node.meta.get("source", ""))
    return WrongLowering(
        f"the lowering of {node.target} {what}",
        where=f"{lowering.place}, used at {source}" if source else lowering.place,
        remedy="make it return what the operation's register_fake says, in torch's functions that write to nothing",
    )
