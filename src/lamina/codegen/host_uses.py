"""Which steps of a plan use its buffers, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lamina.base.user_kernels import is_user_kernel
from lamina.codegen.host_values import Values
from lamina.ir.access import reads, views, writes
from lamina.ir.library import is_custom
from lamina.ir.loops import BufferView
from lamina.ir.plan import KernelCall, Plan

__all__ = ["Uses", "uses_of"]


@dataclass(frozen=True, slots=True)
class Uses:
    """``last``: the last step that touches each buffer (past the end for outputs). ``laid_out``: the buffers whose
    strides matter to somebody.
    """

    last: Mapping[str, int]
    laid_out: frozenset[str]


def uses_of(plan: Plan, values: Values) -> Uses:
    """The uses of a plan's buffers. Linear in its steps."""
    last: dict[str, int] = {}
    laid_out: set[str] = set()
    for at, step in enumerate(plan.steps):
        last.update(dict.fromkeys(reads(step) | writes(step), at))
        if isinstance(step, KernelCall):
            laid_out.update(step.buffers)
        else:
            # What the user wrote may rest on strides; ATen takes any.
            exact = is_user_kernel(step.op) or is_custom(step.op)
            laid_out.update(v.buffer for v in views(step) if exact or not values.whole(v))
    returned = {o.buffer for o in plan.outputs if isinstance(o, BufferView)}
    last.update(dict.fromkeys(returned, len(plan.steps)))
    return Uses(last, frozenset(laid_out | returned))
