"""The seeded bugs, by the part of the compiler they are in."""

from __future__ import annotations

from benchmarks.seeded.bug import Bug
from benchmarks.seeded.kernels import KERNELS
from benchmarks.seeded.lowerings import LOWERINGS
from benchmarks.seeded.rewrites import REWRITES
from benchmarks.seeded.schedules import SCHEDULES
from benchmarks.seeded.surroundings import SURROUNDINGS

__all__ = ["BUGS", "Bug"]

BUGS: tuple[Bug, ...] = (*LOWERINGS, *REWRITES, *SCHEDULES, *KERNELS, *SURROUNDINGS)
