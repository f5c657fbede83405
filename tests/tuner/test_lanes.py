"""Several candidates at a time on one machine, each on cores of its own, and on a GPU of its own if it needs one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lamina
from lamina.errors import BadArgument
from lamina.tuner import lanes, search
from lamina.tuner.journal import Journal
from lamina.tuner.lanes import Lanes
from lamina.tuner.process import Processes
from lamina.tuner.programs import Subject
from lamina.tuner.samples import samples_of
from lamina.tuner.settings import TorchSettings
from lamina.tuner.values import Candidate
from lamina.tuner.worker import Job
from tests.tuner.models import batch, small

CPU = torch.device("cpu")
CANDIDATES = tuple(
    Candidate(name, "import", {"target": f"tests.tuner.planted:{name}"})
    for name in ("constant", "segmentation_fault", "wrong_dtype", "slower")
)


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def cores(model: Callable[..., Any]) -> Callable[..., Any]:
    """A candidate whose row says which cores it may use; it lasts until another is at work."""
    time.sleep(0.5)
    raise ValueError(f"cores {sorted(os.sched_getaffinity(0))}")


def two_cores() -> list[int]:
    found = sorted(os.sched_getaffinity(0))
    if len(found) < 2:
        pytest.skip("one core")
    return found


def processes() -> Processes:
    return Processes(Subject(small(), samples_of(batch())))


def test_rows_are_those_of_one_at_a_time(tmp_path: Path, one_thread: None) -> None:
    two_cores()

    def tuned(executor: str) -> list[tuple[str, str]]:
        found = lamina.tune(
            small(), batch(), candidates=CANDIDATES, seconds=0.1, journal=tmp_path / executor, executor=executor
        )
        assert len(Journal(tmp_path / executor).rows()) >= 1 + len(CANDIDATES)
        return [(row.candidate.name, row.verdict) for row in found.rows[:4]]

    assert tuned("local:2") == tuned("local")


def test_each_has_cores_of_its_own() -> None:
    found = two_cores()
    mine = [Candidate(str(k), "import", {"target": "tests.tuner.test_lanes:cores"}) for k in range(4)]
    jobs = [Job(candidate, TorchSettings.here(), 0.1) for candidate in mine]
    with Lanes(processes(), 2, CPU, 1) as workers:
        rows = list(workers.rows(jobs, lambda job: 60.0, lambda job, stage: None))
    assert sorted(number for number, _, _ in rows) == [0, 1, 2, 3]
    assert {row.reason.partition("cores ")[2] for _, row, _ in rows} == {f"[{found[0]}]", f"[{found[1]}]"}


def test_a_search_that_ends_waits_for_no_candidate() -> None:
    hang = Candidate("hang", "import", {"target": "tests.tuner.planted:hang"})
    jobs = [Job(c, TorchSettings.here(), 0.1) for c in (CANDIDATES[0], hang)]
    start = time.monotonic()
    with Lanes(processes(), 1, CPU, 1) as workers:
        rows = workers.rows(jobs, lambda job: 100.0, lambda job, stage: None)
        assert next(rows)[1].verdict == "refused"
        rows.close()
    assert time.monotonic() - start < 60


def test_what_goes_wrong_in_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    made = processes()
    monkeypatch.setattr(made, "examine", lambda *args, **given: 1 / 0)
    with Lanes(made, 1, CPU, 1) as workers, pytest.raises(ZeroDivisionError):
        list(workers.rows([Job(CANDIDATES[0], TorchSettings.here())], lambda job: 9.0, lambda job, stage: None))
    assert list(Lanes(made, 1, CPU, 1).rows([Job(CANDIDATES[0], TorchSettings.here())], lambda job: 0.0, print)) == []


def test_what_cannot_be_side_by_side_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).sin()

    for executor in ("local:0", "local:", "local:x", "local:-1", "ray:2", "locals:2", 4):
        with pytest.raises(BadArgument, match=r"(?s)executor is .*give one of local, local:4, ray"):
            lamina.tune(small(), batch(), executor=executor, journal=False)  # type: ignore[arg-type]
    monkeypatch.setattr(lanes, "_cores", lambda: [0, 1, 2, 3])
    with pytest.raises(BadArgument, match="3 candidates at a time with 2 threads each need 6 cores, and there are 4"):
        Lanes(processes(), 3, CPU, 2)
    with pytest.raises(BadArgument, match=r"(?s)cannot be sent to another process.*top level"):
        Lanes(Processes(Subject(Local(16, 4), samples_of(batch()))), 1, CPU, 1)


def seen(model: Callable[..., Any]) -> Callable[..., Any]:
    """A candidate whose row says which GPUs and how many cores it may use."""
    time.sleep(0.5)
    raise ValueError(f"seen {os.environ.get('CUDA_VISIBLE_DEVICES')} {len(os.sched_getaffinity(0))}")


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a host with GPUs says it: the first and the third are of one kind."""
    kinds = [("H200", 9, 0, 141), ("L4", 8, 9, 24), ("H200", 9, 0, 141)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(kinds))
    monkeypatch.setattr(lanes, "_kind", lambda number: kinds[number])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(("visible", "names"), [(None, {"0", "2"}), ("5, 3,GPU-1f", {"5", "GPU-1f"})])
def test_each_has_a_gpu_of_its_own(
    three_gpus: None, monkeypatch: pytest.MonkeyPatch, visible: str | None, names: set[str]
) -> None:
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    share = max(1, len(two_cores()) // 2)
    jobs = [
        Job(Candidate(str(k), "import", {"target": "tests.tuner.test_lanes:seen"}), TorchSettings.here(), 0.1)
        for k in range(4)
    ]
    with Lanes(processes(), 2, torch.device("cuda", 0), 64) as workers:
        assert workers.slots == 2
        rows = list(workers.rows(jobs, lambda job: 60.0, lambda job, stage: None))
    assert {row.reason.partition("seen ")[2] for _, row, _ in rows} == {f"{name} {share}" for name in names}


def test_gpus_that_are_not_there_are_said(three_gpus: None) -> None:
    with pytest.raises(BadArgument, match=r"(?s)need 3 GPUs of one kind, and there are 2 like cuda.*ray"):
        Lanes(processes(), 3, torch.device("cuda"), 1)
    with pytest.raises(BadArgument, match=r"(?s)the model is on cuda:1.*to cuda:0"):
        Lanes(processes(), 2, torch.device("cuda:1"), 1)


def test_gpus_that_were_named_too_late_are_said(three_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    with pytest.raises(BadArgument, match=r"(?s)names 1 GPUs, and torch sees 3.*before the process asks"):
        Lanes(processes(), 1, torch.device("cuda"), 1)


@pytest.mark.parametrize("executor", ["local:2", "ray"])
def test_a_model_of_several_gpus_has_no_process_that_sees_one(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = (torch.device("cuda:0"), torch.device("cuda:1"))
    monkeypatch.setattr(search, "devices_of", lambda subject: gpus)
    with pytest.raises(BadArgument, match=r'(?s)the model is on cuda:0, cuda:1, and.*give executor="local"'):
        lamina.tune(small(), batch(), executor=executor, journal=False)


def test_candidates_share_no_core_while_there_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2, 3, 5}, raising=False)
    monkeypatch.setattr(
        lanes, "_core_of", lambda processor: {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}.get(processor, "4-5")
    )
    assert lanes._cores() == [0, 2, 5, 1, 3]
