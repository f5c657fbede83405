"""The captured graph with each of the user's calls as the ATen operations it stands for, before differentiation.

Each distinct call is traced once (see ``tracing``). What is more than a function of tensors stays as it is: writes,
random state, higher-order operations. Nodes keep the user's lines.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.base.aliasing import writes_first
from lamina.base.fx.copying import add_calls
from lamina.base.fx.torch_private import flatten, unflatten
from lamina.base.torch_private import HigherOrderOperator, OpOverload
from lamina.ops.aliasing import makes_view
from lamina.rewrite.torch_private import (
    SET_GRAD,
    has_fresh_symbols,
    ignoring_fresh_symbols,
    one_operation,
    same_size,
    symbol_of,
)
from lamina.rewrite.tracing import Fragment, Untraceable, trace

__all__ = ["AtenForm", "aten_form"]

aten = torch.ops.aten

_CARRIED = ("stack_trace", "nn_module_stack", "source_fn_stack", "custom")
_RUNNING: dict[Any, tuple[int, int, int]] = {
    aten.batch_norm.default: (3, 4, 5),
    aten.instance_norm.default: (3, 4, 5),
}
"""Operations that write to operands though their schema does not say so: those, and the argument that says whether."""


class AtenForm:
    """A captured graph as ATen operations.

    ``graph`` is its own to change. ``untouchable`` are the nodes whose memory something writes to, ``recording`` tells
    for each node whether gradients are recorded there.
    """

    def __init__(self, graph: Graph, untouchable: frozenset[Node], recording: dict[Node, bool]) -> None:
        self.graph, self.untouchable, self.recording = graph, untouchable, recording


def aten_form(gm: GraphModule) -> AtenForm:
    """``gm``, a graph of torch calls with ``meta["example_value"]``, in that form; ``gm`` itself stays as it is."""
    return _Converter(gm).run()


class _Converter:
    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self.graph = Graph()
        self.made: dict[Node, Any] = {}
        self.traces: dict[Hashable, Fragment | None] = {}
        self.sizes: dict[Node, Hashable] = {}
        self.symbols: dict[Any, Node] = {}
        self.roots: dict[Node, frozenset[Node]] = {}
        self.written: set[Node] = set()
        self.recording: dict[Node, bool] = {}
        self.grad = torch.is_grad_enabled()

    def run(self) -> AtenForm:
        for node in self.gm.graph.nodes:
            if node.op == "output":
                self.graph.output(self._mapped(node.args[0])).meta = dict(node.meta)
                continue
            results = self._traced(node) if node.op in ("call_function", "call_method") else None
            self.made[node] = self._kept(node) if results is None else results
        for node in reversed(self.graph.find_nodes(op="call_function", target=operator.getitem)):
            if not node.users:  # one of several values of an operation, which nothing asks for
                self.graph.erase_node(node)
        looked_at = {n for n, roots in self.roots.items() if roots & self.written}
        return AtenForm(self.graph, frozenset(looked_at), self.recording)

    def _mapped(self, value: Any) -> Any:
        """``value`` with what the captured graph's nodes have become."""
        if isinstance(value, Node):
            return self.made[value]
        if isinstance(value, (tuple, list)):
            items = [self._mapped(v) for v in value]
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, dict):
            return {k: self._mapped(v) for k, v in value.items()}
        if isinstance(value, slice):
            return slice(self._mapped(value.start), self._mapped(value.stop), self._mapped(value.step))
        return value

    def _kept(self, node: Node) -> Node:
        """The call itself."""
        copied = self.graph.node_copy(node, self.made.__getitem__)
        value = node.meta.get("example_value")
        copied.meta["val"] = value
        symbol = symbol_of(value)
        if symbol is not None:
            self.symbols.setdefault(symbol, copied)
        if node.target is SET_GRAD:
            self.grad = bool(node.args[0])
        self._note(copied)
        for operand in _written(copied):
            self.written |= self.roots[operand]
        return copied

    def _note(self, node: Node) -> None:
        self.recording[node] = self.grad
        producer = node.args[0] if node.target is operator.getitem else node
        shared: frozenset[Node] = frozenset()
        if isinstance(producer, Node) and producer.op.startswith("call") and makes_view(producer.target):
            shared = frozenset().union(*(self.roots[n] for n in node.all_input_nodes))
        self.roots[node] = shared | {node}
        places = _RUNNING.get(node.target)
        if places is not None and (len(node.args) <= places[2] or node.args[places[2]] is not False):
            for place in places[:2]:
                operand = node.args[place] if len(node.args) > place else None
                if isinstance(operand, Node):
                    self.written |= self.roots[operand]

    def _traced(self, node: Node) -> Any:
        """What the call has become; None if it must stay."""
        if isinstance(node.target, HigherOrderOperator) or writes_first(node):
            return None
        args, kwargs = self._mapped(node.args), self._mapped(node.kwargs)
        if node.target is operator.getitem and not isinstance(args[0], Node) and isinstance(args[0], (tuple, list)):
            return args[0][args[1]] if type(args[1]) in (int, slice) else None
        places: dict[Node, int] = {}
        described = _described((args, kwargs), places)
        if not places:
            return None
        operands = list(places)
        sizes = [self._sizes_of(operand) for operand in operands]
        key = None if described is None or None in sizes else (node.target, described, *sizes)
        if key is None or key not in self.traces:
            fragment = self._trace(node, args, kwargs, operands)
            if key is not None:
                self.traces[key] = fragment
        else:
            fragment = self.traces[key]
        return None if fragment is None else self._copied(fragment, operands, node)

    def _sizes_of(self, operand: Node) -> Hashable:
        """Equal for tensors that a call cannot tell apart; None with symbolic sizes."""
        if operand not in self.sizes:
            fake = operand.meta["val"]
            shape, strides = tuple(fake.shape), fake.stride()
            plain = all(type(n) is int for n in (*shape, *strides))
            self.sizes[operand] = (shape, strides, fake.dtype, fake.device) if plain else None
        return self.sizes[operand]

    def _trace(self, node: Node, args: Any, kwargs: Any, operands: list[Node]) -> Fragment | None:
        leaves, spec = flatten((args, kwargs))
        leaves = [_Slice(x.start, x.stop, x.step) if isinstance(x, slice) else x for x in leaves]

        def function(tensors: Any) -> Any:
            given = dict(zip(operands, tensors, strict=True))
            values = [given.get(x, x.meta["val"]) if isinstance(x, Node) else x for x in leaves]
            args, kwargs = unflatten([v.value() if isinstance(v, _Slice) else v for v in values], spec)
            if isinstance(node.target, str):
                return getattr(args[0], node.target)(*args[1:], **kwargs)
            return node.target(*args, **kwargs)

        try:
            # Distinct objects, so that each operand is known by its own.
            found = self._single(node, function, operands)
            if found is None:
                fakes = [x.meta["val"].detach() for x in operands]
                with ignoring_fresh_symbols(fakes):
                    found = trace(function, fakes, symbols=self._symbol)
                if len(found.calls) != 1 and has_fresh_symbols(node.meta.get("example_value")):
                    return None  # sizes that depend on data have other symbols here than in the capture
        except Untraceable:
            return None
        except Exception:  # what fails here fails in eager as well, and is to fail there
            return None
        if not found.results or not all(isinstance(r, Node) for r in found.results):
            return None
        return found

    def _symbol(self, value: Any) -> Node | None:
        return self.symbols.get(symbol_of(value))

    def _single(self, node: Node, function: Any, operands: list[Node]) -> Fragment | None:
        """The call if it is a single operation, which then gives what Dynamo found it to give: nothing is computed.

        Only where the call can be nothing else: code that is given this result for that of an operation in its middle
        may read what is not there.
        """
        if not one_operation(node.target, isinstance(node.args[0], Node) if node.args else False):
            return None
        fakes = [x.meta["val"] for x in operands]
        known = node.meta.get("example_value")
        several = known if isinstance(known, (tuple, list)) else (known,)
        if not several or not all(isinstance(one, torch.Tensor) for one in several):
            return None
        if len({id(one) for one in (*fakes, *several)}) != len(fakes) + len(several):
            return None
        try:
            return trace(function, fakes, symbols=self._symbol, expected=known)
        except Exception:  # it is called otherwise than its kind is
            return None

    def _copied(self, fragment: Fragment, operands: list[Node], node: Node) -> Any:
        names: dict[Node, Node] = dict(zip(fragment.inputs, operands, strict=True))
        meta = {k: node.meta[k] for k in _CARRIED if k in node.meta}
        own = node.meta.get("example_value") if len(fragment.calls) == 1 else None
        for copied in add_calls(self.graph, fragment.calls, names, meta):
            # Where several calls share a trace, each has a value of its own.
            value = own if isinstance(own, torch.Tensor) else copied.meta["val"]
            copied.meta.update(val=value, example_value=value)
            self._note(copied)
        results = [names[r] for r in fragment.results]
        if len(fragment.calls) > 1:
            _take_values(results, frozenset(operands), node.meta.get("example_value"))
        return unflatten(results, fragment.spec)


