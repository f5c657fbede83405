"""Results of one compiled graph that lead autograd to different inputs, as it runs: see ``aot.separate_histories``."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import is_inference_mode_enabled
from torch.autograd.graph import GradientEdge, get_gradient_edge

from lamina.aot import reasons
from lamina.aot.engine.inputs import leading_to
from lamina.aot.engine.torch_private import (
    graph_is_kept,
    is_grad_enabled,
    never_captured,
    running_backward,
    transforms_are_active,
    will_be_executed,
)
from lamina.aot.notes import Notes
from lamina.base.recipes import made_of

if TYPE_CHECKING:
    from lamina.aot.eager_history import Reach

__all__ = ["separated"]


@dataclass(frozen=True, slots=True)
class Group:
    """Inputs that the same results lead to."""

    results: tuple[int, ...]
    inputs: tuple[int, ...]


def separated(
    compiled: Callable[..., Any],
    candidates: Sequence[int],
    differentiable: Sequence[int],
    find: Callable[[], Reach | None],
    notes: Notes,
) -> Callable[..., Any]:
    """``compiled``, whose ``differentiable`` results lead to those inputs only that they depend on, where it matters.

    It does for inputs with a history, which may be any of the ``candidates``, and is then asked of ``find``.
    """
    places = tuple(candidates)
    groups: tuple[Group, ...] | None = None

    def run(*inputs: Any) -> Any:
        nonlocal places, groups
        for i in places:
            if inputs[i].grad_fn is not None:
                break
        else:
            return compiled(*inputs)
        if is_inference_mode_enabled() or not is_grad_enabled() or transforms_are_active():
            return compiled(*inputs)
        if groups is None:
            groups = _groups(find(), differentiable)
            partial = {i for group in groups if len(group.results) < len(differentiable) for i in group.inputs}
            places = tuple(i for i in places if i in partial)
            return run(*inputs)
        return apart(inputs)

    told = False

    def apart(inputs: Sequence[Any]) -> Any:
        nonlocal told
        if not told:
            told = True
            notes.decided("separate histories", True, reasons.HISTORIES_APART())
        assert groups is not None
        return _separated(compiled, inputs, groups, differentiable)

    never_captured(run)
    parts = {"compiled": compiled, "candidates": candidates, "differentiable": differentiable}
    return made_of(run, "separated", **parts, find=find, notes=notes)


def _groups(reach: Reach | None, differentiable: Sequence[int]) -> tuple[Group, ...]:
    """The inputs with a gradient by the results that lead to them; none where a result leads to no input."""
    found: dict[frozenset[int], list[int]] = {}
    for place, results in enumerate(reach or ()):
        if results is not None:
            found.setdefault(results or frozenset(differentiable), []).append(place)
    if frozenset().union(*found) != frozenset(differentiable):
        return ()
    return tuple(Group(tuple(sorted(results)), tuple(places)) for results, places in found.items())


def _separated(
    compiled: Callable[..., Any], inputs: Sequence[Any], groups: Sequence[Group], differentiable: Sequence[int]
) -> tuple[Any, ...]:
    places = [i for group in groups for i in group.inputs]
    anchor = torch.empty(0, device="cpu", requires_grad=True)
    cut: Sequence[torch.Tensor] = _Cut.apply(anchor, [inputs[i] for i in places])  # type: ignore[no-untyped-call]
    given = list(inputs)
    for i, tensor in zip(places, cut, strict=True):
        given[i] = tensor
    edges = {i: get_gradient_edge(tensor) for i, tensor in zip(places, cut, strict=True)}
    results = list(compiled(*given))
    made = {k: results[k] for k in differentiable}
    region = _Region({k: get_gradient_edge(tensor) for k, tensor in made.items()}, edges)
    _differentiate_originals(made[differentiable[0]].grad_fn, dict(zip(map(id, cut), places, strict=True)), inputs)
    leading: dict[int, list[torch.Tensor]] = {k: [] for k in differentiable}
    for group in groups:
        alike, wanted = [made[k] for k in group.results], [inputs[i] for i in group.inputs]
        for k, tensor in zip(group.results, _Inputs.apply(region, group, alike, *wanted), strict=True):  # type: ignore[no-untyped-call]
            leading[k].append(tensor)
    for k, tensors in leading.items():
        results[k] = _Result.apply(region, k, [results[k]], *tensors)  # type: ignore[no-untyped-call]
    return tuple(results)


def _differentiate_originals(node: Any, places: dict[int, int], inputs: Sequence[Any]) -> None:
    """Let the region's node differentiate again with respect to the inputs themselves, or refuse that for them."""
    anchors = getattr(node, "anchors", None)
    if anchors:
        node.anchors = tuple(inputs[places[id(a)]] if id(a) in places else a for a in anchors)
    elif hasattr(node, "behind"):  # AOTAutograd's
        node.behind = (leading_to(*(inputs[i] for i in places.values())),)


