"""Captured graphs that are eager's to run: what a functional graph would lose of them, and what its user can do."""

from __future__ import annotations

from torch.fx import GraphModule

from lamina.aot import reasons
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
from lamina.aot.replayed import unknown_view
from lamina.aot.split_functions import split_function
from lamina.aot.strides import misplaced_result
from lamina.aot.trial_calls import other_in_eager
from lamina.aot.untracked_writes import untracked_write
from lamina.base.assumed_sizes import assumed_size
from lamina.base.reasons import Reason

__all__ = ["refusal"]


_CHECKS = (
    (overlapping_write, reasons.OVERLAPPING_WRITE),
    (assumed_size, reasons.ASSUMED_SIZE),
    (refused_call, reasons.REFUSED_CALL),
    (out_of_range, reasons.OUT_OF_RANGE),
    (other_in_eager, reasons.OTHER_IN_EAGER),
    (inexact_integers, reasons.INEXACT_INTEGER),
    (leaf_made, reasons.LEAF_MADE),
    (hooked_result, reasons.HOOKED_RESULT),
    (untracked_write, reasons.UNTRACKED_WRITE),
    (moved_memory, reasons.MOVED_MEMORY),
    (unknown_view, reasons.UNKNOWN_VIEW),
    (split_function, reasons.SPLIT_FUNCTION),
    (look_elsewhere, reasons.LOOKS_ELSEWHERE),
    (misplaced_result, reasons.MISPLACED_RESULT),
)


def refusal(gm: GraphModule, eager_numbers: bool) -> Reason | None:
    """Why the captured graph is eager's to run, with the place in the user's code; None if it is not."""
    for check, code in _CHECKS:
        why = check(gm)
        if why:
            return code(why=why)
    why = lost_layout(gm) if eager_numbers else ""
    if why:
        return reasons.LOST_LAYOUT(why=why)
    why = dead_call(gm, eager_numbers)
    return reasons.DEAD_CALL(why=why) if why else None
