"""Results that are views of inputs which the graph writes to or whose elements overlap, where integers vary.

The new value of such an input is traced as a memory of its own, which begins at 0 and has no gaps, and AOTAutograd
takes the place of a view with symbolic arguments from there. In eager it depends on where the input lies, for which
there are no guards. Nor does it tell of which of an input's elements a view has the gradient, if these share memory.
Here such views are made again of the inputs themselves, by the captured calls, after the compiled graph.

So are parts of inputs that a call returns several of, as ``chunk`` does: eager lets nobody write to such a part, nor
use it once the input was written to. AOTAutograd makes one with symbolic sizes anew by ``as_strided``, which knows none
of that, and returns one of fixed sizes as a tensor of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.aot import eager_reasons
from lamina.aot.engine.results import with_views
from lamina.aot.overlap import inputs_written
from lamina.aot.relations import written_since
from lamina.aot.torch_private import SET_GRAD, never_captured, switches_state
from lamina.aot.untracked_writes import untracked_write
from lamina.base.aliasing import tensors_written, writes_first
from lamina.base.captured import example, fakes, memory
from lamina.base.fx.copying import returning
from lamina.base.fx.torch_private import calls_of, graph_module
from lamina.base.overlap import may_overlap
from lamina.base.reasons import Reason
from lamina.base.source import source_of
from lamina.base.symbolic.torch_private import is_fake

__all__ = ["Replayed", "replayed_views", "unknown_view"]

_MOVING = frozenset(
    str.split(
        "as_strided_ resize_ resize_as_ set_ set_data squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_ detach_"
        " requires_grad_ rename_ _enter_inference_mode"
    )
)
"""Calls after which a view of a tensor would be another one."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A graph without results that are such views of inputs, and the function of the inputs that makes those.

    ``places`` has, for each result of the original graph, its number, or -1-i for the view number i.
    """

    gm: GraphModule
    views: Callable[..., Any]
    places: tuple[int, ...]

    def applied(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """``compiled`` with the results of the original graph."""
        return with_views(compiled, self.views, self.places)


def replayed_views(gm: GraphModule) -> Replayed | None:
    """The graph, and apart from it the views that are made again; None if it has none, or one that is not known."""
    returned = _returned(gm)
    viewing = _viewing(gm, returned)
    if _unknown(gm, viewing):
        return None
    viewing += _parts(gm, [one for one in returned if one not in viewing])
    if not viewing or untracked_write(gm) or any(_outdated(gm, one) for one in viewing):
        return None
    made = list(dict.fromkeys(viewing))
    kept = [one for one in returned if one not in made]
    places = tuple(-1 - made.index(one) if one in made else kept.index(one) for one in returned)
    return Replayed(_copy(gm, kept, None), _in_the_mode_before(gm, _made(gm, made)), places)


def _in_the_mode_before(gm: GraphModule, views: Callable[..., Any]) -> Callable[..., Any]:
    """``views``, called when the graph has run, in the grad mode in which that began; it leaves the graph's."""
    before, after = torch.is_grad_enabled(), _left(gm)
    if before == after:
        return views

    def made(*inputs: Any) -> Any:
        SET_GRAD(before)
        try:
            return views(*inputs)
        finally:
            SET_GRAD(after)

    never_captured(made)
    return made


def _made(gm: GraphModule, views: Sequence[Node]) -> Callable[..., Any]:
    """What makes the views of the inputs: each for itself where the graph writes to one of them since.

    After a write eager makes views of the input again, of which none leads to another.
    """
    outdated = written_since(gm)
    if not any(outdated(one) and not _needed([one]).isdisjoint({*views} - {one}) for one in views):
        return calls_of(_copy(gm, views, _needed(views)))
    each = [_copy(gm, [one], _needed([one])).forward for one in views]

    def made(*inputs: Any) -> tuple[Any, ...]:
        return tuple([make(*inputs)[0] for make in each])

    never_captured(made)
    return made


def unknown_view(gm: GraphModule) -> Reason | None:
    """Why the captured graph is eager's to run: a view of a written input that cannot be made again, or None."""
    returned = _returned(gm)
    viewing = _viewing(gm, returned)
    node = _unknown(gm, viewing)
    if node is not None:
        return eager_reasons.UNKNOWN_VIEW(place=source_of(node))
    made_again = [*viewing, *_parts(gm, returned)]
    node = next((one for one in made_again if _outdated(gm, one)), None)
    return None if node is None else eager_reasons.OUTDATED_VIEW(place=source_of(node))


