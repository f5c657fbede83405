"""The same search by one candidate after the other and by several at a time on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import lamina
from benchmarks.report import print_table, write_results
from benchmarks.tuner.models import model_of
from lamina.tuner.values import Candidate

__all__ = ["compared"]

MODEL = "encoder layer"
TURNS = 2
CANDIDATES = (
    *(
        Candidate(f"lamina, {mode}", "lamina", {"mode": mode}, 3)
        for mode in ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
    ),
    Candidate("lamina", "lamina", cost=2),
    Candidate("lamina, frozen", "lamina", {"options": {"freeze": True}}, 3),
    *(Candidate(f"torch.compile, {mode}", "torch.compile", {"mode": mode}, 3) for mode in ("default", "max-autotune")),
    Candidate("torch.compile", "torch.compile", cost=2),
)


def compared(seconds: float, executors: Sequence[str], to: Path) -> int:
    """Tune a model by each executor in turns, one thread a candidate; what starts a cluster is counted. The first
    executor is what the others are held against.
    """
    torch.set_num_threads(1)
    model, x = model_of(MODEL)
    # The server that candidates are forks of is started once in a process, whatever the executor.
    lamina.tune(model, x, candidates=CANDIDATES[-1:], modules=False, journal=False, seconds=seconds)
    told: list[dict[str, Any]] = []
    for executor in [*executors] * TURNS:
        start = time.monotonic()
        result = lamina.tune(
            model, x, candidates=CANDIDATES, modules=False, journal=False, seconds=seconds, executor=executor
        )
        spent = time.monotonic() - start
        rows = {row.candidate.name: row.verdict for row in result.rows}
        told.append({"executor": executor, "seconds": round(spent, 1), "rows": rows})
        print(executor, f"{spent:.1f} s", flush=True)
    means = {name: sum(t["seconds"] for t in told if t["executor"] == name) / TURNS for name in executors}
    ratios = {name: means[executors[0]] / mean for name, mean in means.items()}
    table = [[name, f"{mean:.1f}", f"{ratios[name]:.2f}"] for name, mean in means.items()]
    print_table("seconds of a search", ("executor", "mean", f"times as fast as {executors[0]}"), table)
    write_results(to, {"cores": os.cpu_count(), "means": means, "ratios": ratios, "each": told})
    return 0
