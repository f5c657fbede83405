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

from lamina.base.aliasing import makes_view, writes_first
from lamina.base.torch_private import HigherOrderOperator, OpOverload
from lamina.rewrite.torch_private import SET_GRAD, flatten, symbol_of, unflatten
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
        copied = self.graph.create_node(
            node.op, node.target, self._mapped(node.args), self._mapped(node.kwargs), node.name, node.type
        )
        copied.meta = dict(node.meta)
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
        leaves, spec = flatten((args, kwargs))
        leaves = [_Slice(x.start, x.stop, x.step) if isinstance(x, slice) else x for x in leaves]
        operands = list(dict.fromkeys(x for x in leaves if isinstance(x, Node) and _tensor(x) is not None))
        if not operands:
            return None
        fragment = self._fragment(node, leaves, spec, operands)
        return None if fragment is None else self._copied(fragment, operands, node)

    def _fragment(self, node: Node, leaves: list[Any], spec: Any, operands: list[Node]) -> Fragment | None:
        key = _key(node.target, leaves, spec, operands)
        if key is not None and key in self.traces:
            return self.traces[key]
        found = self._trace(node, leaves, spec, operands)
        if key is not None:
            self.traces[key] = found
        return found

    def _trace(self, node: Node, leaves: list[Any], spec: Any, operands: list[Node]) -> Fragment | None:
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
                found = trace(function, fakes, symbols=self._symbol)
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
        """The call if it is a single operation, which then gives what Dynamo found it to give: nothing is computed."""
        fakes = [x.meta["val"] for x in operands]
        known = node.meta.get("example_value")
        if not isinstance(known, torch.Tensor) or any(f is known for f in fakes):
            return None
        if len({id(f) for f in fakes}) != len(fakes):
            return None
        try:
            return trace(function, fakes, symbols=self._symbol, expected=known)
        except Exception:  # it is more than that, and needs real values in between
            return None

    def _copied(self, fragment: Fragment, operands: list[Node], node: Node) -> Any:
        names: dict[Node, Node] = dict(zip(fragment.inputs, operands, strict=True))
        meta = {k: node.meta[k] for k in _CARRIED if k in node.meta}
        for call in fragment.calls:
            copied = self.graph.node_copy(call, lambda n: names.get(n, n))
            value = call.meta["val"]
            if len(fragment.calls) == 1 and isinstance(node.meta.get("example_value"), torch.Tensor):
                value = node.meta["example_value"]  # of this call's own, where several share a trace
            copied.meta = {**meta, "val": value, "example_value": value}
            names[call] = copied
            self._note(copied)
        return unflatten([names[r] for r in fragment.results], fragment.spec)


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


def _tensor(node: Node) -> torch.Tensor | None:
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def _key(target: Any, leaves: list[Any], spec: Any, operands: list[Node]) -> Hashable:
    """Equal for calls that trace alike; None for one that is traced by itself."""
    described: list[Hashable] = [target, str(spec)]
    for leaf in leaves:
        if isinstance(leaf, Node):
            if leaf not in operands:
                return None
            described.append(("operand", operands.index(leaf)))
        elif isinstance(leaf, (float, complex)):
            described.append((type(leaf), repr(leaf)))
        elif isinstance(leaf, _Slice):
            if any(isinstance(e, Node) for e in leaf.ends):
                return None
            described.append((slice, leaf.ends))
        else:
            try:
                hash(leaf)
            except TypeError:
                return None
            described.append((type(leaf), leaf))
    for operand in operands:
        fake = operand.meta["val"]
        sizes = (*fake.shape, *fake.stride())
        if any(type(n) is not int for n in sizes):
            return None
        described.append((tuple(fake.shape), fake.stride(), fake.dtype, fake.device))
    return tuple(described)
