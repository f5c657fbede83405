"""A library product with its reader, or one kernel for both: told apart in two plans, and settled by a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lamina.base.target import nvidia
from lamina.ir.index import as_expr
from lamina.ir.loops import BufferView, LibraryCall, LoopProgram
from lamina.ir.plan import KernelCall, Plan
from lamina.ir.plan_verify import verify_plan
from lamina.runtime.cache import Cache
from lamina.schedule.fuse import Fused
from lamina.schedule.memo import Memo, ProductEstimate
from lamina.schedule.plan import make_plan
from lamina.tuning.cuda import RegionTuning
from lamina.tuning.products import ProductChoice, close, libraries, product_choice

pytest.importorskip("triton")

from tests.codegen.triton.test_products import product, reader
from tests.tuning.test_cuda import ALL, FakeBench, FakeDriver, bench, built

assert bench  # a fixture

TARGET = nvidia()


def program(kept: bool) -> LoopProgram:
    """A linear layer, an activation with a residual and two results; ``kept``: the product is returned as well."""
    call, buffers = product(2048, 2048, 512, (False, True), bias=True)
    nest = reader(buffers, 2048, 2048)
    names = ("z", "wide", *(("y",) if kept else ()))
    outputs = tuple(BufferView(n, buffers[n].shape, buffers[n].strides, as_expr(0)) for n in names)
    return LoopProgram("test", ("a", "b", "c", "r"), tuple(buffers.values()), (call, nest), outputs)


def planner(kept: bool, memo: Memo | None = None) -> Callable[[Mapping[str, bool]], Plan]:
    fused = Fused(program(kept), ())
    return lambda settled: make_plan(fused, TARGET, settled, memo)


@pytest.mark.parametrize("kept", [False, True])
def test_the_same_part_of_two_plans(kept: bool) -> None:
    plans = planner(kept)
    ours, theirs = plans({"l_y": True}), plans({"l_y": False})
    assert [type(s) for s in ours.steps] == [KernelCall]
    assert [type(s) for s in theirs.steps] == [LibraryCall, KernelCall]
    ((name, (part,)),) = libraries(ours, theirs).items()
    assert (name, part.product, part.steps) == (ours.kernels[0].name, "l_y", theirs.steps)
    names = tuple(dict.fromkeys(ours.steps[0].buffers))  # type: ignore[union-attr]
    alone = part.plan("0", names)
    verify_plan(alone)
    assert [n for n in alone.inputs if n is not None] == [n for n in names if n != "y"]
    with pytest.raises(ValueError, match="is not at hand"):
        part.plan("0", names[1:])


def test_close_estimates_only() -> None:
    def estimate(ours: float, theirs: float, is_ours: bool) -> dict[str, ProductEstimate]:
        return {"l": ProductEstimate(ours, theirs, is_ours)}

    assert close(estimate(100, 110, True), 1.05) == {"l": True}
    assert close(estimate(100, 110, False), 1.05) == {"l": False}
    assert close(estimate(100, 110, False), 1.14) == {}
    assert close(estimate(105, 100, False), 0.9) == {"l": False}
    assert close(estimate(120, 100, False), 0.9) == {}
    assert close(estimate(100, 250, True), 0.9) == {}


@pytest.fixture
def tuning(tmp_path: Path) -> Callable[..., RegionTuning]:
    """The tuning of the layer when the estimates prefer our kernel, or the library."""

    def make(prefer: bool, kept: bool = False, target: Any = TARGET) -> RegionTuning:
        plans = planner(kept)
        ours, theirs = plans({"l_y": True}), plans({"l_y": False})
        choice = ProductChoice(libraries(ours, theirs), {"l_y": prefer}, plans)
        return RegionTuning(ours, target, 0, Cache(tmp_path), ALL, choice)

    return make


@pytest.mark.parametrize("prefer", [False, True])
@pytest.mark.parametrize("library", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_a_clock_decides(prefer: bool, library: bool, kept: bool, tuning: Callable[..., RegionTuning]) -> None:
    work = tuning(prefer, kept)
    labels = [c.label for c in work.open[0].task.candidates]
    assert labels.index("library") == prefer
    meanwhile = work.meanwhile
    assert meanwhile.library_count == 1
    fastest = labels.index("library") if library else 3
    FakeBench.times = [500.0 if k != fastest else 100.0 for k in range(len(labels))]
    plan = work.finish(built(work), FakeDriver())
    verify_plan(plan)
    assert plan.library_count == library
    assert (plan == meanwhile) == library
    again = tuning(prefer, kept)
    assert not again.open
    assert again.plan == again.meanwhile == plan


@pytest.mark.parametrize("prefer", [False, True])
def test_what_is_not_timed_is_as_estimated(
    prefer: bool, tuning: Callable[..., RegionTuning], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tuning(prefer)
    monkeypatch.setattr("lamina.tuning.cuda.is_capturing", lambda: True)
    assert work.finish(built(work), FakeDriver()).library_count == (not prefer)


def test_sure_estimates_make_no_other_plan() -> None:
    memo = Memo()
    plans = planner(False, memo)
    asked: list[Mapping[str, bool]] = []

    def replan(settled: Mapping[str, bool]) -> Plan:
        asked.append(settled)
        return plans(settled)

    plan = plans({})
    estimates = dict(memo.products)
    (decision,) = (d for d in plan.decisions if d.kind == "product")
    (estimate,) = estimates.values()
    facts = (("library_us", round(estimate.library_us, 1)), ("template_us", round(estimate.ours_us, 1)))
    assert (decision.subject[0], decision.taken, decision.facts) == (*estimates, estimate.is_ours, facts)
    found, choice = product_choice(plan, estimates, replan, 0.9)
    assert bool(asked) == bool(close(estimates, 0.9))
    assert (choice is None) == (not asked)
    assert found.steps
