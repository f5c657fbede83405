"""What a nest is expected to take on a target: the one entry to the cost models of loops and of grids of programs."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.base.target import Target
from lamina.ir.loops import Nest
from lamina.ir.plan import GpuSchedule, Schedule
from lamina.schedule import cpu_space, gpu
from lamina.schedule.cpu_cost import CostModel
from lamina.schedule.gpu_facts import NestFacts, guess
from lamina.schedule.gpu_refine import ExpectedTime

__all__ = ["choose", "expected_us"]


def choose(nest: Nest, dtypes: Mapping[str, str], target: Target, alone: bool = False) -> Schedule | GpuSchedule:
    """The schedule of a nest that is used when nothing is measured. ``dtypes`` gives each flat buffer's element type;
    ``alone``: the nest has a kernel of its own.
    """
    return gpu.choose(nest, dtypes, target, alone) if target.grids else cpu_space.choose(nest, dtypes, target)


def expected_us(
    nest: Nest,
    dtypes: Mapping[str, str],
    target: Target,
    schedule: Schedule | GpuSchedule | None = None,
    lengths: Mapping[str, int] | None = None,
) -> float:
    """Microseconds that the nest is expected to take, with ``schedule`` or the one that is used when nothing is
    measured. ``lengths`` gives axes their lengths where they are known better than the nest knows them.
    """
    sizes = {a.name: guess(a.extent) for a in nest.axes} | dict(lengths or {})
    chosen = choose(nest, dtypes, target) if schedule is None else schedule
    if isinstance(chosen, GpuSchedule):
        return ExpectedTime(NestFacts(nest, dtypes, target), sizes)(chosen)
    return CostModel(nest, dtypes, target, sizes)(chosen)
