"""Reports and profiles of what ran on a GPU: times, shares of the peaks, registers, programs that run by themselves."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lamina
from lamina.ir.plan import KernelCall, Plan
from lamina.profiling.kernels import profiled
from lamina.profiling.values import Profile
from lamina.report import recording
from lamina.report.document import document
from lamina.runtime import cuda_driver

CALLS = 20


class Block(nn.Module):
    """Layer norm, product, GELU, product, sum: kernels with one part and with two, and calls of the library."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(1024), nn.Linear(1024, 4096), nn.Linear(4096, 1024)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.down(nn.functional.gelu(self.up(self.norm(x)), approximate="tanh"))
        return x + hidden


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block()).cuda().bfloat16()


def plans_of(record: lamina.Record) -> list[Plan]:
    return [stage.value for stage in record.stages if isinstance(stage.value, Plan)]


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """The report of some training steps of the model, which its record waits for, and the kernels loaded for them.

    Of one name there are as many kernels as schedules were timed. Another compilation might choose other schedules: a
    search that time ended goes on.
    """
    torch.compiler.reset()
    waiting, recording._waiting = recording._waiting, recording._Waiting()
    loaded: dict[str, list[Any]] = defaultdict(list)
    load = cuda_driver.Driver._load

    def noted(self: Any, cubin: Any, device: int) -> Any:
        kernel = load(self, cubin, device)
        loaded[cubin.function].append(kernel)
        return kernel

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cuda_driver.Driver, "_load", noted)
            patch.setattr(cuda_driver.Driver, "load", noted)  # those that are loaded already, too
            path = tmp_path_factory.mktemp("report") / "out.json"
            compiled = lamina.compile(model(), dynamic=False, options={"report": str(path), "strict": True})
            x = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16)
            for _ in range(CALLS):
                compiled(x).float().square().mean().backward()
            torch.cuda.synchronize()
            return document(compiled.record), loaded
    finally:
        recording._waiting = waiting


@pytest.fixture(scope="module")
def report(reported: tuple[dict[str, Any], dict[str, Any]]) -> dict[str, Any]:
    """The report alone."""
    return reported[0]


@pytest.fixture(scope="module")
def profile() -> tuple[Profile, list[Plan]]:
    torch.compiler.reset()
    compiled = lamina.compile(model(), dynamic=False, options={"strict": True})
    x = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16)

    def steps() -> None:
        for _ in range(CALLS):
            compiled(x).float().square().mean().backward()
        torch.cuda.synchronize()

    steps()
    found = profiled(steps)
    return found, plans_of(compiled.record)


def test_nothing_of_a_report_fails(report: dict[str, Any]) -> None:
    assert report["faults"] == []
    assert {region["kind"] for region in report["regions"]} == {"forward", "backward"}


def test_kernels_have_times_and_shares_that_are_possible(report: dict[str, Any]) -> None:
    peaks = report["peaks"]["gpu"]
    assert 1e12 < peaks["bytes_per_second"] < 1e13
    assert 2e14 < peaks["flops_per_second"] < 2e15
    launched = [kernel for kernel in report["kernels"] if kernel["launches"]]
    assert launched
    for kernel in launched:
        print(kernel["name"], kernel.get("seconds"), kernel.get("share"), kernel["bytes"])
    for kernel in launched:
        assert kernel["device"] == "gpu"
        assert kernel["runs"] >= 5, kernel["name"]
        assert 1e-7 <= kernel["seconds"] < 1e-2, kernel["name"]
        # what a second-level cache holds may come faster than memory copies
        assert 0 < kernel["share"] < (1.1 if kernel["bytes"] > 1e8 else 4), kernel["name"]


def test_registers_and_spills_are_the_driver_s(reported: tuple[dict[str, Any], dict[str, Any]]) -> None:
    report, loaded = reported
    told = {kernel["name"]: kernel for kernel in report["kernels"]}
    both = told.keys() & loaded.keys()
    assert both
    for name in both:
        found = {(k.registers, k.spilled) for k in loaded[name]}
        assert (told[name]["registers"], told[name]["local"]) in found, (told[name], found)


def test_kernels_have_ptx_and_machine_code_that_are_linked(report: dict[str, Any]) -> None:
    keys = {text["key"] for text in report["texts"]}
    for kernel in report["kernels"]:
        assert {f"{level}:{kernel['name']}" for level in ("kernel", "ptx", "assembly")} <= keys


def test_programs_of_kernels_run(report: dict[str, Any], tmp_path: Path) -> None:
    texts = {text["key"]: text["text"] for text in report["texts"]}
    ran = 0
    for kernel in report["kernels"]:
        program = kernel.get("program")
        if program is None:
            continue
        printed = run(tmp_path, program, texts[f"kernel:{kernel['name']}"])
        print(kernel["name"], printed)
        assert any(" us" in line for line in printed), kernel["name"]
        assert any(" is written: [" in line for line in printed), kernel["name"]
        ran += 1
    assert ran


def test_programs_of_regions_run(report: dict[str, Any], tmp_path: Path) -> None:
    texts = {text["key"]: text["text"] for text in report["texts"]}
    for region in report["regions"]:
        printed = run(tmp_path, region["program"], texts[f"{region['kind']}:{region['name']}"])
        assert len(printed) >= 1
        print(region["name"], printed)


def test_programs_of_kernels_with_descriptors_run(tmp_path: Path) -> None:
    torch.compiler.reset()
    sizes = (8192, 4096, 4096)
    x, w = (torch.randn(*s, device="cuda", dtype=torch.bfloat16) for s in (sizes[:2], sizes[1:]))
    compiled = lamina.compile(lambda x, w: torch.relu(x @ w) ** 2, mode="max-autotune", dynamic=False)
    compiled(x, w)
    found = document(compiled.record)
    assert found["faults"] == []
    texts = {text["key"]: text["text"] for text in found["texts"]}
    for kernel in found["kernels"]:
        if kernel.get("program"):
            text = texts[f"kernel:{kernel['name']}"]
            print(kernel["name"], "make_tensor_descriptor" in text, run(tmp_path, kernel["program"], text))


def test_a_profile_names_the_plan_s_kernels(profile: tuple[Profile, list[Plan]]) -> None:
    found, plans = profile
    print(found)
    planned = {step.kernel for plan in plans for step in plan.steps if isinstance(step, KernelCall)}
    on_gpu = {row.kernel for row in found.kernels if row.device == "gpu"}
    assert on_gpu
    assert on_gpu <= planned
    assert found.gpu_peaks is not None
    assert found.other_gpu_seconds > 0  # the library's products


def test_launches_of_a_profile_come_as_often_as_they_are_made(profile: tuple[Profile, list[Plan]]) -> None:
    found, plans = profile
    launches = [step.kernel for step in plans[-1].steps if isinstance(step, KernelCall)]
    assert launches
    for row in found.kernels:
        if row.device == "gpu":
            assert row.calls % CALLS == 0, (row.kernel, row.calls)
            assert 0 < row.median < 1e-2
            assert row.bandwidth_share < 4


def run(folder: Path, program: dict[str, str], text: str) -> list[str]:
    file = folder / "program.py"
    file.write_text(program["before"] + text + program["after"])
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()
