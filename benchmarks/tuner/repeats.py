"""The same tuning again and again, each in a fresh process: ten models, and a model against its copy under load."""

from __future__ import annotations

import contextlib
import copy
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import lamina
from benchmarks.report import geometric_mean, print_table, write_results
from benchmarks.tuner.lanes import answers
from benchmarks.tuner.models import MODELS, OTHERS, model_of
from lamina.tuner.programs import Subject, arguments_of, timed_call
from lamina.tuner.samples import samples_of
from lamina.tuner.timing import Clock, race
from lamina.tuner.torch_private import COMPILER_OF_CPU
from lamina.tuner.values import Candidate

__all__ = ["CANDIDATES", "copied_model", "copies", "measured", "models", "tune_copy", "tune_once"]

CANDIDATES = (
    Candidate("lamina", "lamina", cost=2),
    Candidate("torch.compile", "torch.compile", cost=2),
    Candidate("lamina, frozen", "lamina", {"options": {"freeze": True}}, 3),
)
COPY = Candidate("copy", "import", {"target": "benchmarks.tuner.repeats:copied_model"})
ALLOWED_WINNERS, OF_COPIES = 2, 50
"""How many of so many runs may call a copy faster than its model."""


def copied_model(model: nn.Module) -> nn.Module:
    """What computes the same in the same way."""
    return copy.deepcopy(model)


def tune_once(name: str, seconds: float) -> dict[str, Any]:
    """The choice for a model, and its speed against eager, timed again in this process."""
    start = time.monotonic()
    model, x = model_of(name)
    result = lamina.tune(model, x, candidates=CANDIDATES, modules=False, journal=False, seconds=seconds)
    subject = Subject(model, samples_of(x))
    given = arguments_of(subject)
    calls = [timed_call(call, subject, model, given) for call in (model, result.model)]
    for call in calls:
        call()
    found = race(*calls, Clock(torch.device("cpu")), seconds=seconds, threshold=0.01)
    rows = {
        row.candidate.name: {
            "verdict": row.verdict,
            "speed": row.figures and round(row.figures.speedup.middle, 3),
            "against": dict(row.against),
        }
        for row in result.rows
    }
    ratio = {name: round(getattr(found.speedup, name), 3) for name in ("middle", "low", "high")}
    spent = round(time.monotonic() - start, 1)
    return {
        "chosen": result.chosen.candidate.name,
        "verdict": found.verdict,
        "ratio": ratio,
        "rows": rows,
        "seconds": spent,
    }


def measured(words: Sequence[str]) -> dict[str, Any]:
    """What one run gives: "once", a model and seconds, or "copy" and seconds."""
    what, *rest = words
    return tune_once(rest[0], float(rest[1])) if what == "once" else tune_copy(float(rest[0]))


def models(
    runs: int, seconds: float, only: str, lanes: Sequence[tuple[int, ...]], most: float, to: Path, others: bool = False
) -> int:
    """Tune each model ``runs`` times, or as often as ``most`` seconds allow; 1 if a tuned one is slower than eager."""
    names = [name for name in (OTHERS if others else MODELS) if only in name]
    jobs = (("once", name, str(seconds)) for _ in range(runs) for name in names)
    told: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    failed: list[dict[str, str]] = []
    for (_, name, *_), found in answers(jobs, lanes, most, COMPILER_OF_CPU):
        if "failed" in found:
            failed.append({"model": name, **found})
        else:
            print(f"{name}: {found['chosen']} after {found['seconds']} s; {found['rows']}", flush=True)
            told[name].append(found)
    rows = {name: _summary(runs) for name, runs in told.items() if runs}
    content = {
        "runs_wanted": runs,
        "seconds_of_a_candidate": seconds,
        "lanes": [list(lane) for lane in lanes],
        "mean": geometric_mean(row["middle"] for row in rows.values()),
        "slower": [name for name, row in rows.items() if row["slower"]],
        "failed": failed,
        "models": {name: {**row, "each": told[name]} for name, row in rows.items()},
    }
    columns = ("model", "chosen", "repeated", "against eager", "slower")
    table = [
        [name, row["chosen"], f"{row['same']} of {row['runs']}", f"{row['middle']:.2f}x", str(row["slower"])]
        for name, row in rows.items()
    ]
    print_table("tuned models", columns, table)
    print(f"geometric mean {content['mean']:.2f}x; {len(failed)} runs failed")
    if not only:
        write_results(to, content)
    return 1 if content["slower"] or failed else 0


def _summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    ((chosen, same),) = Counter(run["chosen"] for run in runs).most_common(1)
    return {
        "chosen": chosen,
        "same": same,
        "runs": len(runs),
        "middle": median(run["ratio"]["middle"] for run in runs),
        "slower": sum(run["verdict"] == "slower" for run in runs),
    }


def tune_copy(seconds: float) -> dict[str, Any]:
    """The verdict on the copy of a model, while a process that works by fits and starts shares the cores."""
    model, x = model_of("residual mlp")
    with _load():
        result = lamina.tune(model, x, candidates=[COPY], modules=False, journal=False, seconds=seconds)
    row = result.rows[1]
    ratio = row.figures and [round(end, 3) for end in (row.figures.speedup.low, row.figures.speedup.high)]
    return {"verdict": row.verdict, "reason": row.reason, "ratio": ratio}


@contextlib.contextmanager
def _load() -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=_by_fits_and_starts, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _by_fits_and_starts() -> None:
    drawn = random.Random()
    while True:
        end = time.perf_counter() + drawn.uniform(0.01, 1.0)
        while time.perf_counter() < end:
            pass
        time.sleep(drawn.uniform(0.01, 1.0))


def copies(seconds: float, lanes: Sequence[tuple[int, ...]], most: float, to: Path) -> int:
    """Tune a model whose one candidate is its copy, 50 times under load; 1 if more than two call it faster."""
    jobs = (("copy", str(seconds)) for _ in range(OF_COPIES))
    told = [found for _, found in answers(jobs, lanes, most)]
    verdicts = Counter(str(found.get("verdict", "failed to run")) for found in told)
    print(f"a model against its copy under load, {len(told)} runs: {dict(verdicts)}")
    write_results(to, {"lanes": [list(lane) for lane in lanes], "verdicts": dict(verdicts), "each": told})
    return 1 if verdicts["faster"] > ALLOWED_WINNERS or verdicts["failed to run"] else 0
