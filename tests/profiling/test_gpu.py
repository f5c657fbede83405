"""Kernels of a GPU in the profiler's events: their rows, without a GPU. The events are torch's own class."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent

from lamina.base.target import nvidia
from lamina.ir.plan import Plan
from lamina.peaks import Peaks
from lamina.profiling import kernels
from lamina.profiling.gpu import gpu_times
from lamina.profiling.values import Profile
from lamina.schedule.plan import make_plan
from tests.report.programs import trained

PEAKS = Peaks(3e12, 800e12)


@pytest.fixture(scope="module")
def plans() -> list[Plan]:
    fused = [stage.value for stage in trained().stages if stage.name == "fuse"]
    return [make_plan(one, nvidia()) for one in fused]


def event(name: str, start: float, length: float, device: DeviceType = DeviceType.CUDA) -> Any:
    return FunctionEvent(0, name, 0, start, start + length, device_type=device)


def test_launches_of_one_region_are_told_apart_by_their_order(plans: list[Plan]) -> None:
    forward = plans[0]
    launches = [step.kernel for step in forward.steps if hasattr(step, "kernel")]
    assert launches.count(launches[1]) == 2  # the gelu of both blocks
    events = [event("aten::mm", 0.0, 900.0, DeviceType.CPU), event("cudaLaunchKernel", 1.0, 5.0, DeviceType.CPU)]
    for call in range(3):
        for number, name in enumerate(launches):
            events.append(event(name, 1000.0 * call + 100 * number, 10.0 * (number + 1)))
        events.append(event("ampere_sgemm_128x64", 1000.0 * call + 990, 7.0))
    events.append(event("Memcpy DtoH (Device -> Pageable)", 5000.0, 3.0))
    found = gpu_times(reversed(events), [(forward, None)], PEAKS)
    assert found.others == pytest.approx(24e-6)
    assert len(found.kernels) == len(launches)
    assert {row.calls for row in found.kernels} == {3}
    assert {row.device for row in found.kernels} == {"gpu"}
    assert sorted(row.median for row in found.kernels) == pytest.approx([1e-5 * n for n in range(1, len(launches) + 1)])
    both = [row for row in found.kernels if row.kernel == launches[1]]
    assert len({row.median for row in both}) == 2
    for row in found.kernels:
        assert row.place.startswith("programs.py:")
        assert row.bandwidth_share == pytest.approx(row.nbytes / row.median / 3e12)


def test_variants_and_second_parts_belong_to_their_kernel(plans: list[Plan]) -> None:
    name = next(step.kernel for step in plans[0].steps if hasattr(step, "kernel"))
    events = [event(name, 0.0, 8.0), event(f"{name}_sums", 9.0, 2.0), event(f"{name}_uneven", 20.0, 6.0)]
    (row,) = gpu_times(events, [(plans[0], None)], PEAKS).kernels
    assert (row.kernel, row.calls) == (name, 2)
    assert row.total == pytest.approx(16e-6)
    events = [event(f"{name}_3", 0.0, 8.0), event(f"{name}_3_sums", 9.0, 2.0), event(f"{name}_3", 20.0, 6.0)]
    (row,) = gpu_times(events, [(plans[0], None)], PEAKS).kernels  # a tuner's candidate that was chosen
    assert (row.kernel, row.calls) == (name, 2)


def test_a_kernel_of_several_regions_is_one_row(plans: list[Plan]) -> None:
    forward = plans[0]
    name = next(step.kernel for step in forward.steps if hasattr(step, "kernel"))
    other = replace(forward, name="two")
    found = gpu_times([event(name, 0.0, 8.0), event(name, 9.0, 2.0)], [(forward, None), (other, None)], None)
    (row,) = found.kernels
    assert row.region == f"{forward.name}, two"
    assert row.calls == 2
    other = replace(forward, steps=forward.steps)  # that of another callable of the same name
    found = gpu_times([event(name, 0.0, 8.0), event(name, 9.0, 2.0)], [(forward, None), (other, None)], None)
    (row,) = found.kernels
    assert (row.region, row.calls) == (forward.name, 2)
    assert row.bandwidth_share == 0


def test_a_profile_with_a_gpu_has_its_rows_and_says_its_peaks(
    plans: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(step.kernel for step in plans[0].steps if hasattr(step, "kernel"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(kernels, "measured_peaks", lambda device="cpu": PEAKS)
    monkeypatch.setattr(kernels, "_gpu_plans", lambda held: [(plans[0], None)])
    found, peaks = kernels._on_gpu([event(name, 0.0, 8.0)], [])
    text = str(Profile(found.kernels, 1.0, 0.0, PEAKS, peaks, found.others))
    assert name in text.replace("\n", "")
    assert "on the GPU 0.000 s in kernels of compiled regions, 0.000 s in others and copies; peaks: 3000.0 GB/s" in text


def test_plans_of_a_cpu_are_none_of_a_gpu() -> None:
    assert list(kernels._gpu_plans([trained()])) == []
