from __future__ import annotations

import os
import subprocess
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lamina
from lamina.errors import BadArgument, LaminaWarning
from lamina.tuner import search
from lamina.tuner.building import build
from lamina.tuner.candidates import candidates_for
from lamina.tuner.compiled import before_compiled
from lamina.tuner.identity import model_key
from lamina.tuner.journal import Journal
from lamina.tuner.process import Processes
from lamina.tuner.programs import Subject
from lamina.tuner.samples import samples_of
from lamina.tuner.values import Candidate, Figures, Interval, Part, Row, mix_of
from tests.architecture.source import ROOT
from tests.processes import python
from tests.tuner.compiled import BY
from tests.tuner.models import batch, first_half, mean_square, no_metric, no_tensor, small

WRONG = Candidate("constant", "import", {"target": "tests.tuner.planted:constant"})


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def tuned(book: Path, model: Any = None, **given: Any) -> Any:
    torch.manual_seed(0)
    options = {"candidates": (WRONG,), "seconds": 0.1, "journal": book, **given}
    return lamina.tune(small() if model is None else model, torch.randn(4, 16), **options)


def test_a_repeated_run_starts_no_process(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tuned(book)
    assert [row.verdict for row in first.rows] == ["baseline", "refused"]
    assert first.chosen.candidate.name == "eager"
    assert isinstance(first.model, nn.Module)
    assert "constant" in str(first)

    def none(*args: Any) -> Any:
        raise AssertionError("a process was to be started")

    monkeypatch.setattr(search, "Processes", none)
    assert tuned(book).rows == first.rows
    with pytest.raises(AssertionError, match="a process was to be started"):
        tuned(book, small(16).double().float().train())


def test_a_killed_run_goes_on_where_it_was(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tuned(book)
    lines = book.read_text().splitlines()
    assert len(lines) == 2
    book.write_text(lines[0] + "\n" + lines[1][:50])
    asked = []

    class Counted(Processes):
        def run(self, job: Any, *rest: Any) -> Row:
            asked.append(job.candidate.name)
            return super().run(job, *rest)

    monkeypatch.setattr(search, "Processes", Counted)
    again = tuned(book)
    assert asked == ["constant"]
    assert [row.verdict for row in again.rows] == [row.verdict for row in whole.rows]
    assert again.rows[0] == whole.rows[0]
    assert len(Journal(book).rows()) == 2


def row_of(candidate: Candidate, verdict: str, **given: Any) -> Row:
    figures = Figures(0.01, 0.02, 0.01, 0.01, Interval(1, 1, 1), 0.0, 9, 1.0, 1.0, 0.1, 0.1, 0.0)
    return Row(candidate, verdict, "", replace(figures, **given))


def test_what_cannot_be_tuned_is_said(book: Path) -> None:
    with pytest.raises(BadArgument, match="nothing can be tuned: eager itself fails: RuntimeError"):
        tuned(book, small(8))
    assert not book.exists()
    with pytest.raises(BadArgument, match="budget"):
        tuned(book, budget="soon")
    with pytest.raises(BadArgument, match="go together"):
        tuned(book, max_drop=0.1)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"modules": ["frist"]}, "no module 'frist'(.|\n)*name some of first, second"),
        ({"modules": "first"}, r"the text 'first'(.|\n)*such as \['first'\]"),
        ({"candidates": ["lamina"]}, r"candidates hold 'lamina'(.|\n)*Candidate\("),
        ({"candidates": "lamina"}, "candidates hold "),
        ({"seconds": 0}, "seconds is 0(.|\n)*above 0"),
        ({"candidate_seconds": "1min"}, "candidate_seconds is '1min'"),
        ({"memory_limit": -1}, "memory_limit is -1"),
        ({"memory_limit": float("inf")}, "memory_limit is inf(.|\n)*number of bytes"),
        ({"candidates": (WRONG, replace(WRONG, kind="lamina"))}, "two candidates are called 'constant'"),
        ({"candidates": (Candidate("eager", "lamina"),)}, "two candidates are called 'eager'"),
        ({"model": small().to("meta")}, "nothing can be tuned(.|\n)*weights first: it is on the device meta"),
        ({"model": nn.Identity(), "modules": ["first"]}, "no module 'first'(.|\n)*it holds none"),
        ({"loss": "mse"}, "loss is 'mse'(.|\n)*give a function"),
        ({"journal": book.parent}, "is a folder"),
        ({"model": nn.Linear}, "the class Linear(.|\n)*pass a module"),
        ({"journal": None}, "the journal is None(.|\n)*path of a file"),
        ({"modules": 3}, "modules is 3"),
        ({"threshold": "1%"}, "threshold is '1%'(.|\n)*0 or more"),
        ({"metric": str, "max_drop": -1}, "max_drop is -1"),
        ({"candidates": (Candidate("c", "lamina", {"x": torch.ones(1)}),)}, "candidate 'c' are no plain data"),
        ({"metric": no_metric, "max_drop": 0.1}, "its metric raises ZeroDivisionError: no data"),
        ({"loss": no_tensor}, "eager itself fails: the loss of an output is a float(.|\n)*with the loss"),
        ({"loss": first_half}, r"the loss of an output is a tensor of shape \(2, 16\)"),
    ]
    for given, said in wrong:
        with pytest.raises(BadArgument, match=said):
            tuned(book, **given)
    assert not book.exists()
    lossy = Candidate("narrow", "autocast", {"dtype": "bfloat16"}, lossy=True)
    with pytest.raises(BadArgument, match="fewer bits"):
        tuned(book, candidates=(lossy,))


