"""The processor that kernels are scheduled for."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LANES", "Target"]

LANES = 16
"""Elements of a vector that prices are given for: float32 with AVX-512."""

_VECTOR_BYTES = {"avx512": 64, "avx2": 32, "plain": 0}


@dataclass(frozen=True, slots=True)
class Target:
    """A CPU: its instruction set, register size in bytes (0: no SIMD), threads, cache bytes of one core, and of all."""

    isa: str = "avx2"
    vector_bytes: int = 32
    threads: int = 1
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 512 * 1024
    llc_bytes: int = 32 * 1024 * 1024

    @classmethod
    def of(cls, isa: str, threads: int, l1_bytes: int = 32 * 1024, l2_bytes: int = 512 * 1024) -> Target:
        """The target with the register size that belongs to ``isa``."""
        return cls(isa, _VECTOR_BYTES[isa], threads, l1_bytes, l2_bytes)
