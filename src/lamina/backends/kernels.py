"""Our own backends: for kernels, by the device that a region is on, or for evaluating its loop program as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.backends.api import Backend
from lamina.backends.cpu import CpuBackend
from lamina.backends.cuda import CudaBackend
from lamina.backends.device import Device, DeviceOf
from lamina.backends.interp import Interpreter
from lamina.base.devices import kind_of
from lamina.base.recovery import recover
from lamina.errors import StageFailed
from lamina.ir.loops import LoopProgram
from lamina.library_algorithms.gelu_rewrite import gelu_products
from lamina.options import Options
from lamina.record import Record

__all__ = [
    "KERNELS",
    "KERNEL_OPTIONS",
    "begin",
    "cpu_device",
    "cuda_device",
    "device_of",
    "interpreted",
    "is_ours",
    "with_library_gelu",
]

KERNEL_OPTIONS = ("mode", "simd", "cxx", "jobs", "progress")
"""Options that say how kernels are made, and mean nothing to a backend that makes none of ours."""


def with_library_gelu(gm: GraphModule, name: str, backend: Backend, options: Options, record: Record) -> GraphModule:
    """The graph of a region of a GPU with GELU left to the library where that is faster; ``gm`` itself elsewhere."""
    if backend.kernels is not device_of:
        return gm
    values = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
    devices = {v.device for v in values if isinstance(v, torch.Tensor) and kind_of(v).grids}
    if len(devices) != 1 or options.numerics != "fast":
        return gm
    device, note = devices.pop().index or 0, record.noting(name, "epilogues")

    def ask(product: Node, operation: Any, values: Sequence[torch.Tensor], summed: bool) -> int | None:
        return cuda_device(options, device).gelu_choice(note)(product, operation, values, summed)

    try:
        return gelu_products(gm, ask)
    except Exception as error:
        instead = "kernels compute GELU"
        doing = "choosing between kernels and library epilogues"
        recover(
            error,
            doing=doing,
            region=name,
            instead=instead,
            strict=options.strict,
            note=note,
            kind="library epilogue",
        )
        return gm


def device_of(program: LoopProgram, options: Options) -> Device:
    """The GPU that holds tensors of the program, the CPU where none does.

    Numbers and small computations that a region of a GPU keeps on the CPU stay there. Tensors of two GPUs, or of
    another kind of device, are left to ATen (``StageFailed``).
    """
    devices = {b.device for b in program.buffers if not b.on_cpu}
    if not devices:
        return cpu_device(options)
    device = torch.device(devices.pop())
    if devices or not kind_of(device).grids:
        raise StageFailed(f"a region on {', '.join(sorted({str(device), *devices}))}")
    return cuda_device(options, device.index or 0)


def interpreted(program: LoopProgram, options: Options) -> Device:
    """What evaluates any program as it is."""
    del program, options
    return Interpreter()


def begin(backend: Backend, example_inputs: Sequence[Any], options: Options) -> None:
    """Let what kernels for a GPU wait for (Triton's processes, the launcher) start before there is a graph for them."""
    devices = {x.device for x in example_inputs if isinstance(x, torch.Tensor) and kind_of(x).grids}
    if len(devices) != 1 or backend.kernels is not device_of:
        return
    (device,) = devices
    if not backend.devices or device.type in backend.devices:
        with contextlib.suppress(Exception):  # raised again when a region asks for it, and is run without
            cuda_device(options, device.index or 0)


@lru_cache(maxsize=32)
def cpu_device(options: Options) -> CpuBackend:
    """The CPU of this machine with these options."""
    return CpuBackend(options)


@lru_cache(maxsize=32)
def cuda_device(options: Options, device: int) -> CudaBackend:
    """One GPU with these options."""
    return CudaBackend(options, device)


def _backend(name: str, kernels: DeviceOf, devices: tuple[str, ...] = ()) -> Backend:
    return Backend(name, kernels=kernels, devices=devices, writes=True, takes=KERNEL_OPTIONS)


KERNELS = (
    _backend("lamina", device_of),
    _backend("cpu", device_of, ("cpu",)),
    _backend("cuda", device_of, ("cuda",)),
    _backend("interp", interpreted),
)
"""Kernels for the device of the region, for one kind of device only, or the loop program evaluated as it is."""


def is_ours(backend: Backend) -> bool:
    """Whether ``backend`` is one of these, with passes in front or without: what it gives back is not checked again."""
    return backend.kernels is not None
