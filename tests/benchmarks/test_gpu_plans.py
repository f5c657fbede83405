"""A row of the sweep planned for a GPU without one: both regions of a training step, as text."""

from __future__ import annotations

from benchmarks.gpu_idle import SCALE
from benchmarks.gpu_plans import lines, planned
from benchmarks.sweeping.grammar import cases


def test_both_regions_of_a_training_step_are_planned_for_a_gpu() -> None:
    (case,) = cases(1, 6108, SCALE)
    plans, record = planned(case, "fp32", "training")
    assert [plan.name for plan in plans] == ["graph0_forward", "graph0_backward"]
    assert {b.device for plan in plans for b in plan.buffers} == {"cuda:0"}
    assert record.decisions()
    forward = list(lines(plans[0], text=True))
    assert forward[0].startswith("region graph0_forward: 1 launches; inputs and results 56.8 MB")
    assert any("instructions a point" in line for line in forward)
    assert any("@triton.jit" in line for line in forward)


def test_a_forward_alone_is_one_region() -> None:
    (case,) = cases(1, 6415, SCALE)
    (plan,), _ = planned(case, "bf16", "forward")
    assert plan.name == "graph0_inference"
    assert any(" pointwise [" in line for line in lines(plan))
