"""What is so of each type of device, whichever machine has it: stages ask this and compare no names of devices.

What depends on the machine as well (sizes of caches, bandwidth, instructions) is a ``Target``'s (``base/target.py``),
which has the kind of its device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch

__all__ = [
    "CPP",
    "CPU_ATTENTION",
    "CUBLAS",
    "CUDNN",
    "FUSED_ATTENTION",
    "GENERATED",
    "ONEDNN",
    "TRITON",
    "DeviceKind",
    "Where",
    "in_grids",
    "kind_of",
    "on_host",
    "queued",
    "with_cublas",
    "with_cudnn",
    "with_onednn",
]

CPP, TRITON = "C++", "Triton"
"""Languages of kernels: functions of loops, and programs of which a grid runs, each on tiles."""

CUBLAS, CUDNN, ONEDNN = "cuBLAS", "cuDNN", "oneDNN"
"""Libraries of products and convolutions that ATen calls, and rewrites count on."""
FUSED_ATTENTION, CPU_ATTENTION = "fused attention", "attention of CPUs"
"""Kernels behind ``scaled_dot_product_attention`` that keep no scores: those of GPUs, and that of CPUs."""


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """A type of device, by the name that torch gives it, and what stages ask of it.

    ``host``: it is the processor that Python runs on, whose memory is the process's own; ATen's kernels for it round in
    an order of their own, calls have done their work when they return. ``queued``: calls return before that, streams
    order what they have begun, and generators of random numbers are its own. ``stored``: tensors have values.
    ``language``: what our kernels for it are written in, "" where there are none. ``libraries``: those it has.
    """

    name: str
    host: bool = False
    queued: bool = False
    stored: bool = True
    language: str = ""
    libraries: frozenset[str] = frozenset()

    @property
    def generated(self) -> bool:
        """Whether there are kernels of ours for it."""
        return bool(self.language)

    @property
    def grids(self) -> bool:
        """Whether a kernel is a grid of programs, each on tiles, which has much more arithmetic than memory."""
        return self.language == TRITON

    def has(self, library: str) -> bool:
        """Whether ATen calls that library there."""
        return library in self.libraries


_CPU = DeviceKind("cpu", host=True, language=CPP, libraries=frozenset((ONEDNN, CPU_ATTENTION)))
_CUDA = DeviceKind("cuda", queued=True, language=TRITON, libraries=frozenset((CUBLAS, CUDNN, FUSED_ATTENTION)))
_META = DeviceKind("meta", stored=False)
_KINDS = {kind.name: kind for kind in (_CPU, _CUDA, _META)}

GENERATED = tuple(kind.name for kind in _KINDS.values() if kind.generated)
"""Names of the types of devices that kernels are generated for."""


def kind_of(place: str | torch.device | torch.Tensor) -> DeviceKind:
    """The kind of a device, given by itself, by its name ("cuda", "cuda:0"), or as that of a tensor.

    Of a type that is not known here nothing is so but that tensors have values.
    """
    if isinstance(place, str):
        return _named(place)
    return _named((place if isinstance(place, torch.device) else place.device).type)


Where = Callable[[DeviceKind], bool]
"""A question about a kind of device: it says where a rewrite is made."""


def on_host(kind: DeviceKind) -> bool:
    """Whether it is the processor that Python runs on."""
    return kind.host


def queued(kind: DeviceKind) -> bool:
    """Whether calls return before their work is done."""
    return kind.queued


def in_grids(kind: DeviceKind) -> bool:
    """Whether kernels of ours are grids of programs."""
    return kind.grids


def with_cublas(kind: DeviceKind) -> bool:
    """Whether its products are cuBLAS's."""
    return kind.has(CUBLAS)


def with_cudnn(kind: DeviceKind) -> bool:
    """Whether its convolutions are cuDNN's."""
    return kind.has(CUDNN)


def with_onednn(kind: DeviceKind) -> bool:
    """Whether its products and convolutions are oneDNN's."""
    return kind.has(ONEDNN)


@lru_cache(maxsize=256)
def _named(name: str) -> DeviceKind:
    kind = name.partition(":")[0]
    return _KINDS.get(kind) or DeviceKind(kind)
