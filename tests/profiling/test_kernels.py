"""Kernels for CPUs are events of torch.profiler, and lamina profile tells what each takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from typer.testing import CliRunner

import lamina
from lamina.cli.app import app
from lamina.peaks import Peaks, measured_peaks
from lamina.profiling.kernels import profiled


def two_norms(x: Tensor, w: Tensor) -> Tensor:
    x = torch.softmax(x @ w, -1)
    return torch.softmax(x @ w, -1)


def compiled(fn: Any) -> Any:
    return lamina.compile(fn, options={"compare_eager": "off"})


def events(run: Any) -> list[str]:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run()
    return [e.name for e in seen.events() if e.name.startswith("lamina")]


def test_each_launch_is_an_event_with_its_own_line() -> None:
    fast, x, w = compiled(two_norms), torch.randn(8, 6), torch.randn(6, 6)
    want = fast(x, w)
    names = events(lambda: torch.testing.assert_close(fast(x, w), want, rtol=0, atol=0))
    region, *kernels = sorted(names, key=lambda n: n.startswith("lamina::"))
    assert region == "lamina region two_norms0_inference"
    assert len(kernels) == 2
    assert len({name.split(" ")[0] for name in kernels}) == 1  # two launches of one kernel
    line = two_norms.__code__.co_firstlineno
    assert [name.split(" ")[1] for name in kernels] == [f"test_kernels.py:{line + n}" for n in (1, 2)]


def test_kernels_of_the_backward_are_events_too() -> None:
    fast, x, w = compiled(two_norms), torch.randn(8, 6, requires_grad=True), torch.randn(6, 6)
    names = events(lambda: fast(x, w).sum().backward())
    assert {"lamina region two_norms0_forward", "lamina region two_norms0_backward"} <= {*names}
    assert any("backward" in name for name in names if name.startswith("lamina::"))


def test_a_profile_has_times_bytes_and_shares() -> None:
    fast, x, w = compiled(two_norms), torch.randn(64, 32), torch.randn(32, 32)
    found = profiled(lambda: [fast(x, w) for _ in range(3)])
    assert [k.calls for k in found.kernels] == [3, 3]
    for kernel in found.kernels:
        assert kernel.nbytes == 2 * 64 * 32 * 4
        assert 0 < kernel.median <= kernel.total <= found.regions <= found.seconds
        assert kernel.bandwidth_share > 0
    assert str(found).count("softmax") >= 2


def test_peaks_are_measured() -> None:
    peaks = measured_peaks()
    assert isinstance(peaks, Peaks)
    assert peaks.bytes_per_second > 1e8
    assert peaks.flops_per_second > 1e8


def test_a_script_is_profiled(tmp_path: Path) -> None:
    script = tmp_path / "steps.py"
    script.write_text(
        "import torch, lamina\n"
        "def main():\n"
        "    f = lamina.compile(lambda x: x.exp().sum(-1), options={'compare_eager': 'off'})\n"
        "    for _ in range(4):\n"
        "        f(torch.ones(5, 7))\n"
        "main()\n"
    )
    done = CliRunner().invoke(app, ["profile", "--json", str(script)], catch_exceptions=False)
    (kernel,) = json.loads(done.stdout[done.stdout.index("{") :])["kernels"]
    assert kernel["calls"] == 4
    assert kernel["place"].startswith("steps.py:3")
    assert kernel["nbytes"] == (35 + 5) * 4
