"""The GPU that kernels are scheduled for."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GpuTarget"]


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """An NVIDIA GPU: name, streaming multiprocessors, compute capability times ten (90 for sm_90), copy bandwidth in
    GB/s (reads and writes counted), second-level cache and shared memory of one multiprocessor in bytes.

    ``approximate`` allows hardware approximations that keep the accuracy contract (``numerics="fast"``).
    """

    name: str = "NVIDIA H200"
    processors: int = 132
    capability: int = 90
    copy_gbs: float = 4250.0
    l2_bytes: int = 50 * 1024 * 1024
    shared_bytes: int = 227 * 1024
    approximate: bool = True
