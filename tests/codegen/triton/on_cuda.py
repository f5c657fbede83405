"""Plans of functions of CUDA tensors, traced and written without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from lamina.base.target import Target
from lamina.ir.loops import LoopProgram
from lamina.ir.plan import Plan
from lamina.ir.plan_verify import verify_plan
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.plan import make_plan
from tests.lower.torch_private import traced

__all__ = ["lowered_on_cuda", "planned_on_cuda"]


def lowered_on_cuda(function: Callable[..., Any], *arguments: Tensor, numerics: str = "fast") -> LoopProgram:
    """The loops of a function of tensors like ``arguments`` on a GPU."""
    with FakeTensorMode():
        given = [torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="cuda") for a in arguments]
        return lower(traced(function, given), "test", numerics)


def planned_on_cuda(target: Target, function: Callable[..., Any], *arguments: Tensor) -> Plan:
    """Its plan."""
    plan = make_plan(fuse(lowered_on_cuda(function, *arguments)), target)
    verify_plan(plan)
    return plan
