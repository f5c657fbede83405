"""A graph with numbers that only a run tells, cut where they become known.

``item()``, ``nonzero`` and the like give sizes and numbers that no input has. Such calls, assertions on numbers and
control flow run between the segments they cut a graph into; within a segment what they gave are inputs as any other,
so that kernels, libraries and memory of a segment are planned as for sizes that inputs tell.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from lamina.aot.gaps import without_gaps
from lamina.backends.torch_private import as_number, number_symbol
from lamina.base.decision import Decision
from lamina.base.fx.copying import copy_nodes, copy_on_demand
from lamina.base.reasons import Reason
from lamina.base.torch_private import OpOverload
from lamina.ir.library import has_effect
from lamina.lower.sizes import leaves_in
from lamina.segments import reasons
from lamina.segments.node_kinds import ASSERTIONS, CONSTANT, INNER, OUTER, SIZE, NodeKinds, classify, cuts_by_itself

__all__ = ["CannotCut", "Segment", "Segments", "cut"]

aten = torch.ops.aten

_COPY = aten.copy_.default
_ARITHMETIC: dict[str, Any] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
    "Min": torch.sym_min,
    "Max": torch.sym_max,
}
"""What computes an expression of sizes, operand by operand, by the name of its class."""
_OF_ONE: dict[str, Any] = {"Abs": operator.abs}
"""What computes one of a single integer."""


class CannotCut(Exception):
    """A size of the graph has no node that gives it. Says which."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a graph without calls that make numbers: ``name`` is its submodule in the outer graph."""

    name: str
    gm: GraphModule


@dataclass(slots=True)
class Segments:
    """``outer`` calls the ``segments`` as submodules and, between them, what cuts; ``decisions`` say what and why."""

    outer: GraphModule
    segments: tuple[Segment, ...]
    decisions: tuple[Decision, ...]

    def text(self) -> str:
        """The outer graph as readable Python."""
        return str(self.outer.print_readable(print_output=False))


def cut(gm: GraphModule, name: str, refused: Mapping[str, str] = MappingProxyType({})) -> Segments | None:
    """``gm`` in segments named after ``name``; None if nothing in it cuts. ``gm`` itself is not changed.

    The nodes ``refused``, by name and with a reason, run between segments, and so does what takes such an input.
    Raises ``CannotCut`` where a size is known only as part of an expression.
    """
    limits = any(not e.is_symbol for node in gm.graph.nodes for e in leaves_in(node.meta.get("val")).values())
    if not limits and not refused and not any(cuts_by_itself(gm, node) for node in gm.graph.nodes):
        return None
    graph = Graph()
    nodes = copy_nodes(graph, gm.graph.nodes)
    without_gaps(graph, copied=True)
    work = GraphModule(gm, graph)
    found = NodeKinds(refused={nodes[node]: refused[node.name] for node in nodes if node.name in refused})
    classify(work, found)
    if not found.reasons and not found.refused and not limits:
        return None
    _order(work.graph, found)
    return _Cutter(work, name, found).run()


def _order(graph: Graph, found: NodeKinds) -> None:
    """Levels: a call runs in the segment of its level, what cuts right after the segment of its level.

    Draws from the random generator and effects keep their order; writes to inputs come after everything.
    """
    levels, kinds = found.levels, found.kinds
    effects, last = 0, 0
    for node in graph.nodes:
        if node.op == "placeholder":
            kinds[node], levels[node] = OUTER, -1
            continue
        if node.op == "output" or node.target is _COPY:
            continue
        inputs = [found.binders.get(number_symbol(n.meta.get("val")), n) for n in node.all_input_nodes]
        if kinds[node] is OUTER:
            level = max((levels.get(n, -1) for n in inputs if n is not node), default=-1)
        else:
            for e in leaves_in(node.meta.get("val")).values() if kinds[node] is INNER else ():
                givers = [found.binders.get(s) for s in ((e,) if e in found.binders else e.free_symbols)]
                inputs += [giver for giver in givers if giver in levels]
            level = max((levels[n] + (kinds[n] is OUTER) for n in inputs), default=0)
        if isinstance(node.target, OpOverload) and _keeps_order(node):
            level = max(level, effects - (kinds[node] is OUTER))
            effects = level + (kinds[node] is OUTER)
        levels[node] = level
        last = max(last, level + (kinds[node] is OUTER))
    for node in graph.find_nodes(op="call_function", target=_COPY):
        kinds[node], levels[node] = INNER, last


def _keeps_order(node: Node) -> bool:
    return not str(node.target).startswith(ASSERTIONS) and has_effect(str(node.target))