def _take_values(results: list[Node], operands: frozenset[Node], own: Any) -> None:
    """Give the results of a call the values that the capture has for them; those of a shared trace are of all calls."""
    values, _ = flatten(own)
    if len(values) != len(results) or len(set(results)) != len(results):
        return
    for result, value in zip(results, values, strict=True):
        traced = result.meta["val"]
        if result in operands or not isinstance(value, torch.Tensor) or not isinstance(traced, torch.Tensor):
            continue
        sizes = (*value.shape, *value.stride()), (*traced.shape, *traced.stride())
        if value.dtype == traced.dtype and len(sizes[0]) == len(sizes[1]) and all(map(same_size, *sizes)):
            result.meta.update(val=value, example_value=value)


def _written(node: Node) -> list[Node]:
    """The operands that a call, which could not be traced, may write to."""
    if node.op not in ("call_function", "call_method") or node.target in (SET_GRAD, operator.getitem):
        return []
    operands = node.all_input_nodes
    first = node.args[0] if node.args else None
    if isinstance(first, Node) and writes_first(node) and "out" not in node.kwargs:
        return [first]
    plain = not isinstance(node.target, (HigherOrderOperator, OpOverload)) and "out" not in node.kwargs
    if plain and not writes_first(node) and isinstance(node.meta.get("val"), _NUMBERS):
        return []
    return operands


_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool, torch.Size)


class _Slice:
    """A slice whose ends may be nodes, as a leaf that can be hashed."""

    __slots__ = ("ends",)

    def __init__(self, *ends: Any) -> None:
        self.ends = ends

    def value(self) -> slice:
        return slice(*(e.meta["val"] if isinstance(e, Node) else e for e in self.ends))


def _described(value: Any, places: dict[Node, int]) -> Hashable:
    """Equal for arguments that trace alike; None for those of a call that is traced by itself.

    ``places`` receives the tensors among them, numbered.
    """
    if isinstance(value, Node):
        if isinstance(value.meta.get("val"), torch.Tensor):
            return ("operand", places.setdefault(value, len(places)))
        return None
    if isinstance(value, (tuple, list)):
        items = [_described(item, places) for item in value]
        return None if None in items else (type(value), *items)
    if isinstance(value, dict):
        return _described([part for pair in value.items() for part in pair], places)
    if isinstance(value, slice):
        ends = (value.start, value.stop, value.step)
        return None if any(isinstance(end, Node) for end in ends) else (slice, ends)
    if isinstance(value, (float, complex)):
        return type(value), repr(value)
    try:
        hash(value)
    except TypeError:
        return None
    return type(value), value
