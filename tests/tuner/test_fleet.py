"""Candidates on the workers of a Ray cluster: this machine's, and machines that are none of its kind or die."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lamina
from lamina.errors import BadArgument, LaminaWarning
from lamina.tuner import fleet, search
from lamina.tuner.fleet import Fleet
from lamina.tuner.journal import Journal
from lamina.tuner.programs import Subject
from lamina.tuner.samples import samples_of
from lamina.tuner.settings import TorchSettings
from lamina.tuner.values import Candidate
from lamina.tuner.worker import Job
from tests.tuner.models import batch, small

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'lamina[ray]'")

WRONG = Candidate("constant", "import", {"target": "tests.tuner.planted:constant"})
NARROW = Candidate("wrong dtype", "import", {"target": "tests.tuner.planted:wrong_dtype"})
CRASH = Candidate("crash", "import", {"target": "tests.tuner.planted:segmentation_fault"})
SLOW = Candidate("slower", "import", {"target": "tests.tuner.planted:slower"})
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two machines of one kind, as far as they can be told apart on one host."""
    utilities = pytest.importorskip("ray.cluster_utils")
    made = utilities.Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    made.add_node(num_cpus=2)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_candidate_has_the_gpu_that_ray_gave_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that processes are forks of has the environment of the worker's first candidate."""
    given = []

    class Asked:
        def __init__(self, *rest: Any) -> None:
            pass

        def examine(self, job: Job, *rest: Any) -> Any:
            given.append(job.gpu)

    monkeypatch.setattr(fleet, "Processes", Asked)
    job = Job(WRONG, TorchSettings.here())
    for visible in ("3", "GPU-1f", ""):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        fleet._examined(b"", (), job, 9.0, None)
    assert given == ["3", "GPU-1f", ""]


def test_rows_of_several_workers_are_one_result(cluster: Any, tmp_path: Path, one_thread: None) -> None:
    book = tmp_path / "journal"

    class Local(nn.Linear):  # cannot be pickled
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).softmax(-1)

    def tuned(model: nn.Module, executor: str, **given: Any) -> list[tuple[str, str]]:
        options = {"candidates": (WRONG, CRASH, NARROW, SLOW), "seconds": 0.2, "journal": book, **given}
        found = lamina.tune(model, batch(), executor=executor, **options)
        return [(row.candidate.name, row.verdict) for row in found.rows[:4]]

    expected = [("eager", "baseline"), ("constant", "refused"), ("crash", "crashed"), ("wrong dtype", "refused")]
    assert tuned(small(), "ray") == expected
    assert len(Journal(book).rows()) == 5
    assert tuned(small(), "local") == expected
    assert len(Journal(book).rows()) == 5
    assert tuned(Local(16, 16), "ray", candidates=(NARROW,), loss=torch.sum) == [expected[0], expected[3]]
    assert ray.is_initialized()


def examined(subject: Subject, candidates: tuple[Candidate, ...], threads: int = 1) -> list[Any]:
    with Fleet(subject, CPU, threads) as workers:
        jobs = [Job(candidate, TorchSettings.here(), 0.1) for candidate in candidates]
        return sorted(workers.rows(jobs, lambda job: 60.0, lambda job, stage: None))


def ends_worker(count: int, mark: Path) -> Callable[..., Any]:
    """Ends the worker that it runs in, that many times in all; after that it is as ever."""
    inner = fleet._examined

    def run(*given: Any) -> Any:
        with mark.open("a") as file:
            file.write("x")
        if mark.stat().st_size <= count:
            os.kill(os.getpid(), signal.SIGKILL)
        return inner(*given)

    return run


@pytest.mark.parametrize(("count", "verdict", "reason"), [(2, "refused", "output"), (9, "crashed", "3 workers ended")])
def test_the_job_of_a_worker_that_dies_is_given_to_another(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, verdict: str, reason: str
) -> None:
    monkeypatch.setattr(fleet, "_examined", ends_worker(count, tmp_path / "mark"))
    ((number, row, limit),) = examined(Subject(small(), samples_of(batch())), (WRONG,))
    assert (number, row.verdict, limit) == (0, verdict, 60.0)
    assert reason in row.reason


def test_a_machine_of_another_kind_takes_no_part(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject(small(), samples_of(batch()))
    head = ray.get_runtime_context().get_node_id()
    inner = fleet._facts

    def facts(device: str, threads: int) -> dict[str, Any]:
        there = ray.get_runtime_context().get_node_id()
        return {**inner(device, threads), "processor": "P" if there == head else "Q"}

    monkeypatch.setattr(fleet, "_facts", facts)
    with Fleet(subject, CPU, 1) as workers:
        assert [node.name for node in workers.nodes] == [head]
    monkeypatch.setattr(fleet, "_facts", lambda device, threads: {"process": os.getpid()})
    with pytest.raises(BadArgument, match=r"no machine of the Ray cluster is like this one: process is .* there and"):
        Fleet(subject, CPU, 1)
    with pytest.raises(BadArgument, match=r"(?s)has 64 CPUs.*set_num_threads"):
        Fleet(subject, CPU, 64)
    with pytest.raises(BadArgument, match=r"(?s)is on cuda:1.*to cuda:0"):
        Fleet(subject, torch.device("cuda:1"), 1)


def test_where_no_machine_is_left_this_one_goes_on(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    def none_left(self: Fleet, *given: Any) -> Iterator[Any]:
        self.nodes = []
        return iter(())

    monkeypatch.setattr(search.Fleet, "rows", none_left)
    with pytest.warns(LaminaWarning, match="no worker of the executor is left: 1 candidate run here"):
        found = lamina.tune(
            small(), batch(), candidates=(), executor="ray", seconds=0.1, modules=False, journal=tmp_path / "journal"
        )
    assert found.rows[0].verdict == "baseline"


def test_what_cannot_be_sent_is_said(cluster: Any, tmp_path: Path) -> None:
    model = small()
    with (tmp_path / "open").open("w") as file:
        model.file = file  # type: ignore[assignment]
        with pytest.raises(BadArgument, match=r"(?s)cannot be sent to another machine.*open files"):
            Fleet(Subject(model, samples_of(batch())), CPU, 1)
