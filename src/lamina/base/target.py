"""The device that kernels are made for, as one value: what scheduling, code generation and clocks ask of it.

``target_of`` (``machine_target.py``) makes that of a device of this machine; ``cpu`` and ``nvidia`` describe any one.
"""

from __future__ import annotations

from dataclasses import dataclass

from lamina.base.devices import DeviceKind, kind_of

__all__ = ["BULK_COPIES", "BYTE_FLOATS", "CLUSTERS", "TENSOR_CORES", "Target", "cpu", "nvidia"]

TENSOR_CORES, BYTE_FLOATS = "tensor cores", "conversions of floats of 8 bits"
CLUSTERS, BULK_COPIES = "clusters of programs", "an engine that copies tiles"
"""What some devices can do: products of tiles read ahead of their use; programs that join what they reduced."""

_SINCE = {TENSOR_CORES: 80, BYTE_FLOATS: 89, CLUSTERS: 90, BULK_COPIES: 90}
"""Compute capabilities, times ten, from which NVIDIA GPUs have them."""
_VECTOR_BYTES = {"avx512": 64, "avx2": 32, "plain": 0}
"""Bytes of a register of SIMD, by instruction set; 0: no SIMD."""


@dataclass(frozen=True, slots=True)
class Target:
    """A device. Numbers are zero where it has no such thing, or where nobody asks for it.

    ``isa``: the instruction set of a CPU. ``processors``: threads of a CPU, streaming multiprocessors of a GPU.
    ``vector_bytes``: a register of SIMD. ``l1_bytes``, ``l2_bytes``: caches of one processor, the latter of all
    processors of a GPU; ``llc_bytes``: the last cache, of all of them; ``shared_bytes``: memory in which threads of a
    program exchange values, on one processor. ``registers`` (of 32 bits), ``resident_threads`` and
    ``resident_programs``: what a processor holds at once. ``copy_gbs``: what a copy reads and writes in a second.
    ``architecture``: which machine code it runs, as a number that its compiler knows. ``features``: what it can do that
    others of its kind cannot. ``approximate``: kernels may use approximations of the hardware that keep the accuracy
    contract (``numerics="fast"``).
    """

    kind: DeviceKind
    name: str
    processors: int
    isa: str = ""
    vector_bytes: int = 0
    l1_bytes: int = 0
    l2_bytes: int = 0
    llc_bytes: int = 0
    shared_bytes: int = 0
    registers: int = 0
    resident_threads: int = 0
    resident_programs: int = 0
    copy_gbs: float = 0.0
    architecture: int = 0
    features: frozenset[str] = frozenset()
    approximate: bool = False

    @property
    def grids(self) -> bool:
        """Whether a kernel is a grid of programs, each on tiles; else it is loops, of which threads take parts."""
        return self.kind.grids

    def has(self, feature: str) -> bool:
        """Whether the device has one of the features named here."""
        return feature in self.features


def cpu(
    isa: str = "avx2",
    threads: int = 1,
    l1_bytes: int = 32 * 1024,
    l2_bytes: int = 512 * 1024,
    llc_bytes: int = 32 * 1024 * 1024,
) -> Target:
    """A CPU with an instruction set, so many threads, and caches in bytes of one core, the last of all."""
    vector = _VECTOR_BYTES[isa]
    return Target(kind_of("cpu"), isa, threads, isa, vector, l1_bytes, l2_bytes, llc_bytes)


def nvidia(
    name: str = "NVIDIA H200",
    processors: int = 132,
    capability: int = 90,
    copy_gbs: float = 4250.0,
    l2_bytes: int = 50 * 1024 * 1024,
    shared_bytes: int = 227 * 1024,
    approximate: bool = True,
) -> Target:
    """An NVIDIA GPU; ``capability`` is its compute capability times ten (90 for sm_90).

    Registers of a multiprocessor are as many since Kepler, threads and programs are those of sm_80 and sm_90: of others
    with fewer the estimates are too low.
    """
    return Target(
        kind_of("cuda"),
        name,
        processors,
        l2_bytes=l2_bytes,
        llc_bytes=l2_bytes,
        shared_bytes=shared_bytes,
        registers=65536,
        resident_threads=2048,
        resident_programs=32,
        copy_gbs=copy_gbs,
        architecture=capability,
        features=frozenset(feature for feature, since in _SINCE.items() if capability >= since),
        approximate=approximate,
    )
