"""Programs whose nests once left most of a GPU idle are shared by enough programs; and a nest that is not is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.gpu_idle import SCALE, idle_nests, planned
from benchmarks.sweeping.grammar import cases
from lamina.ir.plan import GpuSchedule

KNOWN = [(4, "training"), (37, "training"), (104, "training"), (131, "training"), (202, "forward")]
"""Group norm over five dimensions, sums over a prime number of rows, stacked and constant operands, pairs."""


@pytest.mark.parametrize(("number", "mode"), KNOWN)
def test_enough_programs(number: int, mode: str) -> None:
    (case,) = cases(1, number, SCALE)
    assert not list(idle_nests(case.name, planned(case, mode)))


def test_a_nest_of_few_programs_is_told() -> None:
    (case,) = cases(1, 202, SCALE)
    plan = planned(case, "forward")
    kernels = [replace(k, schedules=tuple(map(_in_one_program, k.schedules))) for k in plan.kernels]
    found = list(idle_nests(case.name, replace(plan, kernels=tuple(kernels))))
    assert found
    assert all(one.programs == 1 for one in found)


def _in_one_program(schedule: object) -> object:
    assert isinstance(schedule, GpuSchedule)
    blocks = tuple(replace(b, size=1 << 30) if b.role == "grid" else b for b in schedule.blocks)
    return replace(schedule, blocks=blocks)
