"""From a captured region to compiled forward and backward graphs, through torch's AOTAutograd."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.aot.autograd.torch_private import (
    Applied,
    differentiable_places,
    history_of_results,
    run_aot_autograd,
    without_donations,
    written_inputs,
)
from lamina.aot.calls import Unsuitable
from lamina.aot.draws import draws_numbers
from lamina.aot.eager import eager_is_best
from lamina.aot.eager_history import Again, held_by_eager, reach_in_eager
from lamina.aot.errors import raising_as_captured, raising_assertions
from lamina.aot.fixed_integers import fixed_integers, wants_numbers
from lamina.aot.function import (
    detaching,
)
from lamina.aot.graph_compiler import GraphCompiler, PartPass, Pass, device_of
from lamina.aot.identities import distinct, without_identities
from lamina.aot.layouts import keeping_layouts
from lamina.aot.list_writes import with_versions
from lamina.aot.notes import Notes
from lamina.aot.overlap import inputs_written
from lamina.aot.refusals import BASE_OF_VIEW, SHARED_INPUT, STATE_SWITCHED, Refusal, refusal
from lamina.aot.region import CompileRegion
from lamina.aot.relations import relations
from lamina.aot.replayed import replayed_views
from lamina.aot.resampling import whole_resampling
from lamina.aot.separate_histories import separating
from lamina.aot.shared_memory import (
    counting_writes,
    overlapping_inputs,
    serving_alike,
    serving_apart_in_history,
    serving_same_bases,
    shares_storage,
)
from lamina.aot.state import read_state, undone, without_history
from lamina.aot.stitch import Stitched, stitch
from lamina.aot.stitched import compile_stitched
from lamina.aot.torch_private import asks_for_another_capture, guard_overlap, is_leaf
from lamina.aot.traits import is_static
from lamina.aot.windows import returns_windows
from lamina.base.collector import collector_held
from lamina.base.modes import SWITCHED_BY_HAND
from lamina.base.recovery import brief, raised_within
from lamina.base.source import place_in
from lamina.base.symbolic.torch_private import DataDependentGuard, LaterGuards
from lamina.errors import LaminaError
from lamina.options import Options
from lamina.record import Record

__all__ = ["compile_captured"]

_TRACED_BY = (__name__, "lamina.aot.torch_private", "lamina.aot.autograd.torch_private")
"""Modules that lead to AOTAutograd; others of Lamina's hold the rules that it applies while it traces."""


def _as_it_is(gm: GraphModule, kind: str) -> GraphModule:
    return gm


def compile_captured(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    *,
    compile_region: CompileRegion,
    decompositions: dict[Any, Callable[..., Any]],
    record: Record,
    options: Options,
    name: str = "graph",
    passes: Sequence[Pass] = (),
    partitioned: PartPass = _as_it_is,
    rereads: bool = False,
) -> Callable[..., Any]:
    """The callable that torch.compile's backend contract asks for.

    ``gm`` is made functional and differentiated: stitched from its single calls where that is sound (see ``stitch``),
    by AOTAutograd otherwise and whenever ``options.numerics`` is "eager". ``compile_region`` compiles each graph
    there is (one for inference, else the forward now and the backward when first needed). ``passes`` run on the joint
    graph before it is partitioned, and on an inference graph before it is compiled, ``partitioned`` on the forward
    and the backward, named by the second argument. ``rereads``: on a GPU the backward may read returned tensors while
    they are unchanged, with ``lamina::unless_changed``. Stages "aot" and "partition" of ``name`` go into ``record``.
    A graph that writes to a tensor whose elements share memory is returned as it is.
    Errors of AOTAutograd pass through, and must pass through the backend as well: some ask Dynamo to trace again.
    """
    graphs = GraphCompiler(compile_region, Notes(record, name), options, tuple(passes), partitioned, rereads)
    job = _Job(graphs, gm)
    captured = without_identities(gm)
    once = distinct(captured)
    if once is not None:
        run = once.applied(_with_views(job, once.gm, example_inputs, decompositions))
    else:
        run = _with_views(job, captured, example_inputs, decompositions)
        if run == captured.forward:
            return raising_assertions(gm.forward if job.by_hand else undone(gm), gm)
    related = relations(gm)
    return raising_assertions(run if related is None else related.applied(run), gm)


def _with_views(
    job: _Job, gm: GraphModule, example_inputs: Sequence[Any], decompositions: dict[Any, Callable[..., Any]]
) -> Callable[..., Any]:
    """The graph compiled, its views of inputs that it writes to made again of those; or its ``forward``."""
    replayed = replayed_views(gm)
    if replayed is None:
        return _compiled(job, gm, example_inputs, decompositions)
    compiled = _compiled(job, replayed.gm, example_inputs, decompositions)
    return gm.forward if compiled == replayed.gm.forward else replayed.applied(compiled)