def _outdated(gm: GraphModule, view: Node) -> bool:
    """Whether eager lets nobody use the view's history: one of several, or made without gradients, before a write.

    One that is made again after the graph would have a history.
    """
    inputs = gm.graph.find_nodes(op="placeholder")
    if not any(one.requires_grad for node in inputs if _memory(node) == _memory(view) for one in fakes(node)):
        return False
    makers = {node for node in _needed([view]) if node.op != "placeholder" and _written(node) is None}
    if torch.is_grad_enabled() and not any(len(fakes(node)) > 1 for node in makers):
        return False
    after = False
    pending = set(makers)
    for node in gm.graph.nodes:
        pending.discard(node)
        after = after or (not pending and any(_memory(one) == _memory(view) for one in tensors_written(node)))
    return after


def _returned(gm: GraphModule) -> list[Node]:
    returned: Any = gm.graph.output_node().args[0]
    nodes = returned if isinstance(returned, (tuple, list)) else ()
    return list(nodes) if all(isinstance(one, Node) for one in nodes) else []


def _parts(gm: GraphModule, returned: Sequence[Node]) -> list[Node]:
    """The results that are views of an input by calls that return several."""
    inputs = {_memory(node) for node in gm.graph.find_nodes(op="placeholder")}
    found = [one for one in returned if _memory(one) in inputs and any(len(fakes(n)) > 1 for n in _needed([one]))]
    return [one for one in found if _unknown(gm, [one]) is None]


def _varies(gm: GraphModule) -> bool:
    return any(isinstance(example(node), torch.SymInt) for node in gm.graph.nodes)


def _viewing(gm: GraphModule, returned: Sequence[Node]) -> list[Node]:
    """The results that are views of inputs which are written to or whose elements overlap, if an integer varies."""
    if not _varies(gm):
        return []
    inputs = gm.graph.find_nodes(op="placeholder")
    viewed = {_memory(node): node for node in inputs if _overlaps(example(node))}
    viewed |= {_memory(inputs[i]): inputs[i] for i in inputs_written(gm)}
    return [one for one in returned if _memory(one) in viewed and example(one) is not example(viewed[_memory(one)])]


def _overlaps(value: Any) -> bool:
    """Whether elements with a gradient share memory: that of ``as_strided`` is spread evenly over these."""
    return is_fake(value) and value.requires_grad and may_overlap(value)


def _unknown(gm: GraphModule, viewing: Sequence[Node]) -> Node | None:
    """The first of the views that needs more than views and integers of the inputs, or None."""
    if not viewing:
        return None
    if any(_moves(node) for node in gm.graph.nodes):
        return viewing[0]
    return next((one for one in viewing if not all(_is_place(node) for node in _needed([one]))), None)


def _moves(node: Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return node.op not in ("placeholder", "output", "get_attr")
    name = str(node.target if node.op == "call_method" else getattr(node.target, "__name__", ""))
    return name in _MOVING or (node.target is not SET_GRAD and switches_state(node.target))


def _left(gm: GraphModule) -> bool:
    """The grad mode that the graph leaves."""
    switches = gm.graph.find_nodes(op="call_function", target=SET_GRAD)
    return bool(switches[-1].args[0]) if switches else torch.is_grad_enabled()


def _needed(views: Sequence[Node]) -> set[Node]:
    """The calls that make the views, without those that write to what they return."""
    found: set[Node] = set()
    stack = list(views)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            written = _written(node)
            stack += node.all_input_nodes if written is None else [written]
    return found


def _written(node: Node) -> Node | None:
    """The operand that a call writes to and returns."""
    if node.op not in ("call_function", "call_method") or not writes_first(node):
        return None
    assert isinstance(node.args[0], Node)
    return node.args[0]


def _is_place(node: Node) -> bool:
    """Whether a call makes a view of one tensor, or an integer."""
    value = example(node)
    if node.op == "placeholder" or _written(node) is not None:
        return True
    if node.op not in ("call_function", "call_method") or "out" in node.kwargs:
        return False
    tensors = [n for n in node.all_input_nodes if fakes(n)]
    if isinstance(value, (int, torch.SymInt, torch.Size)):
        return node.target in _NUMBERS or not tensors or str(node.target) in ("size", "stride", "numel", "dim")
    made = fakes(node)
    memories = {_memory_of(one) for one in made}
    return len(tensors) == 1 and bool(made) and memories == {_memory_of(one) for one in fakes(tensors[0])[:1]}


_NUMBERS = (operator.getitem, getattr)


def _memory(node: Node) -> Any:
    value = example(node)
    return _memory_of(value) if is_fake(value) else node


def _memory_of(value: Any) -> Any:
    found = memory(value)
    return id(value) if found is None else found


def _copy(gm: GraphModule, results: Sequence[Node], needed: set[Node] | None) -> GraphModule:
    """The graph with these results; of only the ``needed`` calls and the switches of the grad mode, if given."""
    if needed is None:
        return graph_module(gm, returning(gm, results), with_meta=False)
    written = {node: one for node in needed if (one := _written(node)) is not None}
    kept = (n for n in gm.graph.nodes if n in needed or n.op == "placeholder" or n.target is SET_GRAD)
    return graph_module(gm, returning(gm, results, kept, written), with_meta=False)