class _Pass:
    """One backward: the gradients that arrived at results, and what was found from which of them."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.arrived: dict[int, torch.Tensor] = {}
        self.ran: dict[int, torch.Tensor] = {}
        self.found: dict[Group, tuple[Any, ...]] = {}


class _Region:
    """What the nodes of one call of a region share: the edges to its results and inputs behind them.

    An edge keeps a node, and no result or input.
    """

    def __init__(self, results: dict[int, GradientEdge], inputs: dict[int, GradientEdge]) -> None:
        self.results, self.inputs = results, inputs
        self.nodes: dict[Group, weakref.ref[Any]] = {}
        self.now: _Pass | None = None

    def arrives(self, place: int, gradient: torch.Tensor | None) -> None:
        """Note a gradient of the result at ``place``."""
        if gradient is not None:
            self._pass().arrived[place] = gradient

    def gradients(self, group: Group, given: dict[int, torch.Tensor]) -> tuple[Any, ...]:
        """The gradients of a group's inputs from those of its results."""
        now = self._pass()
        found = now.found.pop(group, None)
        # A gradient that came after the others were found was not known then: another thread had it.
        if found is None or any(now.ran.get(k) is not gradient for k, gradient in given.items()):
            now.ran = {**now.arrived, **given}
            now.arrived = {}
            now.found = self._found(group, now.ran)
            found = now.found.pop(group)
        if not now.found:
            self.now = None  # it keeps no gradient longer than it has to
        return found

    def _found(self, asking: Group, ran: dict[int, torch.Tensor]) -> dict[Group, tuple[Any, ...]]:
        nodes = ((g, reference()) for g, reference in self.nodes.items())
        wanted = [g for g, node in nodes if g is asking or (node is not None and will_be_executed(node))]
        values = iter(
            torch.autograd.grad(
                [self.results[k] for k in ran],
                [self.inputs[i] for g in wanted for i in g.inputs],
                list(ran.values()),
                retain_graph=graph_is_kept(),
                create_graph=is_grad_enabled(),
                allow_unused=True,
            )
        )
        return {g: tuple(next(values) for _ in g.inputs) for g in wanted}

    def _pass(self) -> _Pass:
        number, now = running_backward(), self.now
        if now is None or now.number != number:
            now = self.now = _Pass(number)
        return now


class _Cut(torch.autograd.Function):
    """The inputs as the region is given them: gradients arrive here and go no further."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Any:
        return tuple(t.detach() for t in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError("a gradient was asked of a region's inputs in another way than by its results")


class _Inputs(torch.autograd.Function):
    """Leads to the inputs of a group from each of its results."""

    @staticmethod
    def forward(ctx: Any, region: _Region, group: Group, results: Sequence[torch.Tensor], *inputs: Any) -> Any:
        ctx.region, ctx.group = region, group
        ctx.set_materialize_grads(False)
        region.nodes[group] = weakref.ref(ctx)
        return tuple(t.detach() for t in results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        given = {k: g for k, g in zip(ctx.group.results, gradients, strict=True) if g is not None}
        found = ctx.region.gradients(ctx.group, given) if given else (None,) * len(ctx.group.inputs)
        return None, None, None, *found


class _Result(torch.autograd.Function):
    """Leads from a result to the nodes of the inputs that it depends on."""

    @staticmethod
    def forward(ctx: Any, region: _Region, place: int, result: Any, *leading: Any) -> Any:
        ctx.region, ctx.place, ctx.count = region, place, len(leading)
        ctx.set_materialize_grads(False)
        return result[0].detach()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        ctx.region.arrives(ctx.place, gradient)
        return None, None, None, *((gradient,) * ctx.count)


for _function in (_Inputs, _Result, _Cut):
    never_captured(_function.backward)