def test_eager_that_is_late_is_said_with_what_to_do(book: Path) -> None:
    with pytest.raises(BadArgument, match=r"(?s)nothing can be tuned: no answer within .*a larger budget"):
        tuned(book, candidate_seconds=0.01, journal=False)


def test_a_limit_of_memory_may_be_a_number_with_a_fraction(book: Path) -> None:
    assert [row.verdict for row in tuned(book, memory_limit=2e9).rows] == ["baseline", "refused"]


@pytest.mark.parametrize("by", BY)
def test_what_was_compiled_already_is_tuned_as_it_was_before(book: Path, by: Callable[[Any], Any]) -> None:
    """Pickle leaves out that a module is compiled, or not: eager's time would be that of something else each time."""
    plain = small()
    key = model_key(plain)
    whole = nn.Sequential(plain, nn.Identity()).eval()
    with pytest.warns(LaminaWarning, match="the model was compiled already: it is tuned as it was before"):
        result = tuned(book, by(small()))
    assert model_key(result.original) == key
    assert type(result.model) is type(plain)
    assert torch.equal(result.model(batch()), plain(batch()))
    held = nn.Sequential(by(plain), nn.Identity()).eval()
    with pytest.warns(LaminaWarning, match=r"modules of the model were compiled already \(0\): it is tuned"):
        result = tuned(book, held)
    assert before_compiled(result.model) == (result.model, [])
    assert model_key(result.original) == model_key(whole)
    assert result.model[0].first.weight is plain.first.weight
    assert before_compiled(held)[1] == ["0"]  # the user's stays compiled
    result.save(book.parent / "tuned.json")
    assert lamina.load(book.parent / "tuned.json", held).rows == result.rows


def test_a_function_that_was_compiled_is_tuned_as_it_was_before() -> None:
    compiled = lamina.compile(mean_square)
    assert before_compiled(compiled) == (mean_square, [""])
    assert before_compiled(mean_square) == (mean_square, [])
    assert before_compiled(decorated) == (decorated, [])  # a process finds it by its name


@torch.compile(backend="eager")
def decorated(x: Tensor) -> Tensor:
    return x + 1


def test_a_lossy_candidate_is_held_to_the_users_limit(book: Path) -> None:
    narrow = Candidate("narrow", "autocast", {"dtype": "bfloat16"}, lossy=True)
    verdicts = {}
    for limit in ("1e-5", "1e-1"):
        found = tuned(book, candidates=(narrow,), objective=f"latency, error<={limit}").rows[1]
        verdicts[limit] = (found.verdict, found.reason)
    assert verdicts["1e-5"][0] == "refused"
    assert "output: element" in verdicts["1e-5"][1]
    assert verdicts["1e-1"][0] in ("faster", "tie", "slower")


def test_a_candidate_that_slows_eager_down_beside_it_is_not_faster(book: Path) -> None:
    slows = Candidate("slows", "import", {"target": "tests.tuner.planted:slows_eager"})
    result = tuned(book, candidates=(slows,), seconds=3.0)
    row = result.rows[1]
    assert (row.verdict, result.chosen.candidate.name) == ("tie", "eager"), str(result)
    lost_in_noise = row.figures is not None and row.figures.speedup.low <= 1.0 + row.figures.noise
    assert lost_in_noise or "in a process of its own" in row.reason
    assert tuned(book, candidates=(slows,), seconds=3.0).rows == result.rows


