"""Faults at every stage boundary and file operation: afterwards, are results still eager's?

``python -m benchmarks.faults`` runs all points in child processes and writes results/faults.json. A point is an
exception before or after a stage, a kill there or at a file operation of the cache, a full disk (an error of one file
operation, or a limit on the size of files), an interrupt, or a compiler that fails in one of ten ways. Each program
runs twice with the fault, forward and backward, and in a second process on the same cache without it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import lamina
from benchmarks.fault_injection import (
    COMPILERS,
    ERRORS,
    FileFaults,
    StageFault,
    boundaries,
    change_boundary,
    limit_files,
    write_compiler,
)
from lamina.runtime.toolchain import find_compiler
from lamina.testing import compare

RESULTS = Path(__file__).parent / "results" / "faults.json"
SECONDS = 120.0
KINDS = ("stage", "file", "limit", "compiler")
SIZES = (0, 1, 100, 1000, 5000, 20000, 100000)


def training(x: Tensor, w: Tensor) -> Tensor:
    return (torch.nn.functional.silu(x) @ w).tanh().sum(-1) * x.sigmoid().amax()


def writing(x: Tensor, state: Tensor) -> Tensor:
    state.mul_(0.5).add_(x)
    y = torch.nn.functional.layer_norm(x, (x.shape[-1],))
    return torch.nn.functional.softmax(y, -1).cumsum(-1) + torch.cat([state, x])[: x.shape[0]]


def _frozen() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5), nn.GELU()
    ).eval()


@dataclass(frozen=True)
class Program:
    """A callable, arguments for one call, how it is compiled and whether gradients are recorded."""

    make: Callable[[], Callable[..., Any]]
    arguments: Callable[[], tuple[Any, ...]]
    grads: bool
    how: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


PROGRAMS = {
    "training": Program(
        lambda: training,
        lambda: (torch.randn(6, 5, requires_grad=True), torch.randn(5, 7, requires_grad=True)),
        True,
    ),
    "writing": Program(lambda: writing, lambda: (torch.randn(6, 9), torch.randn(6, 9)), False, {"dynamic": True}),
    "frozen": Program(_frozen, lambda: (torch.randn(3, 2, 4, 4),), False, {}, {"freeze": True}),
}


@dataclass(frozen=True)
class Point:
    """One fault: its kind, where, what, and in which program."""

    kind: str
    place: str
    what: str
    program: str
    before: bool = True
    number: int = 1

    def __str__(self) -> str:
        when = "before" if self.before else "after"
        at = f"{when} {self.place}" if self.kind == "stage" else self.place
        return f"{self.what} at {at}, number {self.number}, in {self.program}"


@dataclass(frozen=True)
class Outcome:
    """What became of a point: "same" results, "different", "raised", "hung", "crashed" or "not reached"."""

    point: Point
    state: str
    text: str = ""
    decisions: int = 0
    seconds: float = 0.0


def run_program(name: str, folder: Path, cxx: str = "", calls: int = 2) -> tuple[list[str], int]:
    """What differs from eager in some calls, and the number of decisions by which something runs otherwise."""
    program = PROGRAMS[name]
    function = program.make()
    options = {"cache_dir": str(folder), "progress": False, "cxx": cxx, **program.options}
    compiled = lamina.compile(function, options=options, **program.how)
    found = []
    for number in range(calls):
        torch.manual_seed(number)
        comparison = compare(function, compiled, program.arguments(), grads=program.grads)
        found += [f"call {number}: {complaint}" for complaint in comparison.complaints]
    record = getattr(compiled, "record", None)
    decisions = record.decisions("fallback") if record is not None else []
    return found, len(decisions)


@dataclass(frozen=True)
class _Answer:
    """What a child process sent before it ended, and how it ended."""

    sent: dict[str, Any] | None
    status: int | None


def in_child(work: Callable[[], dict[str, Any]], seconds: float = SECONDS) -> _Answer:
    """Run ``work`` in a fork of this process, and end all that it leaves running."""
    reading, writing_end = os.pipe()
    child = os.fork()
    if child == 0:
        _work(work, writing_end)
    os.close(writing_end)
    text, end = b"", time.monotonic() + seconds
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while (left := end - time.monotonic()) > 0 and select.select([pipe], [], [], left)[0]:
            part = pipe.read(1 << 16)
            if not part:
                break
            text += part
            if text.endswith(b"\n"):
                break
    status: int | None = None
    while time.monotonic() < end:
        done, code = os.waitpid(child, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(code)
            break
        time.sleep(0.01)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    return _Answer(json.loads(text) if text.endswith(b"\n") else None, status)


def _work(work: Callable[[], dict[str, Any]], pipe: int) -> None:
    os.setpgid(0, 0)
    with open(os.devnull, "w") as null:
        os.dup2(null.fileno(), 1)
        os.dup2(null.fileno(), 2)
    warnings.simplefilter("ignore")
    try:
        answer = work()
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(str(error).split())[:300]
        answer = {"raised": f"{type(error).__name__}: {said} ({Path(last.filename).name}:{last.lineno})"}
    os.write(pipe, json.dumps(answer).encode() + b"\n")
    os._exit(0)


def _with_fault(point: Point, folder: Path) -> dict[str, Any]:
    """In the child: the program with the fault."""
    fault: StageFault | FileFaults | None = None
    cxx = ""
    if point.kind == "stage":
        fault = StageFault(point.place, point.what, point.before, point.number)
    elif point.kind == "file":
        fault = FileFaults(folder, point.number, point.what)
    elif point.kind == "limit":
        limit_files(point.number)
    else:
        cxx = str(folder.parent / "cxx")
    if fault is not None:
        fault.inject()
    try:
        found, decisions = run_program(point.program, folder, cxx)
    except KeyboardInterrupt:
        if point.what != "interrupt":
            raise
        found, decisions = run_program(point.program, folder, cxx)
    reached = fault.reached if fault is not None else point.kind == "limit" or _compiler_reached(folder)
    return {"found": found, "decisions": decisions, "reached": reached}


def _compiler_reached(folder: Path) -> bool:
    return (folder.parent / "cxx.state.reached").exists()


def run_point(point: Point, seconds: float = SECONDS) -> Outcome:
    """The program with the fault, then without it in another process on the same cache."""
    start = time.monotonic()
    work = Path(tempfile.mkdtemp(prefix="lamina_faults_"))
    folder = work / "cache"
    try:
        if point.kind == "compiler":
            write_compiler(work / "cxx", str(find_compiler().path), COMPILERS[point.what], point.number)
        state, text, decisions = _judged(point, in_child(lambda: _with_fault(point, folder), seconds))
        if state == "same":
            cxx = str(work / "cxx") if point.kind == "compiler" else ""
            after = in_child(lambda: _without_fault(point.program, folder, cxx), seconds)
            state, text = _judged_after(after)
        return Outcome(point, state, text, decisions, round(time.monotonic() - start, 1))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _without_fault(program: str, folder: Path, cxx: str) -> dict[str, Any]:
    found, decisions = run_program(program, folder, cxx)
    return {"found": found, "decisions": decisions}


def _judged(point: Point, answer: _Answer) -> tuple[str, str, int]:
    if answer.sent is None:
        if answer.status == -signal.SIGKILL and point.what == "kill":
            return "same", "", 0
        return ("hung", "", 0) if answer.status is None else ("crashed", f"status {answer.status}", 0)
    if "raised" in answer.sent:
        return "raised", answer.sent["raised"], 0
    if answer.sent["found"]:
        return _named(answer.sent["found"]), "; ".join(answer.sent["found"])[:600], answer.sent["decisions"]
    return ("same" if answer.sent["reached"] else "not reached"), "", answer.sent["decisions"]


def _named(found: Sequence[str]) -> str:
    return "raised" if any("exception: " in text for text in found) else "different"


def _judged_after(answer: _Answer) -> tuple[str, str]:
    if answer.sent is None:
        return "hung" if answer.status is None else "crashed", "in the next process"
    if "raised" in answer.sent:
        return "raised", f"in the next process: {answer.sent['raised']}"
    if answer.sent["found"]:
        return _named(answer.sent["found"]), "in the next process: " + "; ".join(answer.sent["found"])[:600]
    if answer.sent["decisions"]:
        return "lasting", f"in the next process {answer.sent['decisions']} decisions to fall back"
    return "same", ""


def _calls(program: str) -> dict[str, Any]:
    """In a child: how often each boundary is called, and how many file operations there are, cold and warm."""
    counts: Counter[str] = Counter()
    for place in boundaries():
        _count(place, counts)
    with tempfile.TemporaryDirectory() as folder:
        counter = FileFaults(Path(folder) / "cache")
        counter.inject()
        run_program(program, Path(folder) / "cache")
        counter.active = False
    return {"calls": counts, "events": counter.log}


def _count(place: str, counts: Counter[str]) -> None:
    def change(real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            counts[place] += 1
            return real(*args, **kwargs)

        return counted

    change_boundary(place, change)


def points() -> list[Point]:
    """Every point that is reached, in a fixed order."""
    found: list[Point] = []
    errors = list(ERRORS)
    for program in PROGRAMS:
        answer = in_child(lambda program=program: _calls(program))  # type: ignore[misc]
        if answer.sent is None or "raised" in answer.sent:
            raise RuntimeError(f"{program} cannot be observed: {answer}")
        calls, log = answer.sent["calls"], answer.sent["events"]
        for index, place in enumerate(p for p in boundaries() if p in calls):
            for before in (True, False):
                error = errors[(2 * index + before) % len(errors)]
                found.append(Point("stage", place, error, program, before))
            found.append(Point("stage", place, "kill", program, index % 2 == 0))
            if index % 3 == 0:
                found.append(Point("stage", place, "interrupt", program))
            if calls[place] > 1:
                found.append(Point("stage", place, errors[index % len(errors)], program, True, calls[place]))
        for number, event in enumerate(log, 1):
            found.append(Point("file", event, "full disk", program, number=number))
            found.append(Point("file", event, "kill", program, number=number))
        found += [Point("limit", "size of files", "full disk", program, number=size) for size in SIZES]
    for what in COMPILERS:
        found += [Point("compiler", "compiler", what, "training", number=number) for number in (1, 2, 3)]
    return found


def sample(every: Sequence[Point], count: int) -> list[Point]:
    """``count`` of the points, spread over all of them."""
    return [every[len(every) * k // count] for k in range(count)] if count < len(every) else list(every)


def run(chosen: Iterable[Point], each: Callable[[Outcome], None] = lambda outcome: None) -> list[Outcome]:
    """The outcome of each point, one after the other."""
    outcomes = []
    for point in chosen:
        outcome = run_point(point)
        outcomes.append(outcome)
        each(outcome)
    return outcomes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run points and write what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=1 << 30, help="so many, spread over all")
    parser.add_argument("--kind", choices=KINDS, help="only this kind")
    parser.add_argument("--what", help="only this fault")
    parser.add_argument("--part", default="0/1", help="of several runs at once: which of how many")
    parser.add_argument("--join", type=Path, nargs="+", help="join the results of several parts instead of running")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    if given.join:
        parts_found = [json.loads(path.read_text(encoding="utf-8")) for path in given.join]
        given.output.write_text(json.dumps(joined(parts_found), indent=1) + "\n", encoding="utf-8")
        return 0
    every = [p for p in points() if given.kind in (None, p.kind) and given.what in (None, p.what)]
    part, parts = map(int, given.part.split("/"))
    chosen = sample(every, given.points)[part::parts]
    print(f"{len(chosen)} of {len(every)} points", flush=True)

    done: list[Outcome] = []

    def tell(outcome: Outcome) -> None:
        done.append(outcome)
        if len(done) % 5 == 0:  # what there is, should the rest be cut off
            given.output.write_text(json.dumps(report(done), indent=1) + "\n", encoding="utf-8")
        if outcome.state not in ("same", "not reached"):
            print(f"{outcome.state}: {outcome.point}: {outcome.text}", flush=True)

    outcomes = run(chosen, tell)
    states = Counter(o.state for o in outcomes)
    print(dict(states))
    given.output.write_text(json.dumps(report(outcomes), indent=1) + "\n", encoding="utf-8")
    return 0 if set(states) <= {"same", "not reached"} else 1


def report(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What the JSON file holds: a table by kind and fault, and each point that is not as it should be."""
    table: dict[str, Counter[str]] = {}
    for o in outcomes:
        table.setdefault(f"{o.point.kind}: {o.point.what}", Counter())[o.state] += 1
    return {
        "torch": torch.__version__,
        "points": len(outcomes),
        "table": {name: dict(counts) for name, counts in sorted(table.items())},
        "others": [asdict(o) for o in outcomes if o.state != "same"],
        "outcomes": [f"{o.point.kind}: {o.point}: {o.state}" for o in outcomes],
    }


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The reports of several parts as one."""
    table: dict[str, Counter[str]] = {}
    for part in parts:
        for name, counts in part["table"].items():
            table.setdefault(name, Counter()).update(counts)
    return {
        "torch": parts[0]["torch"],
        "points": sum(part["points"] for part in parts),
        "table": {name: dict(counts) for name, counts in sorted(table.items())},
        "others": [one for part in parts for one in part["others"]],
        "outcomes": [one for part in parts for one in part["outcomes"]],
    }


if __name__ == "__main__":
    raise SystemExit(main())