def _compiled(
    job: _Job,
    gm: GraphModule,
    example_inputs: Sequence[Any],
    decompositions: dict[Any, Callable[..., Any]],
) -> Callable[..., Any]:
    """The graph compiled, or its ``forward``."""
    graphs, notes = job.graphs, job.notes
    graphs.parameters = tuple(is_static(node) for node in gm.graph.find_nodes(op="placeholder"))
    notes.place = _place(gm)
    limit = refusal(gm, graphs.options.numerics == "eager")
    if limit is not None:
        notes.refuse(limit)
        return gm.forward
    state = read_state(keeping_layouts(gm))
    if state.refused:
        notes.refuse(Refusal(state.refused, STATE_SWITCHED))
        return gm.forward
    graphs.differentiable = tuple(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs)
    job.empty = frozenset(i for i, x in enumerate(example_inputs) if isinstance(x, torch.Tensor) and x.numel() == 0)
    guards = LaterGuards()
    with state.entered(), whole_resampling():
        compiled = job.compiled(state.gm, example_inputs, decompositions)
    if compiled == state.gm.forward:
        return gm.forward
    if guards.unreadable():
        guards.drop()
        notes.refuse(Refusal("it is right for some sizes only of what an input is a view of", BASE_OF_VIEW))
        return gm.forward
    if job.outside:
        compiled = detaching(compiled, job.outside)
    if not graphs.written:
        return state.applied(compiled, gm.forward if job.by_hand else None)
    written = inputs_written(state.gm)
    if graphs.options.numerics == "fast" or not draws_numbers(state.gm):
        compiled = raising_as_captured(compiled, state.gm, written, notes.tell, graphs.options.strict)
    if shares_storage(example_inputs, graphs.written):
        if any(isinstance(x, torch.SymInt) for x in example_inputs):
            # What is written gets a history, which all views of the memory then have and a functional graph has not.
            refused = torch.is_grad_enabled() and any(graphs.differentiable)
            compiled = counting_writes(compiled, written)
            compiled = serving_same_bases(compiled, state.gm.forward, example_inputs, notes.tell)
        else:
            overlapping, apart = overlapping_inputs(example_inputs)
            guard_overlap(gm, overlapping, apart)
            refused = not set(overlapping).isdisjoint(graphs.written)
            refused = refused or shares_storage(example_inputs, job.written_with_history)
        if refused:
            notes.refuse(Refusal("an input that it writes to shares memory with another", SHARED_INPUT))
            return gm.forward
    if job.written_with_history:
        compiled = serving_apart_in_history(compiled, state.gm.forward, job.written_with_history, notes.tell)
    return state.applied(serving_alike(compiled, state.gm.forward, example_inputs, graphs.written, notes.tell))


def _stated_limit(error: Exception) -> str:
    """Why eager is to run a graph that AOTAutograd refused with ``error``; "" if something of Lamina's own failed.

    Eager computes what AOTAutograd cannot trace or differentiate, and where it cannot either, the error is its own.
    """
    if isinstance(error, DataDependentGuard):
        return f"tracing it asks what only a run tells: {brief(error)}"
    if isinstance(error, LaminaError) or asks_for_another_capture(error) or raised_within(error, _TRACED_BY):
        return ""
    return f"AOTAutograd does not take it: {brief(error)}"


