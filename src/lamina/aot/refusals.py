"""Captured graphs that are eager's to run: what a functional graph would lose of them, and what its user can do."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import GraphModule

from lamina.aot.dead_calls import dead_call
from lamina.aot.inexact_integers import inexact_integers
from lamina.aot.layouts import lost_layout
from lamina.aot.leaves import leaf_made
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

__all__ = ["BASE_OF_VIEW", "SHARED_INPUT", "STATE_SWITCHED", "Refusal", "refusal"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """``why`` a graph is not compiled, with the place in the user's code, and the ``remedy``."""

    why: str
    remedy: str


STATE_SWITCHED = "switch it outside of the compiled function, or by a with statement around all of it"
SHARED_INPUT = "pass a clone of one of them"
BASE_OF_VIEW = "pass a clone of the view, or the tensor itself"

_CHECKS = (
    (overlapping_write, "clone what is read or written to before the write"),
    (assumed_size, "reshape or index the tensor so that its size is the same whatever the data"),
    (refused_call, "do not call it so"),
    (out_of_range, "ask for elements that are there"),
    (other_in_eager, "call it in a way that eager takes, and whose result tracing knows"),
    (inexact_integers, "compute the integer before the compiled function is called"),
    (leaf_made, "make the leaf before the compiled function is called, or take the view where gradients are on"),
    (untracked_write, "write to the input itself, under no_grad if no gradient is to see it, or to a clone"),
    (unknown_view, "return the input, or a clone of the view"),
    (split_function, "return results of the function from another compiled function, or mark one non-differentiable"),
    (look_elsewhere, "call as_strided of a contiguous tensor that is no view"),
    (misplaced_result, "call contiguous() on the operand, or make the tensor before the compiled function is called"),
)


def refusal(gm: GraphModule, eager_numbers: bool) -> Refusal | None:
    """Why the captured graph is eager's to run, None if it is not."""
    for check, remedy in _CHECKS:
        why = check(gm)
        if why:
            return Refusal(why, remedy)
    why = lost_layout(gm) if eager_numbers else ""
    if why:
        return Refusal(why, "write to a contiguous tensor")
    why = dead_call(gm, eager_numbers)
    return Refusal(why, "remove the call, or return its result") if why else None
