"""Captured graphs that are eager's to run: what a functional graph would lose of them, and what its user can do."""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import GraphModule

from lamina.aot import eager_reasons
from lamina.aot.dead_calls import dead_call
from lamina.aot.hooked_results import hooked_result
from lamina.aot.inexact_integers import inexact_integers
from lamina.aot.layouts import lost_layout
from lamina.aot.leaves import leaf_made
from lamina.aot.moved_memory import moved_memory
from lamina.aot.out_of_range import out_of_range
from lamina.aot.overlap import overlapping_write
from lamina.aot.overlapping_views import look_elsewhere
from lamina.aot.refused_calls import refused_call
from lamina.aot.refused_numbers import refused_number
from lamina.aot.relations import parts_that_meet, view_by_function, view_of_windows
from lamina.aot.replayed import unknown_view
from lamina.aot.split_functions import split_function
from lamina.aot.strides import misplaced_result
from lamina.aot.torch_private import refuses_history
from lamina.aot.trial_calls import other_in_eager
from lamina.aot.untracked_writes import untracked_write
from lamina.base.assumed_sizes import assumed_size
from lamina.base.captured import fakes
from lamina.base.reasons import Reason
from lamina.base.source import source_of

__all__ = ["refusal", "refused_relation"]


def _assumed_size(gm: GraphModule) -> Reason | None:
    why = assumed_size(gm)
    return eager_reasons.ASSUMED_SIZE(why=why) if why else None


def _refused_result(gm: GraphModule) -> Reason | None:
    nodes = gm.graph.output_node().all_input_nodes
    node = next((node for node in nodes if any(map(refuses_history, fakes(node)))), None)
    return None if node is None else eager_reasons.REFUSED_RESULT(place=source_of(node))


def refused_relation(gm: GraphModule) -> Reason | None:
    """Why the captured graph, with all its results, is eager's to run: how one of them is a view of another, or None.

    Those that are made again of the inputs count: they are related to the others after that.
    """
    return view_of_windows(gm) or view_by_function(gm)


_CHECKS: tuple[Callable[[GraphModule], Reason | None], ...] = (
    overlapping_write,
    _assumed_size,
    refused_call,
    refused_number,
    out_of_range,
    other_in_eager,
    inexact_integers,
    leaf_made,
    _refused_result,
    parts_that_meet,
    hooked_result,
    untracked_write,
    moved_memory,
    unknown_view,
    split_function,
    look_elsewhere,
    refused_relation,
    misplaced_result,
)


def refusal(gm: GraphModule, eager_numbers: bool) -> Reason | None:
    """Why the captured graph is eager's to run, with the place in the user's code; None if it is not."""
    for check in _CHECKS:
        if why := check(gm):
            return why
    return (lost_layout(gm) if eager_numbers else None) or dead_call(gm, eager_numbers)
