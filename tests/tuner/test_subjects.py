"""Models and inputs of every shape: what is verified and timed, and what is said of those that cannot be."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lamina
from lamina.errors import BadArgument
from lamina.tuner import search, worker
from lamina.tuner.candidates import candidates_for, device_of, drawing_alike
from lamina.tuner.memory import _in_pools
from lamina.tuner.objects import ITERATOR
from lamina.tuner.process import Processes
from lamina.tuner.programs import Subject, timed_call
from lamina.tuner.samples import Sample, held_out, samples_of, structure
from lamina.tuner.settings import TorchSettings
from lamina.tuner.timing import Clock
from lamina.tuner.values import EAGER, Candidate, Row
from lamina.tuner.worker import Job, examine
from tests.tuner.models import mean_square, small
from tests.tuner.test_resume import figures


@dataclasses.dataclass
class Batch:
    x: Tensor
    name: str = ""


class OfBatch(nn.Module):
    def forward(self, batch: Batch) -> Tensor:
        return batch.x.sin()


class OfTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(tokens)  # type: ignore[no-any-return]


class Ascending(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not bool((x.diff() >= 0).all()):
            raise ValueError("not sorted")
        return x.exp()


class Growing(nn.Module):
    """Keeps what it was given, in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.cache.append(x)
        return torch.stack(self.cache).sum(0)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(16, 32), nn.Dropout(0.3), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.drop(self.first(x).relu()))  # type: ignore[no-any-return]


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).mean((2, 3))  # type: ignore[no-any-return]


def one_by_one(x: Tensor) -> Iterator[Tensor]:
    for row in x:
        yield row.sin()


def examined(model: Any, inputs: Any, candidate: Candidate | str, loss: Any = None) -> Row:
    """What becomes of a candidate in this process."""
    if isinstance(candidate, str):
        candidate = Candidate(candidate, "import", {"target": candidate})
    torch.manual_seed(0)
    return examine(Subject(model, samples_of(inputs), loss), Job(candidate, TorchSettings.here(), seconds=0.05))


class Remembers(torch.nn.Module):
    """Keeps what it was given in a list of the caller's."""

    def forward(self, x: Tensor, kept: list[Tensor]) -> Tensor:
        """As large as ``x``."""
        kept.append(x)
        return x.sin()


def test_a_model_that_fills_a_list_is_timed() -> None:
    given = (torch.randn(4, 16), [])
    assert examined(Remembers(), given, EAGER).verdict == "baseline"
    forgets = examined(Remembers(), given, "tests.tuner.test_subjects:forgetful")
    assert (forgets.verdict, "arguments" in forgets.reason) == ("refused", True)


