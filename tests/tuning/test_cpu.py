"""Schedules of CPU kernels chosen by a clock: which are asked for, what is kept, and what a second process builds."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina
from lamina.backends.cpu import CpuBackend
from lamina.base import recovery
from lamina.base.decision import Decision
from lamina.errors import StageFailed
from lamina.ir.loops import Buffer, Nest
from lamina.ir.plan import KernelCall
from lamina.record import Record
from lamina.runtime.build import BuildResult
from lamina.runtime.compilation import Running
from lamina.runtime.kernel import KernelError, KernelUnit
from lamina.tuning import cpu_bench
from lamina.tuning.cpu import CpuTuning
from lamina.tuning.cpu_bench import CpuBench
from lamina.tuning.measure import Sampler
from lamina.tuning.values import Tuned
from tests.processes import python


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x * 2, -1)


class FakeBench:
    """Candidate number ``fastest`` takes half as long as the others."""

    fastest = 0
    opened = 0

    def __init__(self, call: KernelCall, nests: Sequence[Nest], buffers: Mapping[str, Buffer], other: int) -> None:
        FakeBench.opened += 1
        self.made = 0

    def sampler(self, kernel: Callable[..., int]) -> Sampler:
        us = 50.0 if self.made == FakeBench.fastest else 100.0
        self.made += 1
        return lambda samples: [us] * samples


@pytest.fixture(autouse=True)
def two_threads() -> None:
    """Schedules differ in the threads that share their loops; what a machine has decides nothing here."""
    torch.set_num_threads(2)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> type[FakeBench]:
    monkeypatch.setattr(CpuTuning, "bench", FakeBench)
    FakeBench.fastest, FakeBench.opened = 0, 0
    return FakeBench


def run(folder: Path, function: Callable[..., Any] = softmax, mode: str = "max-autotune", **options: Any) -> Record:
    """The record of a function compiled anew and called once; its result is eager's."""
    torch.compiler.reset()
    given = {"cache_dir": str(folder), "strict": True, **options}
    compiled = lamina.compile(function, mode=mode, dynamic=False, options=given)
    x = torch.randn(256, 512)
    torch.testing.assert_close(compiled(x), function(x))
    return compiled.record  # type: ignore[no-any-return]


def tuned(record: Record) -> Decision:
    (found,) = record.decisions("tune")
    return found


def built(record: Record, name: str) -> BuildResult:
    (found,) = [s.value for s in record.stages if s.name == name]
    assert isinstance(found, BuildResult)
    return found


def test_the_fastest_stays_and_every_candidate_has_a_decision(bench: type[FakeBench], tmp_path: Path) -> None:
    bench.fastest = 2
    record = run(tmp_path, verify=True)
    decision = tuned(record)
    assert decision.taken
    assert "measured: 100% before the best guess" in decision.reason
    told = record.decisions("candidate")
    assert 2 < len(told) <= 8
    assert [d.taken for d in told] == [k == 2 for k in range(len(told))]
    assert told[2].reason == "50.0 us"
    assert dict(told[2].facts)["us"] == 50.0
    assert built(record, "build chosen").compiled == 0


def test_the_best_guess_stays_where_no_other_is_faster(bench: type[FakeBench], tmp_path: Path) -> None:
    assert not tuned(run(tmp_path)).taken


def test_nothing_is_timed_in_the_default_mode(bench: type[FakeBench], tmp_path: Path) -> None:
    for mode in ("default", "reduce-overhead"):
        record = run(tmp_path, mode=mode)
        assert not record.decisions("tune")
        assert built(record, "build").compiled + built(record, "build").reused == 1
    assert bench.opened == 0


def test_a_later_compilation_builds_the_winner_only(bench: type[FakeBench], tmp_path: Path) -> None:
    bench.fastest = 1
    winner = dict(tuned(run(tmp_path)).facts)["winner"]
    bench.fastest = 0
    record = run(tmp_path)
    assert dict(tuned(record).facts)["winner"] == winner
    assert "remembered" in tuned(record).reason
    assert (built(record, "build").compiled, built(record, "build").reused) == (0, 1)
    assert bench.opened == 1


_PROGRAM = """
import json, sys, torch, lamina
from lamina.tuning import cpu
cpu._HELD_UP = float("inf")  # however busy the machine is, what is timed is kept
def f(x):
    return torch.softmax(x * 2, -1)
compiled = lamina.compile(f, mode="max-autotune", dynamic=False, options={"cache_dir": sys.argv[1], "strict": True})
compiled(torch.randn(256, 512))
(decision,) = compiled.record.decisions("tune")
(built,) = [s.value for s in compiled.record.stages if s.name == "build"]
print(json.dumps([decision.reason, dict(decision.facts)["winner"], built.compiled, built.reused]))
"""


