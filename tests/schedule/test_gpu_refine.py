"""Schedules that the rules chose badly, moved to where they are expected to take much less time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lamina.ir.loops import Nest
from lamina.ir.plan import GpuSchedule, Plan
from lamina.schedule import gpu
from lamina.schedule.gpu import choose
from lamina.schedule.gpu_cost import CostModel
from lamina.schedule.gpu_refine import HOPELESS, ExpectedTime
from lamina.schedule.gpu_space import candidates
from lamina.tuning.values import policy_of
from tests.tuning.plans import TARGET, gpu_plan


def scanned(x: Tensor, y: Tensor) -> Tensor:
    """A running sum along a contiguous axis of an operand, beside one that is contiguous along seventeen columns."""
    return torch.atan2(x, y.transpose(1, 2).abs() + 0.5).cumsum(-1)


def narrow(x: Tensor, y: Tensor) -> Tensor:
    """Sums of short rows over many instructions at a point."""
    return torch.atan2(x, y).tan().erf().sum(2)


def adding(x: Tensor, index: Tensor) -> Tensor:
    return torch.zeros(64).index_add(0, index, torch.atan2(x, x + 1).tan().erf().sum(1))


def plans_of(monkeypatch: pytest.MonkeyPatch, *about: object) -> tuple[Plan, Plan]:
    """The plan by the rules alone, and the one that is used."""
    with monkeypatch.context() as patch:
        patch.setattr(gpu, "refined", lambda nest, facts, found, extents, fits: found)
        rules = gpu_plan(*about)  # type: ignore[arg-type]
    return rules, gpu_plan(*about)  # type: ignore[arg-type]


def schedules(plan: Plan) -> list[GpuSchedule]:
    return [s for k in plan.kernels for s in k.schedules if isinstance(s, GpuSchedule)]


def test_scans_of_long_rows_beside_few_columns_have_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, used = plans_of(monkeypatch, scanned, torch.zeros(11, 17, 60019), torch.zeros(11, 60019, 17))
    changed = [(a, b) for a, b in zip(schedules(plan), schedules(used), strict=True) if a != b]
    assert changed, "the rules leave most processors without a program"
    for before, after in changed:
        assert [b.axes for b in before.blocks] == [b.axes for b in after.blocks]
        assert [b.role for b in before.blocks] == [b.role for b in after.blocks]
        assert (before.stages, before.kind) == (after.stages, after.kind)


def programs(nest: Nest, dtypes: dict[str, str], schedule: GpuSchedule) -> int:
    lengths = {a.name: a.extent.const for a in nest.axes}
    return CostModel(nest, dtypes, TARGET, lengths).programs(schedule)


def test_what_is_changed_is_expected_to_be_much_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    arguments = [(scanned, torch.zeros(11, 17, 60019), torch.zeros(11, 60019, 17))]
    arguments += [(narrow, torch.zeros(17, 127, 41, 41), torch.zeros(17, 127, 41, 41))]
    for about in arguments:
        rules, used = plans_of(monkeypatch, *about)
        for before, after in zip(rules.kernels, used.kernels, strict=True):
            dtypes = {f"b{k}": dtype for k, dtype in enumerate(before.dtypes)}
            for nest, a, b in zip(before.nests, before.schedules, after.schedules, strict=True):
                if a != b:
                    assert isinstance(a, GpuSchedule)
                    assert isinstance(b, GpuSchedule)
                    lengths = {x.name: x.extent.const for x in nest.axes}
                    expected = ExpectedTime(gpu._Chooser(nest, dtypes, TARGET), lengths)
                    assert expected(b) <= HOPELESS * expected(a)
                    assert programs(nest, dtypes, b) >= min(programs(nest, dtypes, a), TARGET.processors // 2)
                    assert b.warps <= max(16, a.warps)
                    compared += 1
    assert compared


def test_a_schedule_that_is_refined_is_where_it_stays() -> None:
    """Choosing is deterministic, and the result is near no other one that promises as much again."""
    first = gpu_plan(narrow, torch.zeros(17, 127, 41, 41), torch.zeros(17, 127, 41, 41))
    again = gpu_plan(narrow, torch.zeros(17, 127, 41, 41), torch.zeros(17, 127, 41, 41))
    assert schedules(first) == schedules(again)


def test_elementwise_nests_and_those_that_add_into_memory_are_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(64, 1 << 16)
    for about in ((lambda t: torch.atan2(t, t + 1).tan().erf(), x), (adding, x, torch.zeros(64, dtype=torch.int64))):
        rules, used = plans_of(monkeypatch, *about)
        pairs = zip(rules.kernels, used.kernels, strict=True)
        for a, b in pairs:
            adds = any(getattr(e, "mode", "set") != "set" for n in a.nests for e in n.body)
            if adds or all(s.kind == "pointwise" for s in a.schedules if isinstance(s, GpuSchedule)):
                assert a.schedules == b.schedules


def test_the_rules_choice_is_timed_beside_the_one_that_took_its_place() -> None:
    timed = 0
    for kernel in gpu_plan(scanned, torch.zeros(11, 17, 60019), torch.zeros(11, 60019, 17)).kernels:
        dtypes = {f"b{k}": dtype for k, dtype in enumerate(kernel.dtypes)}
        rules = choose(kernel.nests[0], dtypes, TARGET, by_rules=True)
        most = policy_of("default").for_region(1).candidates
        first, *others = (r.schedule for r in candidates(kernel.nests[0], dtypes, TARGET, most=most))
        assert first == choose(kernel.nests[0], dtypes, TARGET)
        if first != rules:
            assert rules in others
            timed += 1
    assert timed


def test_small_nests_are_not_looked_at() -> None:
    plan = gpu_plan(narrow, torch.zeros(2, 16, 8, 8), torch.zeros(2, 16, 8, 8))
    (kernel,) = plan.kernels
    dtypes = {f"b{k}": dtype for k, dtype in enumerate(kernel.dtypes)}
    assert choose(kernel.nests[0], dtypes, TARGET, True) == kernel.schedules[0]