def leaving(model: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: sys.exit(3)


def test_a_candidate_that_ends_the_program_has_failed() -> None:
    """In the thread of a candidate's process it would end in silence, and the process with status 0."""
    row = examined(torch.nn.ReLU(), torch.randn(4), "tests.tuner.test_subjects:leaving")
    assert (row.verdict, row.reason) == ("failed", "while it is called first: SystemExit: 3")


def forgetful(model: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, kept: model(x, [])


def other_rows(model: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: (row + 1e-3 for row in model(x))


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (OfBatch(), (Batch(torch.randn(4, 3)),)),
        (OfTokens(), torch.tensor([[1, 5, 3, 9], [2, 2, 8, 1]])),
        (lambda x: x["deep"][0].x.cos(), ({"deep": [Batch(torch.randn(5))]},)),
        (lambda x: x.cos(), {"x": torch.randn(5)}),
        (lambda x: x.inner.x.cos(), (SimpleNamespace(inner=Batch(torch.randn(5))),)),
    ],
)
def test_an_answer_that_is_kept_does_not_win(model: Any, inputs: Any) -> None:
    row = examined(model, inputs, "tests.tuner.liars:first_answer")
    assert row.verdict == "refused", row
    assert "output: element" in row.reason


def test_inputs_that_are_verified_are_others_and_the_users_stay() -> None:
    batch = Batch(torch.arange(6.0), "a")
    tokens, sorted_ones = torch.tensor([3, 1, 2, 0, 7]), torch.arange(5)
    (made,) = held_out(samples_of((batch, torch.arange(5))))
    assert made.made_up
    assert sorted(made.args[0].x.tolist()) == batch.x.tolist() == [0, 1, 2, 3, 4, 5]
    assert made.args[0].x.tolist() != batch.x.tolist()
    assert made.args[0].name == "a"
    assert torch.equal(made.args[1], torch.arange(5))
    (made,) = held_out(samples_of((tokens, sorted_ones)))
    assert sorted(made.args[0].tolist()) == [0, 1, 2, 3, 7]
    assert made.args[0].tolist() != tokens.tolist()
    assert torch.equal(made.args[1], sorted_ones)


def test_an_input_that_was_made_up_and_is_none_for_the_model_is_left_out() -> None:
    assert examined(Ascending(), torch.arange(9.0), EAGER).verdict == "baseline"
    with pytest.raises(BadArgument, match="not sorted"):
        lamina.tune(Ascending(), [torch.arange(4.0), -torch.arange(4.0)], candidates=(), journal=False, modules=False)


def test_what_an_iterator_gives_is_verified_and_timed() -> None:
    assert examined(one_by_one, torch.randn(3, 4), EAGER).verdict == "baseline"
    row = examined(one_by_one, torch.randn(3, 4), "tests.tuner.test_subjects:other_rows")
    assert row.verdict == "refused", row
    call = timed_call(one_by_one, Subject(one_by_one, samples_of(torch.randn(3, 4))), one_by_one)
    assert len(call()[ITERATOR]) == 3


def test_rows_hold_for_the_sizes_within_objects() -> None:
    def told(size: int) -> list[str]:
        return structure(Sample((Batch(torch.ones(size)), {"n": [Batch(torch.ones(2), "b")]})))

    assert told(3) == told(3)
    assert told(3) != told(4)


def test_the_device_is_that_of_tensors_within_objects() -> None:
    inputs = ({"deep": [Batch(torch.ones(2, device="meta"))]}, torch.ones(1))
    assert device_of(Subject(OfBatch(), (Sample(inputs),))).type == "meta"


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: torch.eye(3).to_sparse(), "layout torch.sparse_coo"),
        (lambda: torch.ones(3, device="meta"), "device meta"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "a nested tensor"),
        (lambda: (Batch(torch.eye(3).to_sparse()),), "layout torch.sparse_coo"),
    ],
)
def test_inputs_that_cannot_be_compared_are_refused(make: Callable[[], Any], what: str) -> None:
    with pytest.raises(BadArgument, match=what):
        lamina.tune(small(), make(), journal=False)


def test_a_model_whose_calls_depend_on_earlier_ones_is_refused_with_what_to_do() -> None:
    with pytest.raises(
        BadArgument, match=r"(?s)two calls of the model give different results, .*in tensors of buffers"
    ):
        lamina.tune(Growing(), torch.ones(3), candidates=(), modules=False, journal=False, seconds=0.1)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_metric_that_is_no_number_is_said(number: float, tmp_path: Path) -> None:
    def metric(call: Any) -> float:
        return number

    with pytest.raises(BadArgument, match=f"its metric is {number}"):
        lamina.tune(small(), torch.ones(4, 16), candidates=(), journal=False, metric=metric, max_drop=0.1)


SPENT: list[float] = []


class Told(Clock):
    """A clock on which a call takes what it says."""

    def seconds(self, call: Callable[[], Any], count: int) -> float:
        call()
        return SPENT[-1]


def waits(model: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def run(x: Any) -> Any:
        SPENT.append(seconds)
        return model(x)

    return run


def waiting(name: str, seconds: float, cost: int) -> Candidate:
    return Candidate(name, "import", {"target": "tests.tuner.test_subjects:waits", "seconds": seconds}, cost)


def test_two_candidates_are_timed_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "Clock", Told)
    subject = Subject(small(), samples_of(torch.randn(4, 16)))
    long, short = waiting("long", 0.04, 2), waiting("short", 0.004, 3)
    for rival, candidate, verdict in ((long, short, "faster"), (short, long, "slower")):
        row = examine(subject, Job(candidate, TorchSettings.here(), seconds=1.0, rival=rival))
        assert (row.candidate, row.verdict, row.reason) == (candidate, verdict, f"against {rival.name}"), row
    facts = Job(short, TorchSettings.here()).facts()
    assert Job(short, TorchSettings.here(), rival=long).facts() == [*facts, long.to_json()]


