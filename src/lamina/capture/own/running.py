"""Runs a recorded graph: its results take the place of the tensors that were pending."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from lamina.base.together import compiled_together
from lamina.capture.own.autocast import Autocast
from lamina.capture.own.blocks import Parts, part_of_graph
from lamina.capture.own.frame import MOST_KEPT
from lamina.capture.own.noting import escaped, pin, pin_sizes
from lamina.capture.own.pending import Pending
from lamina.capture.own.regions import Regions
from lamina.capture.own.results import become, computed_before, distinct
from lamina.capture.own.reuse.run import Run
from lamina.capture.own.saved_tensors.torch_private import HookedAs
from lamina.capture.own.segment import Segment, is_quiet, trial_of
from lamina.capture.own.torch_private import SET_GRAD, is_from_a_hook, out_of_inference_mode, without_function_modes
from lamina.capture.own.trials import Tried
from lamina.capture.own.writing import Writing
from lamina.errors import LaminaError

__all__ = ["compile_ahead", "fill", "rescue"]


def fill(
    regions: Regions, trace: Any, hooks: Any, segment: Segment, key: Any, alive: list[Pending], outputs: list[Node]
) -> None:
    """Compile a graph, unless it is compiled, run it, and put its results in place."""
    grad, failed, aliased = torch.is_grad_enabled(), None, False
    with without_function_modes(), Autocast(segment.state[1]), HookedAs(hooks):
        try:
            SET_GRAD(segment.state[0])
            with out_of_inference_mode():
                run = regions.of(segment, key, outputs, partial(pin, trace))
            if run is None:
                return
            trial = trial_of(segment) if trace is not None and segment.handled and segment.writes_outside else None
            ready = run.chosen(segment.inputs) if isinstance(run, Writing) else run
            segment.begin()
            computed = ready(*segment.inputs)[: len(alive)]  # the others are there so that their errors are
            before = [*map(id, computed)]
            results = distinct(computed, segment.inputs)
            aliased = before != [*map(id, results)]
            del computed
        except Exception as error:
            escaped(trace, "a graph that raises")
            if isinstance(error, LaminaError):  # what a rule or pass of the user's has left of the graph is not run
                segment.failed = True
                raise
            if segment.draws or segment.writes_outside or is_from_a_hook(error):
                raise
            SET_GRAD(segment.state[0])
            failed, place = computed_before(error, segment.graph, segment.inputs, alive, outputs)
            segment.failed = True
            if place is not None and not is_quiet(place):  # no block that would switch it back is left since
                grad = torch.is_grad_enabled()
                segment.left_at = place
        finally:
            SET_GRAD(grad)
        if failed is not None:
            failed.__context__ = None
            raise failed
        results.reverse()  # so that nothing else holds a result that takes the place of a pending tensor
        for made in alive:
            become(made, results)
    if trace is not None and run is not None:
        _tell(trace, segment, run, trial, alive, aliased)


def compile_ahead(
    regions: Regions,
    hooks: Any,
    whole: Segment,
    parts: Parts,
    alive: Mapping[Node, Pending],
    key_of: Callable[[Segment, list[Node]], Any],
) -> None:
    """Compile all parts of a graph before the first of them runs, so that their kernels are built as one batch.

    A part whose inputs turn out to look otherwise is compiled when it is to run; what fails is so again, and raises.
    """
    key = (tuple(whole.key), tuple(whole.looks), whole.state, len(alive))
    if key in regions.cut:
        return
    if len(regions.cut) >= MOST_KEPT:
        regions.cut.clear()
    regions.cut[key] = True
    grad = torch.is_grad_enabled()
    with suppress(Exception), compiled_together(), Autocast(whole.state[1]), HookedAs(hooks):
        for nodes in parts.nodes:
            part, _, outputs = part_of_graph(whole, nodes, alive, parts.seen, ahead=True)
            try:
                SET_GRAD(part.state[0])
                with out_of_inference_mode():
                    regions.of(part, key_of(part, outputs), outputs, lambda *numbers: None)
            finally:
                SET_GRAD(grad)


def _tell(
    trace: Any, segment: Segment, run: Callable[..., Any], trial: Tried | None, alive: list[Pending], aliased: bool
) -> None:
    """Tell the trace of a graph that has run."""
    numbers: tuple[int, ...] = ()
    of_these_sizes = run
    if trace.sizes is not None:
        if aliased:
            pin_sizes(trace)
        with without_function_modes():
            run, numbers = trace.sizes.step(run, segment)
    trace.learning.ran(
        Run(
            run,
            tuple(segment.inputs),
            tuple(alive),
            grad=segment.state[0],
            switches=segment.switches,
            autocast=segment.state[1],
            draws=segment.draws,
            writes=segment.writes_outside,
            handled=bool(segment.handled),
            trial=trial if run is of_these_sizes else None,
            aliased=aliased,
            numbers=numbers,
            written=tuple(segment.inputs[at] for at in segment.written()) if segment.writes else (),
        )
    )


def rescue(segment: Segment, left: list[Pending], nodes: dict[int, Node], error: BaseException, hooks: Any) -> None:
    """Compute the tensors that were ``left`` by an exception, call by call, unless that would write twice."""
    if segment.failed or (segment.started and segment.writes_outside):
        return
    outputs = [nodes.get(id(made)) or segment.nodes[id(made._fake)] for made in left]
    grad = torch.is_grad_enabled()
    with without_function_modes(), Autocast(segment.state[1]), HookedAs(hooks):
        try:
            SET_GRAD(segment.state[0])
            segment.draw_again()
            computed_before(error, segment.graph, segment.inputs, left, outputs)
        finally:
            SET_GRAD(grad)