def test_a_model_of_a_local_class_is_tuned(book: Path) -> None:
    class Local(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1

    found = tuned(book, Local(), candidates=(Candidate("lamina", "lamina"),))
    assert found.rows[1].verdict in ("faster", "tie", "slower"), found.rows[1]


def test_a_candidate_ends_with_the_process_that_waits_for_it(tmp_path: Path) -> None:
    mark = tmp_path / "process"
    script = tmp_path / "script.py"
    script.write_text(
        "import lamina, sys\n"
        "from lamina.tuner.values import Candidate\n"
        "from tests.tuner.models import batch, small\n"
        "if __name__ == '__main__':\n"
        "    given = {'target': 'tests.tuner.planted:hang_and_tell', 'file': sys.argv[1]}\n"
        "    one = Candidate('hang', 'import', given)\n"
        "    lamina.tune(small(), batch(), candidates=(one,), seconds=0.1, journal=False)\n"
    )
    places = os.pathsep.join(p for p in (str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")) if p)
    with subprocess.Popen([*python(), script, mark], env={**os.environ, "PYTHONPATH": places}) as waiting:
        assert within(90, lambda: mark.exists() and mark.read_text() != "")
        waiting.kill()
    number = int(mark.read_text())
    assert within(20, lambda: not Path(f"/proc/{number}").exists() or "\nState:\tZ" in status(number))


def status(number: int) -> str:
    try:
        return Path(f"/proc/{number}/status").read_text()
    except OSError:
        return "\nState:\tZ"


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True


def test_an_executor_that_is_not_there_is_said(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadArgument, match=r"(?s)executor is 'dask'.*local, local:4, ray"):
        tuned(book, executor="dask")
    monkeypatch.setattr("lamina.backends.adapters.optional.find_spec", lambda name: None)
    with pytest.raises(BadArgument, match=r"(?s)executor 'ray' needs ray.*pip install ray"):
        tuned(book, executor="ray")


def convolution() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)).eval()


INNERMOST = Candidate("innermost", "channels-last")


@pytest.mark.parametrize(
    "write",
    [
        lambda model: model[0].weight.mul_(2),
        lambda model: model.load_state_dict({k: torch.ones_like(v) for k, v in model.state_dict().items()}),
        lambda model: setattr(model[4], "bias", nn.Parameter(torch.ones(4))),
        lambda model: model[1].running_mean.add_(1),
    ],
)
def test_a_copy_of_the_weights_follows_them(write: Callable[[Any], None]) -> None:
    model, x = convolution(), torch.randn(2, 3, 8, 8)
    for candidate in (INNERMOST, mix_of({Part(("0",), 1.0): INNERMOST, Part(("1",), 1.0): INNERMOST})):
        call = build(candidate, model).call
        with torch.no_grad():
            assert torch.allclose(call(x), model(x), atol=1e-5)
            write(model)
            assert torch.allclose(call(x), model(x), atol=1e-5)


def test_a_copy_of_the_weights_takes_no_gradients() -> None:
    model, x = convolution(), torch.randn(2, 3, 8, 8)
    call = build(INNERMOST, model).call
    with pytest.warns(LaminaWarning, match=r"runs as eager.*within torch\.no_grad"):
        call(x).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(call(x), model(x))
    model.requires_grad_(False)
    assert torch.allclose(call(x), model(x), atol=1e-5)


def test_a_copy_of_the_weights_is_refused_in_training(book: Path) -> None:
    result = lamina.tune(
        convolution(), torch.randn(2, 3, 8, 8), loss=torch.sum, candidates=(INNERMOST,), seconds=0.1, journal=book
    )
    assert (result.rows[1].verdict, result.chosen.candidate.name) == ("refused", "eager")
    assert "computes with a copy" in result.rows[1].reason
    training = Subject(convolution(), samples_of(torch.randn(2, 3, 8, 8)), torch.sum)
    for subject, own in ((training, False), (replace(training, loss=None), True)):
        offered = [c for c in candidates_for(subject, lossy=False) if c.kind == "channels-last"]
        assert [c.settings.get("own_weights", True) for c in offered] == [own, own]


@pytest.mark.parametrize("loss", [None, mean_square])
def test_a_model_that_writes_to_its_state_is_tuned(book: Path, loss: Any) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16)).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = tuned(book, model, loss=loss, candidates=(Candidate("lamina", "lamina"),), modules=False)
    assert [row.verdict for row in found.rows if row.verdict not in ("tie", "faster", "slower")] == ["baseline"]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_model_that_draws_numbers_is_said_to(book: Path) -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5)).train()
    wrong = Candidate("noisy", "import", {"target": "tests.tuner.liars:noisy"})
    found = tuned(book, model, loss=mean_square, candidates=(wrong,), modules=False)
    assert "or set dropout to 0" in found.rows[1].reason


@pytest.mark.parametrize(
    "inputs",
    [
        {"x": batch()},
        [batch()] * 3,
        (b for b in [batch()]),
        ({"x": batch()} for _ in "ab"),
        [(batch(),), {"x": batch()}],
    ],
    ids=["mapping", "list", "generator", "mappings", "tuple and mapping"],
)
def test_inputs_come_in_many_forms(book: Path, inputs: Any) -> None:
    result = lamina.tune(small(), inputs, candidates=(), modules=False, seconds=0.05, journal=book)
    assert result.rows[0].verdict == "baseline"