@pytest.mark.parametrize(("verdict", "chosen"), [("tie", "simple"), ("faster", "best"), ("failed", "best")])
def test_the_fastest_must_be_faster_than_a_simpler_one_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: str, chosen: str
) -> None:
    asked = []
    speeds = {"eager": 1.0, "simple": 1.5, "best": 1.9}

    class Planned(Processes):
        def __init__(self, subject: Any, preload: Any) -> None:
            pass

        def run(self, job: Job, seconds: float, stage: Any = None) -> Row:
            asked.append((job.candidate.name, job.rival and job.rival.name))
            speed = speeds[job.candidate.name]
            found = figures(speed)
            if job.rival is not None:
                return Row(job.candidate, verdict, "", None if verdict == "failed" else found)
            return Row(job.candidate, "baseline" if job.candidate == EAGER else "faster", "", found)

    monkeypatch.setattr(search, "Processes", Planned)
    monkeypatch.setattr(search, "_right", lambda result, *rest: result)
    candidates = [Candidate("best", "lamina", {"options": {"freeze": True}}, 3), Candidate("simple", "lamina", cost=2)]
    for _ in range(2):
        given: dict[str, Any] = {"candidates": candidates, "modules": False, "journal": tmp_path / "journal"}
        result = lamina.tune(small(), torch.ones(4, 16), **given)
        assert result.chosen.candidate.name == chosen
        assert ("in one process" in result.rows[1].reason) == (verdict == "tie")
    assert asked[:4] == [("eager", None), ("best", None), ("simple", None), ("best", "simple")]
    assert len(asked) == 4


def test_memory_that_graphs_keep_is_counted() -> None:
    pools = [{"total_size": 5, "segment_pool_id": (0, 1)}, {"total_size": 7, "segment_pool_id": [0, 0]}]
    assert _in_pools([*pools, {"total_size": 9}]) == 5


def settings_of(candidates: Any) -> list[Mapping[str, Any]]:
    return [candidate.settings for candidate in candidates if candidate.kind in ("lamina", "torch.compile")]


def test_models_that_draw_random_numbers_get_candidates_that_draw_the_same() -> None:
    model = Dropping().train()
    eager = examined(model, torch.randn(4, 16), EAGER, mean_square)
    assert eager.draws
    assert Row.from_json(eager.to_json()).draws
    assert not examined(model.eval(), torch.randn(4, 16), EAGER, mean_square).draws
    subject = Subject(model.train(), samples_of(torch.randn(4, 16)), mean_square)
    found = drawing_alike(candidates_for(subject, lossy=True))
    assert {"options": {"numerics": "eager"}} in settings_of(found)
    assert {"options": {"fallback_random": True}} in settings_of(found)
    assert all("options" in settings for settings in settings_of(found))
    assert [c.name for c in found if c.kind == "autocast"] == ["autocast bfloat16"]
    plain = next(c for c in found if c.settings == {"options": {"numerics": "eager"}})
    assert examined(model, torch.randn(4, 16), plain, mean_square).figures is not None
    others = examined(model, torch.randn(4, 16), Candidate("lamina", "lamina"), mean_square)
    assert others.verdict == "refused"
    assert 'numerics="eager"' in others.reason


@pytest.mark.parametrize("seed", range(6))
def test_training_with_channels_last_gives_the_models_parameters_their_gradients(seed: int) -> None:
    """Its kernels add in another order, and the gradient of the bias before the batch norm is noise."""
    torch.manual_seed(seed)
    model = Images().train()
    subject = Subject(model, samples_of(torch.randn(2, 3, 8, 8)), mean_square)
    found = [c for c in candidates_for(subject, lossy=False) if c.kind == "channels-last"]
    assert [c.name for c in found] == ["channels-last", "lamina, channels-last"]
    for candidate in found:
        row = examined(model, torch.randn(2, 3, 8, 8), candidate, mean_square)
        assert row.figures is not None, row
