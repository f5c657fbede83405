"""What runs a fused program, by name and by the device it is for."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.backends.cpu import CpuBackend
from lamina.backends.cuda import CudaBackend
from lamina.backends.interp import run_interpreted
from lamina.errors import StageFailed
from lamina.options import Options
from lamina.record import Record
from lamina.schedule.fuse import Fused

__all__ = ["Executor", "executor"]

Executor = Callable[[Fused, Record, GraphModule], Callable[[list[Any]], Any]]
"""Turns a fused program into a callable that takes one list of inputs and returns the list of outputs."""


@lru_cache(maxsize=32)
def executor(name: str, options: Options) -> Executor:
    """The executor called ``name``: "lamina" (kernels for the region's device) or "interp"."""
    return run_interpreted if name == "interp" else _by_device(options)


def _by_device(options: Options) -> Executor:
    """Kernels for the GPU that holds tensors of the region, for the CPU where none does.

    Numbers and small computations that a region of a GPU keeps on the CPU stay there. Tensors of two GPUs, or of
    another kind of device, are left to ATen (``StageFailed``).
    """

    def run(fused: Fused, record: Record, gm: GraphModule) -> Callable[[list[Any]], Any]:
        devices = {b.device for b in fused.program.buffers} - {"cpu"}
        if not devices:
            return _cpu(options)(fused, record, gm)
        device = torch.device(devices.pop())
        if devices or device.type != "cuda":
            raise StageFailed(f"a region on {', '.join(sorted({str(device), *devices}))}")
        return _cuda(options, device.index or 0)(fused, record, gm)

    return run


@lru_cache(maxsize=32)
def _cpu(options: Options) -> CpuBackend:
    return CpuBackend(options)


@lru_cache(maxsize=32)
def _cuda(options: Options, device: int) -> CudaBackend:
    return CudaBackend(options, device)
