"""A run that is killed goes on where it was, whatever it was at; files that are no journals are left alone."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lamina
from lamina.errors import BadArgument, LaminaWarning
from lamina.tuner import files, journal, result, search
from lamina.tuner.journal import Journal
from lamina.tuner.process import Processes
from lamina.tuner.values import EAGER, Candidate, Figures, Interval, Part, Row
from tests.tuner.models import batch, two_parts

QUICK = Candidate("quick", "import", {"target": "tests.tuner.models:quick"}, 2)
WRONG = Candidate("wrong", "import", {"target": "tests.tuner.planted:constant"}, 2)
STAGES = ("starts", "eager runs", "it is built", "it is called first", "it is verified", "it is timed")
SPEEDS = {"quick": 1.0, "heavy: quick": 1.5, "light: quick": 1.3, "heavy: quick; light: quick": 3.0}
PARTS = (Part(("heavy",), 0.5), Part(("light",), 0.4))


def figures(speed: float) -> Figures:
    return Figures(0.01 / speed, 0.02, 0.01, 0.01, Interval(speed, speed, speed), 0.0, 9, 1.0, 1.0, 0.1, 0.1, 0.0)


def planned(candidate: Candidate) -> Row:
    """What measuring gives in these tests, always."""
    if candidate == EAGER:
        return Row(EAGER, "baseline", "", figures(1.0), parts=PARTS)
    if "wrong" in candidate.name:
        return Row(candidate, "refused", "output: element [0] is 1")
    speed = SPEEDS[candidate.name]
    return Row(candidate, "faster" if speed > 1 else "tie", "", figures(speed))


class Planned(Processes):
    """Starts no process; ``at`` is called at each step, ``done`` when a candidate has been measured."""

    def __init__(self, at: Callable[[str], None], done: Callable[[str], None]) -> None:
        self.at, self.done = at, done

    def run(self, job: Any, seconds: float, stage: Any = None) -> Row:
        for step in STAGES:
            self.at(f"{'mix' if '; ' in job.candidate.name else step}")
        self.done(job.candidate.name)
        return planned(job.candidate)


def tuned(folder: Path, at: Callable[[str], None], measured: Path) -> None:
    """A run from tuning to saving that stops by at least once in each phase."""

    def done(name: str) -> None:
        with measured.open("a") as file:
            file.write(f"{name}\n")

    def halved(write: Callable[[int, str], None]) -> Callable[[int, str], None]:
        def writes(descriptor: int, line: str) -> None:
            os.write(descriptor, line[: len(line) // 2].encode())
            at("half of a row")
            os.ftruncate(descriptor, os.lseek(descriptor, 0, os.SEEK_END) - len(line) // 2)
            write(descriptor, line)
            at("a row is kept")

        return writes

    def stops(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            at(name)
            return function(*args)

        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "Processes", lambda subject, preload: Planned(at, done))
        patch.setattr(journal, "_write", halved(journal._write))
        patch.setattr(search, "refusal", stops("the choice is verified", result.refusal))
        patch.setattr(files.os, "replace", stops("it is saved", os.replace))
        found = lamina.tune(
            two_parts(), batch(), candidates=(QUICK, WRONG), modules=True, seconds=0.1, journal=folder / "journal"
        )
        found.save(folder / "saved.json")


def child(folder: str, end: int) -> None:
    """Run until the step of that number, and die there."""
    count = 0

    def at(name: str) -> None:
        nonlocal count
        with Path(folder, "steps").open("a") as file:
            file.write(f"{name}\n")
        count += 1
        if count == end:
            os.kill(os.getpid(), signal.SIGKILL)

    tuned(Path(folder), at, Path(folder, "measured" if end else "measured again"))


def run_child(folder: Path, end: int) -> int | None:
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=child, args=(str(folder), end))
    process.start()
    process.join(120)
    return process.exitcode


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def names_of(book: Path) -> list[str]:
    return [row.candidate.name for row in Journal(book).rows().values()]


def test_a_run_killed_at_any_step_ends_as_one_that_was_not(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    assert run_child(whole, 0) == 0
    steps = lines(whole / "steps")
    assert len(set(steps)) == len(STAGES) + 5
    everything = Counter(lines(whole / "measured again"))
    assert max(everything.values()) == 1
    met = set()
    for end in (*range(1, len(steps) - 1, 3), len(steps) - 1, len(steps)):
        folder = tmp_path / str(end)
        folder.mkdir()
        assert run_child(folder, end) == -signal.SIGKILL
        met.add(steps[end - 1])
        kept = names_of(folder / "journal")
        assert not (folder / "saved.json").exists()
        assert run_child(folder, 0) == 0
        assert (folder / "saved.json").read_text() == (whole / "saved.json").read_text(), steps[end - 1]
        assert Counter(kept) + Counter(lines(folder / "measured again")) == everything, steps[end - 1]
        assert sorted(names_of(folder / "journal")) == sorted(everything)
        assert len(lines(folder / "measured")) <= len(kept) + 1
    assert met == set(steps)


def test_two_runs_on_one_journal_share_the_work(tmp_path: Path) -> None:
    measured = []
    at_work = Counter[str]()

    def at(name: str) -> None:
        at_work[name] += 1
        assert at_work[name] == 1, "two candidates of one journal are measured at once"
        time.sleep(0.01)
        at_work[name] -= 1

    found: list[Any] = []

    def run() -> None:
        found.append(
            lamina.tune(two_parts(), batch(), candidates=(QUICK, WRONG), modules=True, journal=tmp_path / "journal")
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "Processes", lambda subject, preload: Planned(at, measured.append))
        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 2
    assert [r.to_json() for r in found[0].rows] == [r.to_json() for r in found[1].rows]
    assert len(measured) == len(set(measured)) == len(names_of(tmp_path / "journal")) == 8


def test_processes_append_to_one_journal_whole_lines(tmp_path: Path) -> None:
    context: Any = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=many_rows, args=(str(tmp_path / "journal"), k)) for k in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert set(Journal(tmp_path / "journal").rows()) == {f"{k} {n}" for k in range(4) for n in range(25)}
    assert len(lines(tmp_path / "journal")) == 100


def many_rows(path: str, process: int) -> None:
    book = Journal(Path(path))
    for number in range(25):
        book.append(f"{process} {number}", Row(WRONG, "refused", "x" * 3000), {"device": {}})


GOOD = json.dumps({"device": {}, "key": "k", "row": planned(EAGER).to_json(), "version": 1})


def other(**changes: Any) -> str:
    data = json.loads(GOOD)
    for path, value in changes.items():
        inner = data
        *way, last = path.split("__")
        for name in way:
            inner = inner[name]
        inner[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    "text",
    ["import torch\n", "[", "{}", '{"a": 1}\n', "\x00\xff\n", "k,v\n1,2\n", "[" * 100_000 + "\n", '{"version": 1}\n'],
)
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    book = tmp_path / "journal"
    book.write_text(text)
    for resume in (True, False):
        with pytest.raises(BadArgument, match=r"(?s)is no journal.*name another file"):
            lamina.tune(two_parts(), batch(), candidates=(), modules=False, journal=book, resume=resume)
    assert book.read_text() == text


@pytest.mark.parametrize(
    "line",
    [
        other(row__verdict="best"),
        other(row__figures=None),
        other(row__figures__p50="0.1"),
        other(row__figures__p50=-1),
        other(row__figures__p50=float("nan")),
        other(row__figures__speedup__low=float("inf")),
        other(row__figures__speedup=[1, 2, 3]),
        other(row__candidate=[]),
        other(row__parts=3),
        other(row=7),
        GOOD[:100] + "\x00" + GOOD[101:],
        "x" * 1000,
    ],
)
def test_a_damaged_row_is_said_and_measured_again(tmp_path: Path, line: str) -> None:
    book = tmp_path / "journal"
    book.write_text(f"{other(key='j')}\n{line}\n{GOOD}\n")
    with pytest.warns(LaminaWarning, match="1 lines of the journal .* cannot be read"):
        assert list(Journal(book).rows()) == ["j", "k"]


def test_rows_of_another_form_are_said_and_measured_again(tmp_path: Path) -> None:
    book = tmp_path / "journal"
    book.write_text(other(version=0) + "\n")
    with pytest.warns(LaminaWarning, match="1 lines of the journal .* another version of Lamina"):
        assert Journal(book).rows() == {}


def test_a_journal_that_cannot_be_kept_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    book = Journal(tmp_path / "file" / "journal")
    with pytest.warns(LaminaWarning, match="cannot be written: .*; rows are not kept") as told:
        book.append("a", planned(EAGER), {})
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        book.append("b", planned(EAGER), {})
    for path in (Path("/dev/null"), tmp_path):
        with pytest.raises(BadArgument, match="is no file"):
            Journal(path).rows()


@pytest.mark.parametrize(
    ("verdict", "limit", "less", "more"),
    [
        ("hung", 30.0, {"candidate_seconds": 10.0}, {"candidate_seconds": 60.0}),
        ("out of memory", 1e9, {"memory_limit": 10**8}, {"memory_limit": 10**10}),
    ],
)
def test_a_row_that_a_limit_ended_holds_for_no_larger_limit(
    tmp_path: Path, verdict: str, limit: float, less: dict[str, Any], more: dict[str, Any]
) -> None:
    asked: list[str] = []

    class Ended(Planned):
        def run(self, job: Any, seconds: float, stage: Any = None) -> Row:
            asked.append(job.candidate.name)
            return Row(QUICK, verdict, "", limit=limit) if job.candidate == QUICK else planned(job.candidate)

    def tune(given: dict[str, Any]) -> None:
        book = tmp_path / "journal"
        lamina.tune(two_parts(), batch(), candidates=(QUICK,), modules=False, journal=book, **given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "Processes", lambda subject, preload: Ended(asked.append, asked.append))
        tune(less)
        assert asked == ["eager", "quick"]
        tune(less)
        assert asked == ["eager", "quick"]
        tune(more)
        assert asked == ["eager", "quick", "quick"]