class _Cutter:
    """Builds the segments and the outer graph of a classified graph."""

    def __init__(self, gm: GraphModule, name: str, found: NodeKinds) -> None:
        self.gm, self.name, self.found = gm, name, found
        self.groups: dict[int, list[Node]] = {}
        self.limits: dict[str, Node] = {}
        self.between: dict[int, list[Node]] = {}
        for node in gm.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            kind, level = found.kinds[node], found.levels[node]
            if kind is INNER:
                self.groups.setdefault(level, []).append(node)
            elif kind is OUTER:
                self.between.setdefault(level, []).append(node)
        (self.output,) = gm.graph.find_nodes(op="output")

    def run(self) -> Segments:
        taken = {level: self._taken(nodes) for level, nodes in self.groups.items()}
        asked = [n for nodes in self.between.values() for n in nodes if not self._is_size(n)]
        wanted = {n for inputs in taken.values() for n in inputs}
        wanted |= set(self._reached([*asked, self.output]))
        self.wanted = wanted
        outer = Graph()
        values = copy_nodes(outer, self.gm.graph.find_nodes(op="placeholder"))
        root: dict[str, Any] = {}
        segments = []
        for level in range(-1, max([*self.groups, *self.between, 0]) + 1):
            if level in self.groups:
                segment, results = self._segment(level, taken[level])
                segments.append(segment)
                root[segment.name] = segment.gm
                inputs = tuple(self._emitted(outer, values, n) for n in taken[level])
                called = outer.call_module(segment.name, inputs)
                for place, result in enumerate(results):
                    values[result] = outer.call_function(operator.getitem, (called, place))
                    values[result].meta = dict(result.meta)
            for node in self.between.get(level, ()):
                if node in wanted or not self._is_size(node):
                    self._emitted(outer, values, node)
        outer.output(map_arg(self.output.args[0], lambda n: self._emitted(outer, values, n)))
        module = torch.nn.Module()
        for node in self.gm.graph.find_nodes(op="get_attr"):
            root[str(node.target)] = getattr(self.gm, str(node.target))
        for name, value in root.items():
            setattr(module, name, value)
        return Segments(GraphModule(module, outer), tuple(segments), self._decisions(len(segments)))

    def _is_size(self, node: Node) -> bool:
        """Whether the node only asks for a size, which matters if something wants it."""
        return node.target in (aten.sym_size.int, aten.sym_stride.int)

    def _real(self, node: Node) -> Node:
        """The node that gives a plain size, wherever it was asked for."""
        if self.found.kinds.get(node) is not SIZE:
            return node
        return self.found.binders.get(number_symbol(node.meta.get("val")), node)

    def _reached(self, nodes: Iterable[Node]) -> list[Node]:
        """What ``nodes`` take that is no arithmetic on sizes: through such arithmetic to what that takes."""
        reached: dict[Node, None] = {}
        stack = [self._real(n) for node in nodes for n in node.all_input_nodes]
        seen: set[Node] = set()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if self.found.kinds[node] is SIZE:
                stack += [self._real(n) for n in node.all_input_nodes]
            elif self.found.kinds[node] is not CONSTANT:
                reached[node] = None
        return list(reached)

    def _taken(self, nodes: list[Node]) -> list[Node]:
        """The inputs of a segment: symbols first, so that each has a value of its own."""
        own = set(nodes)
        tensors = sorted((n for n in self._reached(nodes) if n not in own), key=lambda n: n.name)
        leaves: dict[str, tuple[Any, Node]] = {}
        for user in (*nodes, *tensors):
            for node in (user, *(user.all_input_nodes if user in own else ())):
                leaves |= {name: (e, node) for name, e in leaves_in(node.meta.get("val")).items()}
        missing = [name for name, (e, _) in leaves.items() if e.is_symbol and e not in self.found.binders]
        if missing:
            raise CannotCut(f"nothing gives the size {', '.join(sorted(missing))} by itself")
        givers = [self._giver(name, *leaves[name]) for name in sorted(leaves)]
        return list(dict.fromkeys((*givers, *tensors)))

    def _giver(self, name: str, expression: Any, user: Node) -> Node:
        """The node that gives a symbol or a limit; a limit that no tensor's size gives is computed."""
        if expression in self.found.binders:
            return self.found.binders[expression]
        if name not in self.limits:
            made = self._computed(expression)
            assert isinstance(made, Node)
            made.meta.update(val=as_number(expression, user.meta["val"]), source=user.meta.get("source", ""))
            self.limits[name] = made
        return self.limits[name]

    def _computed(self, e: Any) -> Node | int:
        """The value of an expression of symbols, as calls in the outer graph."""
        if e.is_Integer:
            return int(e)
        if e in self.found.binders:
            return self.found.binders[e]
        if e.is_symbol:
            raise CannotCut(f"nothing gives the size {e} by itself")
        kind = type(e).__name__
        if kind not in _ARITHMETIC and kind not in _OF_ONE:
            raise CannotCut(f"{kind} in {e}")
        first, *rest = (self._computed(arg) for arg in e.args)
        if kind in _OF_ONE:
            return self._called(_OF_ONE[kind], first)
        for other in rest:
            first = self._called(_ARITHMETIC[kind], first, other)
        return first

    def _called(self, function: Any, *integers: Node | int) -> Node:
        with self.gm.graph.inserting_before(self.output):
            made = self.gm.graph.call_function(function, integers)
        self.found.kinds[made] = OUTER
        return made

    def _segment(self, level: int, taken: list[Node]) -> tuple[Segment, list[Node]]:
        nodes = self.groups[level]
        graph, env = Graph(), dict[Node, Node]()
        for node in taken:
            env[node] = graph.placeholder(node.name)
            env[node].meta = dict(node.meta)
        for node in nodes:
            copy_on_demand(graph, node, env, self._real)
        results = [n for n in nodes if n in self.wanted]
        graph.output(tuple(env[n] for n in results))
        name = f"{self.name}_segment{sum(k < level for k in self.groups)}"
        return Segment(name, GraphModule(self.gm, graph)), results

    def _emitted(self, outer: Graph, values: dict[Node, Node], node: Node) -> Node:
        made: Node = copy_on_demand(outer, node, values, self._real)
        return made

    def _decisions(self, segments: int) -> tuple[Decision, ...]:
        grouped: dict[tuple[str, Reason], list[Node]] = {}
        for node, reason in self.found.reasons.items():
            grouped.setdefault((str(node.target), reason), []).append(node)
        made = [
            Decision("segments", (target, *(n.name for n in nodes[:6])), False, reason)
            for (target, reason), nodes in grouped.items()
        ]
        return (*made, Decision("segments", (self.name,), True, reasons.IN_SEGMENTS(count=segments)))