def test_a_second_process_times_nothing_and_builds_the_winner_only(tmp_path: Path) -> None:
    def process() -> list[Any]:
        command = [*python(), "-c", _PROGRAM, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found: list[Any] = json.loads(done.stdout)
        return found

    first, second = process(), process()
    assert first[0].startswith("measured")
    assert first[2] > 2
    assert second[0].startswith("remembered")
    assert second[1:] == [first[1], 0, 1]


def test_a_candidate_with_other_results_drops_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = CpuBench.sampler

    def sampler(self: CpuBench, kernel: Callable[..., int]) -> Sampler:
        first = not hasattr(self, "seen")
        self.seen = True

        def wrong(*arguments: int) -> int:
            code = kernel(*arguments)
            self.tensors[self.written[0]].add_(0.1)
            return code

        return real(self, kernel if first else wrong)

    monkeypatch.setattr(CpuBench, "sampler", sampler)
    record = run(tmp_path)
    assert not tuned(record).taken
    reasons = [d.reason for d in record.decisions("candidate")[1:]]
    assert reasons
    assert all("is not what the first schedule gives" in reason for reason in reasons)


def test_where_sums_must_not_change_candidates_round_alike(bench: type[FakeBench], tmp_path: Path) -> None:
    record = run(tmp_path, numerics="eager")
    (found,) = [s.value for s in record.stages if isinstance(s.value, Tuned)]
    schedules = [c.value for choice in found.choices for c in choice.task.candidates]
    assert len(schedules) > 1
    assert len({(s.kind, s.outer, s.inner, s.vector, s.unroll) for s in schedules}) == 1


def test_deterministic_algorithms_are_not_chosen_by_a_clock(bench: type[FakeBench], tmp_path: Path) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        fast, exact = (run(tmp_path, numerics=numerics) for numerics in ("fast", "eager"))
    finally:
        torch.use_deterministic_algorithms(False)
    assert tuned(fast).reason == "model: deterministic algorithms are asked for"
    assert tuned(exact).reason.startswith("measured")


def test_sizes_that_change_are_left_to_the_model(bench: type[FakeBench], tmp_path: Path) -> None:
    compiled = lamina.compile(
        lambda x: torch.softmax(x * 2, -1), mode="max-autotune", dynamic=True, options={"cache_dir": str(tmp_path)}
    )
    compiled(torch.randn(256, 512))
    assert [d.reason for d in compiled.record.decisions("tune")] == ["model: sizes change from call to call"]
    assert bench.opened == 0


def test_a_tuner_that_fails_leaves_the_models_schedules(
    bench: type[FakeBench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*about: Any) -> Any:
        raise KeyError("no such thing")

    for name in ("finish", "_begin"):
        with monkeypatch.context() as patch:
            patch.setattr(CpuTuning, name, broken)
            patch.setattr(recovery, "_told", set())
            with pytest.warns(UserWarning, match=r"timing schedules failed: KeyError: 'no such thing'"):
                record = run(tmp_path / name, strict=False)
            assert not tuned(record).taken
            with pytest.raises(StageFailed, match="timing schedules failed"):
                run(tmp_path / name)


def test_what_a_kernel_changes_is_put_back_and_the_caches_are_taken(tmp_path: Path) -> None:
    """An update in place, repeated without that, would end in numbers that no program has."""
    seen: list[float] = []

    def step(p: Tensor) -> Tensor:
        return p.mul_(0.5)

    class Watched(CpuBench):
        def sampler(self, kernel: Callable[..., int]) -> Sampler:
            def watched(*arguments: int) -> int:
                seen.append(float(self.tensors[self.changed[0]].abs().max()))
                return kernel(*arguments)

            return super().sampler(watched)

    torch.compiler.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuTuning, "bench", Watched)
        patch.setattr(cpu_bench, "_LEAST", 0.0)
        compiled = lamina.compile(step, mode="max-autotune", dynamic=False, options={"cache_dir": str(tmp_path)})
        p = torch.ones(1 << 20)
        compiled(p)
    assert torch.equal(p, torch.full_like(p, 0.5))
    assert len(seen) > 10
    assert min(seen) > 0.2


def test_threads_that_cannot_run_decide_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another program has the cores, one thread seems many times as fast as all of them."""

    class Busy(FakeBench):
        def sampler(self, kernel: Callable[..., int]) -> Sampler:
            self.made += 1
            us = 60.0 if self.made == 2 else 8000.0
            return lambda samples: [us] * samples

    monkeypatch.setattr(CpuTuning, "bench", Busy)
    record = run(tmp_path)
    assert not tuned(record).taken
    assert "holds up the threads" in tuned(record).reason
    assert "remembered" not in tuned(run(tmp_path)).reason


def test_kernels_that_fail_beside_their_candidates_are_built_alone(
    bench: type[FakeBench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Candidates take compilers' time, which has a limit."""
    real = CpuBackend.built_together

    def build(self: CpuBackend, region: str, groups: list[list[KernelUnit]], running: Running) -> list[BuildResult]:
        done = real(self, region, groups, running)
        late = KernelError("the time for compilers was over")
        return [replace(d, errors={g[0].name: late}) for d, g in zip(done, groups, strict=True)]

    monkeypatch.setattr(CpuBackend, "built_together", build)
    record = run(tmp_path)
    assert tuned(record).reason == "kernels were not built beside their candidates, and are built alone"
    assert not record.decisions("fallback")
    assert bench.opened == 0
