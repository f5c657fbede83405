"""The same search by one process after another and by the workers of a Ray cluster of this machine."""

from __future__ import annotations

import os
import time
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


def compared(seconds: float, to: Path) -> int:
    """Tune a model by each executor in turns, one thread a candidate; what starts the cluster is counted."""
    torch.set_num_threads(1)
    model, x = model_of(MODEL)
    told: list[dict[str, Any]] = []
    for executor in ("local", "ray") * TURNS:
        start = time.monotonic()
        result = lamina.tune(
            model, x, candidates=CANDIDATES, modules=False, journal=False, seconds=seconds, executor=executor
        )
        spent = time.monotonic() - start
        rows = {row.candidate.name: row.verdict for row in result.rows}
        told.append({"executor": executor, "seconds": round(spent, 1), "rows": rows})
        print(executor, f"{spent:.1f} s", flush=True)
    means = {name: sum(t["seconds"] for t in told if t["executor"] == name) / TURNS for name in ("local", "ray")}
    print_table("seconds of a search", ("executor", "mean"), [[n, f"{s:.1f}"] for n, s in means.items()])
    workers = os.cpu_count()
    write_results(to, {"workers": workers, "means": means, "ratio": means["local"] / means["ray"], "each": told})
    return 0
