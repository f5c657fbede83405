"""Which kernels for masked rows of attention a plan's library calls will launch."""

from __future__ import annotations

import torch

from lamina.ir.loops import BufferView, LibraryCall
from lamina.ir.plan import Plan
from lamina.masked_rows.kernels import kernels_of
from lamina.masked_rows.operations import WRITING
from lamina.runtime.triton_build import TritonUnit

__all__ = ["masked_rows_units"]


def masked_rows_units(plan: Plan) -> list[TritonUnit]:
    """What such calls of ``plan`` need, to be compiled with its own kernels."""
    dtypes = {b.name: getattr(torch, b.dtype) for b in plan.buffers}
    found: list[TritonUnit] = []
    for step in plan.steps:
        if isinstance(step, LibraryCall) and step.op in WRITING and isinstance(step.args[0], BufferView):
            view = step.args[0]
            if view.shape[-1].is_int:
                found += kernels_of(step.op, dtypes[view.buffer], view.shape[-1].const)
    return found
