"""Results of a region that other results depend on, where somebody asks for their gradient.

In eager the gradient of ``y`` in ``return y, y.sin()`` is the sum of what arrives at it from outside and what comes
from the sine: hooks of ``y`` are called with that, ``retain_grad`` keeps it, ``torch.autograd.grad(..., y)`` gives it.
The one node of a region computes the gradients of inputs, and sees only what arrives from outside. So a result that
depends on others has a node of its own in front of the region's, which leads to these others as well. As a rule it
hands all to the region's node. Where one of the others is watched, it runs the captured calls between both under
autograd, for the gradients of the others and of inputs past them; the region's node then gets nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.aot import reasons
from lamina.aot.differentiable import why_not_again
from lamina.aot.eager_history import reach_in_eager
from lamina.aot.engine.leading import Part, leading
from lamina.aot.engine.past import Past, leading_past
from lamina.aot.norm_statistics import unread
from lamina.aot.notes import Notes
from lamina.aot.relations import below
from lamina.aot.torch_private import ENTER_AUTOCAST, EXIT_AUTOCAST, SET_GRAD, autocast_states
from lamina.base.aliasing import tensors_written
from lamina.base.captured import UNSEEN_RESULTS, example, memory
from lamina.base.fx.copying import copy_nodes
from lamina.base.fx.torch_private import calls_of, flatten, graph_module
from lamina.base.reasons import Reason

__all__ = ["leading_on"]

_SWITCHES = (SET_GRAD, ENTER_AUTOCAST, EXIT_AUTOCAST)


def leading_on(
    compiled: Callable[..., Any],
    gm: GraphModule,
    example_inputs: Sequence[Any],
    written: Sequence[int],
    with_history: Sequence[int],
    notes: Notes,
) -> Callable[..., Any]:
    """``compiled``, which computes what ``gm`` does, with results that lead autograd to those they depend on as well.

    ``written`` are the inputs that it writes to, those ``with_history`` get one by that.
    """
    parts, pasts = _parts(gm, example_inputs, frozenset(written), with_history, notes)
    if parts:
        notes.decided("dependent results", True, reasons.LEADS_ON(count=len(parts)))
        compiled = leading(compiled, parts, notes)
    return leading_past(compiled, pasts, notes) if pasts else compiled


def _parts(
    gm: GraphModule, example_inputs: Sequence[Any], written: frozenset[int], with_history: Sequence[int], notes: Notes
) -> tuple[list[Part], list[Past]]:
    """A part for each of the results that depend on others, after those of what it depends on; and those without."""
    returned, _ = flatten(gm.graph.output_node().args[0])
    results = _Results(returned, gm, with_history)
    if len(results.places) < 2 or not results.seen:
        return [], []
    calls = _Calls(gm, results, written, notes)
    made = [calls.part(node, example_inputs) for node in gm.graph.nodes if results.is_first(node)]
    parts = [part for part in made if part is not None]
    pasts = [Past(place, calls.above(place), limit) for place, limit in calls.past.items()]
    return _in_order([replace(part, behind=calls.behind(part, parts)) for part in parts]), pasts


def _in_order(parts: Sequence[Part]) -> list[Part]:
    """``parts`` with each after those of its others: a result that is written to last may be the first in the graph.

    Two that depend on each other, on what one was before a write, stay as they are.
    """
    left, ordered = list(parts), []
    while left:
        ahead = {place for part in left for place in part.places}
        found = next((part for part in left if ahead.isdisjoint(part.others)), left[0])
        left.remove(found)
        ordered.append(found)
    return ordered


class _Results:
    """The results of a graph that may have a gradient, each once, and inputs that get a history by being written to.

    Input i has the place -1-i. Another one sees all of its gradient, returned or not. Results that nobody sees depend
    on others as all do, but none is asked for a gradient: nothing leads to them.
    """

    def __init__(self, returned: Sequence[Any], gm: GraphModule, written: Sequence[int]) -> None:
        given = gm.graph.find_nodes(op="placeholder")
        inputs = {id(example(n)) for i, n in enumerate(given) if i not in written}
        values = {i: n for i, n in enumerate(returned) if isinstance(n, Node)} | {-1 - i: given[i] for i in written}
        unseen = gm.graph.output_node().meta.get(UNSEEN_RESULTS, ())
        self.nodes = {i: n for i, n in values.items() if _may_have_gradient(n) and id(example(n)) not in inputs}
        self.seen = {id(example(n)) for i, n in self.nodes.items() if i not in unseen}
        """Which values are results that somebody sees."""
        self.places: dict[int, tuple[int, ...]] = {}
        for i, node in self.nodes.items():
            self.places[id(example(node))] = (*self.places.get(id(example(node)), ()), i)
        self._first = {self.nodes[places[0]] for places in self.places.values() if places[0] >= 0}

    def is_first(self, node: Node) -> bool:
        """Whether a node is a result, and not one that another is as well."""
        return node in self._first

    def places_of(self, node: Node) -> tuple[int, ...]:
        """Where the value of a node is returned; nowhere if it is no result."""
        return self.places.get(id(example(node)), ())


def _may_have_gradient(node: Node) -> bool:
    value = example(node)
    return isinstance(value, torch.Tensor) and value.requires_grad


class _Calls:
    """A captured graph's calls, and which memory they write to."""

    def __init__(self, gm: GraphModule, results: _Results, written: frozenset[int], notes: Notes) -> None:
        self.gm, self.results, self.notes = gm, results, notes
        self.order = {node: i for i, node in enumerate(gm.graph.nodes)}
        self.inputs = {node: i for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
        self.written, self.unread = written, unread(gm) & written if written else written
        self.leading: dict[int, tuple[int, ...]] = {}
        """For the first place of a result those of the others to which it leads autograd."""
        self.past: dict[int, Reason] = {}
        """Why the result in a place leads to inputs alone."""
        self.writes: dict[Any, list[Node]] = {}
        for node in gm.graph.nodes:
            for one in tensors_written(node):
                self.writes.setdefault(_memory(one), []).append(node)

    def part(self, result: Node, example_inputs: Sequence[Any]) -> Part | None:
        """The calls between a result and others; None if it depends on none of them."""
        own = self.results.places_of(result)
        viewed = [k for k, node in self.results.nodes.items() if k < 0 and _memory(node) == _memory(result)]
        if viewed:  # of an input, as which autograd knows it: writes change its history
            self.leading[own[0]] = tuple(viewed)
            return None
        after = self._written_places()
        stops, needed = self._between(result, own, after)
        early = after - self._read_when_written(needed, after)
        if early:
            after -= early
            stops, needed = self._between(result, own, after)
        return self._made(result, stops, needed, after, example_inputs) if stops else None

    def behind(self, part: Part, parts: Sequence[Part]) -> tuple[int, ...]:
        """The results that ``part`` leads to through views, which have no node of a part that knows of them."""
        nodes = {place for other in parts for place in other.places}
        near = [k for k in self.leading[part.places[0]] if k not in nodes]
        found, stack = {*part.places, *part.others}, near
        while stack:
            more = [k for k in self.leading.get(stack.pop(), ()) if k not in found]
            found.update(more)
            stack += (k for k in more if k not in nodes)
        return tuple(sorted(found.difference(part.places, part.others)))

    def above(self, place: int) -> tuple[int, ...]:
        """The results that the one in a place depends on, by others as well."""
        found: set[int] = set()
        stack = [place]
        while stack:
            more = [k for k in self.leading.get(stack.pop(), ()) if k not in found]
            found.update(more)
            stack += more
        return tuple(sorted(found - {place}))

    def _between(self, result: Node, own: tuple[int, ...], after: set[Any]) -> tuple[dict[Node, int], set[Node]]:
        """The other results that a result is computed from, with their places, and what is between.

        Inputs in the memories ``after`` are taken as they are after the graph: what writes to them is not between. Nor
        is it computed from its own views, by which it is written to.
        """
        views = {place for place, _, _ in below(self.gm, own[0]) or ()}
        stops: dict[Node, int] = {}
        needed: set[Node] = set()
        stack = [result]
        while stack:
            node = stack.pop()
            places = self.results.places_of(node)
            if places and places != own and id(example(node)) in self.results.seen and views.isdisjoint(places):
                stops[node] = places[0]
            elif node not in needed:
                needed.add(node)
                stack += node.all_input_nodes
                place = _memory(node)
                if node.op != "placeholder" and place not in after and not self._views_other(node, own):
                    stack += self.writes.get(place, ())
        return stops, needed

    def _written_places(self) -> set[Any]:
        """The memories of inputs that are written to and get no history by that."""
        with_history = {-1 - k for k in self.results.nodes if k < 0}
        written = (n for n, i in self.inputs.items() if i in self.written - self.unread and i not in with_history)
        return {_memory(n) for n in written if not _may_have_gradient(n)}

    def _read_when_written(self, needed: set[Node], places: set[Any]) -> set[Any]:
        """Those of the memories that the ``needed`` calls read as they are after the last write; they write to none."""
        found = set(places)
        for place in places:
            writing = self.writes.get(place, ())
            last = max((self.order[n] for n in writing), default=-1)
            for node in needed:
                reads = node.op != "placeholder" and any(_memory(one) == place for one in node.all_input_nodes)
                if reads and (node in writing or (self.order[node] <= last and _memory(node) != place)):
                    found.discard(place)
        return found

    def _views_other(self, node: Node, own: tuple[int, ...]) -> bool:
        """Whether ``node`` is a view of another result than that at ``own``, which holds what was written to it."""
        place = memory(example(node))
        while place is not None:
            found = next((n for n in node.all_input_nodes if memory(example(n)) == place), None)
            if found is None:
                return False
            if self.results.places_of(found) not in ((), own):
                return True
            node = found
        return False

    def _made(
        self,
        result: Node,
        stops: Mapping[Node, int],
        needed: set[Node],
        after: set[Any],
        example_inputs: Sequence[Any],
    ) -> Part | None:
        calls = [n for n in self.gm.graph.nodes if n.target in _SWITCHES or (n in needed and n.op != "placeholder")]
        used = {node for call in calls for node in call.all_input_nodes}
        inputs = {node: i for node, i in self.inputs.items() if node in used and node not in stops}
        others = tuple(dict.fromkeys(stops.values()))
        graph = Graph()
        made: dict[Node, Any] = copy_nodes(graph, inputs)
        for other in others:
            given = graph.placeholder(f"result_{other}".replace("-", "_"))
            given.meta = dict(self.results.nodes[other].meta)
            made.update((node, given) for node, one in stops.items() if one == other)
        graph.output((copy_nodes(graph, calls, made)[result],))
        gm = graph_module(self.gm, graph, with_meta=False)
        values = [*(example_inputs[i] for i in inputs.values()), *(example(self.results.nodes[k]) for k in others)]
        reach = reach_in_eager(gm, values, {0: ("result", 0)})()
        own, places = self.results.places_of(result), tuple(inputs.values())
        if reach is None:
            self.past[own[0]] = unknown = reasons.LEADS_UNKNOWN(place=own[0])
            self.leading[own[0]] = others
            self.notes.decided("dependent results", False, unknown)
            return None
        leads = tuple(one is not None for one in reach)
        leading = tuple(k for k, one in zip(others, leads[len(inputs) :], strict=False) if one)
        if not leading:
            return None
        views = below(self.gm, own[0])
        # A view of a view that is a result is made of that one: see ``relations``.
        if views is None and any(_memory(self.results.nodes[k]) != _memory(result) for k in others):
            self.past[own[0]] = why = reasons.LIES_IN_SHARED_MEMORY(place=own[0])
            self.leading[own[0]] = leading
            self.notes.decided("dependent results", False, why)
            return None
        self.leading[own[0]] = leading
        if views is None:
            return None
        limit = (
            why_not_again(gm, ())
            or self._written_between(stops, calls, inputs, after)
            or self._led_around(stops, calls)
        )
        copied = tuple(k for k, i in enumerate(places) if i in self.unread)
        states = tuple(autocast_states())
        return Part(own, calls_of(gm), places, others, leads, limit, views, copied, states, ())

    def _led_around(self, stops: Mapping[Node, int], calls: Sequence[Node]) -> Reason | None:
        """Why a view that the calls read leads past another result, of which it was made: it was written to since."""
        for call in calls:
            for read in call.all_input_nodes:
                place, view = _memory(read), read
                made = self.order[read]
                if any(made < self.order[n] < self.order[call] for n in self.writes.get(place, ())):
                    while (above := self._viewed(view, place)) is not None:
                        if above in stops and self._viewed(above, place) is not None:
                            return reasons.WRITES_RESULT()
                        view = above
        return None

    def _viewed(self, node: Node, place: Any) -> Node | None:
        """The operand of which ``node`` is a view, in the memory ``place``."""
        if node.op == "placeholder":
            return None
        return next((n for n in node.all_input_nodes if _memory(n) == place), None)

    def _written_between(
        self, stops: Mapping[Node, int], calls: Sequence[Node], inputs: Mapping[Node, int], after: set[Any]
    ) -> Reason | None:
        """Why values that the calls read are other ones after the graph."""
        if any(i in self.written - self.unread and _memory(n) not in after for n, i in inputs.items()):
            return reasons.WRITES_INPUT()
        for node in stops:
            place = _memory(node)
            writing = self.writes.get(place, ())
            last = max((self.order[n] for n in writing), default=-1)
            calls_there = (n for n in calls if any(_memory(one) == place for one in n.all_input_nodes))
            reading = (n for n in calls_there if n in writing or _memory(n) != place)  # a view is read where it is used
            if any(self.order[n] <= last for n in reading):
                return reasons.WRITES_RESULT()
        return None


def _memory(node: Node) -> Any:
    found = memory(example(node))
    return id(example(node)) if found is None else found
