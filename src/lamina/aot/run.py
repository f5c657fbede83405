"""The joint graph of a captured one: traced call by call, or made by torch's AOTAutograd."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.aot import eager_reasons, reasons
from lamina.aot.autograd.nodes.torch_private import serve_differentiated
from lamina.aot.autograd.torch_private import (
    Applied,
    differentiable_places,
    gives_results,
    history_of_results,
    noted_writes,
    only_viewed,
    run_aot_autograd,
    without_donations,
    written_inputs,
)
from lamina.aot.backward_operands import mark_backward_operands
from lamina.aot.calls import Unsuitable
from lamina.aot.captured import Captured, Differentiated
from lamina.aot.differentiable import Rerun
from lamina.aot.eager import eager_is_best
from lamina.aot.eager_history import held_by_eager, reach_in_eager
from lamina.aot.engine.again import Again
from lamina.aot.engine.versions import counting_each
from lamina.aot.function import refusing
from lamina.aot.graph_compiler import GraphCompiler, device_of
from lamina.aot.joint_tracing import JointGraph, trace_joint
from lamina.aot.list_writes import with_versions
from lamina.aot.norm_statistics import kept_by_norms
from lamina.aot.notes import Notes
from lamina.aot.overlap import how_often_written, inputs_written
from lamina.aot.overlapping_views import returns_windows
from lamina.aot.separate_histories import separating, without_histories
from lamina.aot.specialized_integers import fixed_integers, wants_numbers
from lamina.aot.state import undone, without_history
from lamina.aot.taken_apart import TakenApart
from lamina.aot.torch_private import asks_for_another_capture, is_leaf
from lamina.base.devices import kind_of
from lamina.base.fx.torch_private import flatten
from lamina.base.modes import autocast_kept
from lamina.base.reasons import Reason
from lamina.base.recipes import made_of
from lamina.base.recovery import brief, raised_within
from lamina.base.symbolic.environment.torch_private import SizesTakeTooLong, questions_limited
from lamina.base.symbolic.torch_private import DataDependentGuard
from lamina.errors import LaminaError
from lamina.options import Options

__all__ = ["best_by_eager", "differentiated", "joint_of", "through_autograd"]

Decompositions = dict[Any, Callable[..., Any]]

_TRACED_BY = (__name__, "lamina.aot.torch_private", "lamina.aot.autograd.torch_private")
"""Modules that lead to AOTAutograd; others of Lamina's hold the rules that it applies while it traces."""

_SECONDS_FOR_SIZES = 5.0
"""So long one trace may ask about symbolic sizes."""


def joint_of(captured: Captured, decompositions: Decompositions, options: Options, notes: Notes) -> JointGraph | None:
    """The joint graph, traced call by call where that is sound (see ``trace_joint``); None: AOTAutograd is to make it.

    With ``numerics`` "eager" that is always so. The reason goes into the record.
    """
    start, apart = time.perf_counter(), TakenApart(decompositions)
    if options.numerics == "eager":
        reason = reasons.EAGER_ORDER()
    else:
        try:
            found = trace_joint(captured.graph, captured.example_inputs, apart.counting)
        except Unsuitable as why:
            reason = reasons.NOT_CALL_BY_CALL(why=why)
        except Exception as error:
            reason = reasons.TRACING_FAILED(error=brief(error))
        else:
            notes.add(*apart.decisions())
            notes.decided("joint tracing", True, reasons.CALLS_TRACED(count=found.traced))
            if found.differentiable:
                mark_backward_operands(found.joint, found.results)
            notes.record.add(notes.name, "aot", time.perf_counter() - start)
            return found
    notes.decided("joint tracing", False, reason)
    return None


def best_by_eager(joint: JointGraph, notes: Notes) -> bool:
    """Whether the captured graph itself is the fastest program, which is then in the record."""
    if not joint.differentiable or joint.mutated or not kind_of(device_of(joint.joint)).grids:
        return False
    why = eager_is_best(joint.joint)
    if why is not None:
        notes.eager(why)
    return why is not None


def differentiated(captured: Captured, joint: JointGraph, run: Callable[..., Any], notes: Notes) -> Differentiated:
    """The joint graph, compiled: what of it gets no gradient, and results whose histories are apart in eager."""
    reach = joint.tangents_of
    reached = [s is not None for s in reach]
    candidates = _with_history(captured, reached)
    run = separating(run, candidates, joint.differentiable, lambda: reach, notes)
    return Differentiated(run, joint.mutated, _without_gradient(captured, reached))


