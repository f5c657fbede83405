"""Plans for a GPU that this machine need not have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from lamina.base.target import Target, nvidia
from lamina.ir.plan import Plan
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.plan import make_plan
from tests.lower.torch_private import traced

TARGET = nvidia("NVIDIA H100 80GB HBM3", 132, 90, copy_gbs=2970.0)


def gpu_plan(function: Callable[..., Any], *arguments: Tensor, target: Target = TARGET) -> Plan:
    """The plan of a function whose tensors are on GPU 0."""
    program = lower(traced(function, arguments), "test")
    program = replace(program, buffers=tuple(replace(b, device="cuda:0") for b in program.buffers))
    return make_plan(fuse(program), target)