class _Job:
    """The compilation of one captured graph."""

    def __init__(self, graphs: GraphCompiler, gm: GraphModule) -> None:
        self.graphs, self.notes = graphs, graphs.notes
        self.empty: frozenset[int] = frozenset()
        """Inputs without elements: what results are views of them, nothing tells."""
        self.by_hand = gm.meta.get(SWITCHED_BY_HAND, True)
        """Whether the program switches the grad mode by other means than ``with`` statements."""
        self.outside: tuple[int, ...] = ()
        """Inputs that require a gradient and get none from this graph."""
        self.written_with_history: tuple[int, ...] = ()
        """Inputs that the graph writes to and that get a history by that."""
        self.applied: Applied | None = None
        """The autograd function that AOTAutograd made."""

    def compiled(
        self, gm: GraphModule, example_inputs: Sequence[Any], decompositions: dict[Any, Callable[..., Any]]
    ) -> Callable[..., Any]:
        """The graph compiled, or its own ``forward`` where eager is to run it; sets ``written``."""
        start = time.perf_counter()
        with collector_held():
            stitched = self.stitched(gm, example_inputs, decompositions)
            if stitched is not None:
                self.graphs.written = stitched.mutated
                self.outside = self._without_gradient([s is not None for s in stitched.tangents_of])
                self.notes.record.add(self.notes.name, "aot", time.perf_counter() - start)
                if self.left_to_eager(stitched):
                    return gm.forward
                places = [("result", i) for i in stitched.differentiable]
                again = Again(held_by_eager(gm, example_inputs, places), self.notes)
                compiled = compile_stitched(self.graphs, stitched, gm, again)
                reach = stitched.tangents_of
                candidates = self._with_history(example_inputs, [s is not None for s in reach])
                return separating(compiled, candidates, stitched.differentiable, lambda: reach, self.notes)
            self.graphs.written = inputs_written(gm)
            try:
                compiled = self.differentiated(gm, example_inputs, decompositions)
            except Exception as error:
                why = "" if self.graphs.begun else _stated_limit(error)
                if not why:
                    raise
                self.notes.tell(why)
                return gm.forward
            self.graphs.written = written_inputs(len(example_inputs))
            if self.graphs.saves:
                self.follow(gm, example_inputs)
            kept = history_of_results()  # what AOTAutograd returns as a view of an input is so outside of the graph
            self.outside = self._without_gradient([g or i in kept for i, g in enumerate(self.graphs.reached)])
        self.notes.record.add(self.notes.name, "aot", time.perf_counter() - start - self.graphs.seconds)
        if not self.graphs.saves:
            return compiled
        return without_history(compiled, gm.forward if self.by_hand else undone(gm))

    def _without_gradient(self, has: Sequence[bool]) -> tuple[int, ...]:
        """Inputs that require a gradient and, as ``has`` says, get none; none of a graph that gives no gradients."""
        if not any(has) or len(has) != len(self.graphs.differentiable):
            return ()
        found = enumerate(zip(self.graphs.differentiable, has, strict=True))
        return tuple(i for i, (wants, gets) in found if wants > gets and i not in self.empty)

    def stitched(
        self, gm: GraphModule, example_inputs: Sequence[Any], decompositions: dict[Any, Callable[..., Any]]
    ) -> Stitched | None:
        """The stitched graph, or None with the reason in the record."""
        if self.graphs.options.numerics == "eager":
            reason = "gradients are to be summed in the autograd engine's own order"
        else:
            try:
                found = stitch(gm, example_inputs, decompositions)
            except Unsuitable as why:
                reason = str(why)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
            else:
                self.notes.decided("stitch", True, f"{found.traced} distinct calls traced")
                return found
        self.notes.decided("stitch", False, f"left to AOTAutograd: {reason}")
        return None

    def differentiated(
        self, gm: GraphModule, example_inputs: Sequence[Any], decompositions: dict[Any, Callable[..., Any]]
    ) -> Callable[..., Any]:
        """The graph through AOTAutograd; with numbers for run-time integers where gradients want them."""

        def compiled(graph: GraphModule) -> Callable[..., Any]:
            return run_aot_autograd(
                with_versions(graph),
                example_inputs,
                forward=self.graphs.compiler("forward"),
                backward=self.graphs.kept_backward,
                inference=self.graphs.compiler("inference"),
                partition=self.graphs.partition,
                decompositions=decompositions,
                applied=lambda applied: setattr(self, "applied", applied),
                as_results=not returns_windows(graph),
            )

        try:
            return compiled(gm)
        except (RuntimeError, AttributeError) as error:
            if self.graphs.begun or not wants_numbers(error):
                raise
            refusal: Exception = error
        for graph in fixed_integers(gm):
            try:
                result = compiled(graph)
            except (RuntimeError, AttributeError) as error:
                if self.graphs.begun or not wants_numbers(error):
                    raise
            else:
                why = "torch knows a gradient or an operation for numbers only"
                self.notes.decided("fixed integers", True, why)
                return result
        raise refusal

    def follow(self, gm: GraphModule, example_inputs: Sequence[Any]) -> None:
        """Let backwards of what AOTAutograd made follow others where eager's may."""
        applied = self.applied
        if applied is None:
            self.notes.decided("second backward", False, "AOTAutograd's function was not found")
            return
        function = applied.function
        without_donations(function)
        alike = len(function.metadata.input_info) == len(example_inputs)  # else it takes some inputs as one
        known = differentiable_places(function, alike)
        if known is None:
            self.notes.decided("second backward", False, "what AOTAutograd takes gradients of is not known")
            return
        places, given = known
        find = held_by_eager(gm, example_inputs, places) if alike else lambda: None
        self.graphs.arriving.follow(function, Again(find, self.notes), given)
        applied.call = self.graphs.arriving.watched(applied.call, given[0])
        if alike:
            self.written_with_history = tuple(i for kind, i in places if kind == "input")
            candidates = self._with_history(example_inputs, self.graphs.reached)
            reach = reach_in_eager(gm, example_inputs, dict(zip(given, places, strict=True)))
            applied.call = separating(applied.call, candidates, given, reach, self.notes)

    def _with_history(self, example_inputs: Sequence[Any], reached: Sequence[bool]) -> tuple[int, ...]:
        """Inputs ``reached`` by a gradient that may have a history; parameters have none."""
        if len(reached) != len(example_inputs):
            return ()
        static = self.graphs.parameters
        given = enumerate(zip(example_inputs, reached, strict=True))
        return tuple(i for i, (x, gets) in given if gets and not (static[i] and is_leaf(x)))

    def left_to_eager(self, stitched: Stitched) -> bool:
        """Whether the captured graph itself is the fastest program, which is then in the record."""
        if not stitched.differentiable or stitched.mutated or device_of(stitched.joint) != "cuda":
            return False
        why = eager_is_best(stitched.joint)
        if why:
            self.notes.eager(why)
        return bool(why)


def _place(gm: GraphModule) -> str:
    """The line of the first of the graph's calls that has one."""
    found = (place_in(n.meta.get("stack_trace") or "") for n in gm.graph.nodes if n.op.startswith("call"))
    return next((f"{place}, where it begins" for place in found if place), "")