def through_autograd(captured: Captured, decompositions: Decompositions, graphs: GraphCompiler) -> Differentiated:
    """The graph traced, differentiated and compiled by torch's AOTAutograd, which asks ``graphs`` for each stage.

    Errors of AOTAutograd that ask Dynamo to trace again pass through, and must pass through backends as well.
    """
    gm, example_inputs, notes = captured.graph, captured.example_inputs, graphs.notes
    graphs.written = inputs_written(gm)
    autograd, apart, set_back = _Autograd(captured, graphs), TakenApart(decompositions), autocast_kept()
    try:
        compiled = autograd.compiled(apart.counting)
    except Exception as error:
        set_back()
        why = None if graphs.begun else _stated_limit(error)
        if why is None:
            raise
        notes.tell(why)
        return Differentiated(None)
    notes.add(*apart.decisions())
    graphs.written = written_inputs(len(example_inputs))
    if graphs.saves:
        autograd.follow()
    kept = history_of_results()  # what AOTAutograd returns as a view of an input is so outside of the graph
    has = [g or i in kept for i, g in enumerate(graphs.reached)]
    outside = _without_gradient(captured, has) if any(graphs.reached) else ()
    notes.record.add(notes.name, "aot", time.perf_counter() - graphs.start - graphs.seconds)
    noted = noted_writes(len(example_inputs))
    if graphs.inference is not None and not graphs.saves and noted is not None:
        made_of(compiled, "inference", compiled=graphs.inference, mutated=noted, trained=torch.is_grad_enabled())
    if graphs.saves:
        compiled = without_history(compiled, gm.forward if captured.by_hand else undone(gm))
    times = how_often_written(gm)
    if more := {i: times[i] - 1 for i in graphs.written if times[i] > 1}:
        compiled = counting_each(compiled, more)
    return Differentiated(compiled, graphs.written, outside, autograd.written_with_history)


def _without_gradient(captured: Captured, has: Sequence[bool]) -> tuple[int, ...]:
    """Inputs that require a gradient and, as ``has`` says, get none; none of a graph that gives no gradients."""
    if not any(has) or len(has) != len(captured.differentiable):
        return ()
    found = enumerate(zip(captured.differentiable, has, strict=True))
    return tuple(i for i, (wants, gets) in found if wants > gets and i not in captured.empty)


def _with_history(captured: Captured, reached: Sequence[bool]) -> tuple[int, ...]:
    """Inputs ``reached`` by a gradient that may have a history; parameters have none."""
    if len(reached) != len(captured.example_inputs):
        return ()
    static = captured.parameters
    given = enumerate(zip(captured.example_inputs, reached, strict=True))
    return tuple(i for i, (x, gets) in given if gets and not (static[i] and is_leaf(x)))


def _stated_limit(error: Exception) -> Reason | None:
    """Why eager is to run a graph that AOTAutograd refused with ``error``; ``None`` if something of Lamina's failed.

    Eager computes what AOTAutograd cannot trace or differentiate, and where it cannot either, the error is its own.
    """
    if isinstance(error, DataDependentGuard):
        return eager_reasons.ASKS_THE_DATA(error=brief(error))
    if isinstance(error, LaminaError) or asks_for_another_capture(error) or raised_within(error, _TRACED_BY):
        return None
    return eager_reasons.NOT_TRACED(error=brief(error))


def _apart(gradient: Any) -> Any:
    return gradient.detach() if isinstance(gradient, torch.Tensor) else gradient


def _differentiable(
    rerun: Rerun | None,
    region: tuple[str, str],
    node: Any,
    arrived: Sequence[Any],
    leaves: Sequence[Any],
    found: Sequence[Any],
) -> Any:
    """Gradients that may be differentiated again: eager's, or those ``found``, which refuse that."""
    again = None if rerun is None else rerun.of(node, arrived)
    if again is not None and len(again) == len(found):
        return again
    return refusing(region, leaves, [_apart(g) for g in found])


class _Autograd:
    """One run of AOTAutograd."""

    def __init__(self, captured: Captured, graphs: GraphCompiler) -> None:
        self.captured, self.graphs, self.notes = captured, graphs, graphs.notes
        self.applied: Applied | None = None
        """The autograd function that AOTAutograd made."""
        self.written_with_history: tuple[int, ...] = ()
        """Inputs that the graph writes to and that get a history by that."""

    def compiled(self, decompositions: Decompositions) -> Callable[..., Any]:
        """The graph through AOTAutograd; with numbers for run-time integers where gradients want them."""
        gm = self.captured.graph
        try:
            with questions_limited(_SECONDS_FOR_SIZES, lambda: self.graphs.begun):
                return self._run(gm, decompositions)
        except SizesTakeTooLong:
            fixed = None if self.graphs.begun else next(reversed([*fixed_integers(gm)]), None)
            if fixed is None:
                raise
            self.notes.decided("fixed sizes", True, reasons.SIZES_TOOK_LONG(seconds=int(_SECONDS_FOR_SIZES)))
            return self._run(fixed, decompositions)
        except (RuntimeError, AttributeError) as error:
            if self.graphs.begun or not wants_numbers(error):
                raise
            refusal: Exception = error
        for graph in fixed_integers(gm):
            try:
                result = self._run(graph, decompositions)
            except (RuntimeError, AttributeError) as error:
                if self.graphs.begun or not wants_numbers(error):
                    raise
            else:
                self.notes.decided("fixed integers", True, reasons.NUMBERS_ONLY())
                return result
        raise refusal

    def _run(self, graph: GraphModule, decompositions: Decompositions) -> Callable[..., Any]:
        return run_aot_autograd(
            with_versions(graph),
            self.captured.example_inputs,
            forward=self.graphs.compiled_forward,
            backward=self.graphs.kept_backward,
            inference=self.graphs.compiled_inference,
            partition=self.graphs.partition,
            decompositions=decompositions,
            applied=self._made,
            as_results=not returns_windows(graph),
            unversioned=kept_by_norms(graph),
        )

    def _rerun(self, function: Any) -> Rerun | None:
        """The captured graph, for gradients that are differentiated again, where it has ``function``'s results."""
        gm, reached = self.captured.graph, self.graphs.reached
        inputs = self.captured.example_inputs
        returned, _ = flatten(gm.graph.output_node().args[0])
        if len(reached) != len(inputs) or not gives_results(function, len(returned)):
            return None
        numbers = [i for i, x in enumerate(inputs) if not isinstance(x, torch.Tensor)]
        rerun = Rerun(gm, reached, inputs_written(gm), self.notes, self.captured.differentiable, numbers)
        return None if rerun.limit is not None else rerun

    def _made(self, applied: Applied) -> None:
        self.applied = applied

    def follow(self) -> None:
        """Let backwards of what AOTAutograd made follow others where eager's may."""
        gm, example_inputs, applied = self.captured.graph, self.captured.example_inputs, self.applied
        if applied is None:
            self.notes.decided("second backward", False, reasons.NO_FUNCTION())
            return
        function = applied.function
        without_donations(function)
        alike = len(function.metadata.input_info) == len(example_inputs)  # else it takes some inputs as one
        known = differentiable_places(function, alike)
        if known is None:
            self.notes.decided("second backward", False, reasons.UNKNOWN_PLACES())
            return
        places, given = known
        find = held_by_eager(gm, example_inputs, places) if alike else lambda: None
        self.graphs.defined_gradients.follow(function, Again(find, self.notes), given)
        region = self.notes.name, self.notes.place
        defined, rerun = self.graphs.defined_gradients, self._rerun(function) if alike else None
        serve_differentiated(function, defined.arrived, functools.partial(_differentiable, rerun, region))
        applied.call = defined.watched(applied.call, given[0], None if rerun is None else rerun.keep)
        if alike:
            self.written_with_history = tuple(i for kind, i in places if kind == "input")
            candidates = _with_history(self.captured, self.graphs.reached)
            reach = reach_in_eager(gm, example_inputs, dict(zip(given, places, strict=True)))
            applied.call = separating(applied.call, candidates, given, reach, self.notes)
            wanted = zip(self.captured.differentiable, self.graphs.reached, strict=True)
            unread = only_viewed().intersection(i for i, (wants, gets) in enumerate(wanted) if wants > gets)
            applied.call = without_histories(applied.call, sorted(unread))
