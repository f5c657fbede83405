"""The same search by one candidate after the other and by several at a time on this machine.

Ray is measured twice: with the start of its cluster, which ends with the search, and on a cluster that runs already.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from statistics import mean
from typing import Any

import torch

import lamina
from benchmarks.gpu_machine import needs_gpu, one_assembler
from benchmarks.report import print_table, write_results
from benchmarks.tuner.models import model_of
from lamina.tuner.values import Candidate

__all__ = ["compared"]

MODEL = "encoder layer"
RUNNING = "ray, running"
"""The executor "ray" on a cluster that is there before the search begins, and has its workers."""
CANDIDATES = (
    *(
        Candidate(f"lamina, {mode}", "lamina", {"mode": mode}, 3)
        for mode in ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
    ),
    Candidate("lamina", "lamina", cost=2),
    Candidate("lamina, frozen", "lamina", {"options": {"freeze": True}}, 3),
    *(
        Candidate(f"torch.compile, {mode}", "torch.compile", {"mode": mode}, 3)
        for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
    ),
    Candidate("torch.compile", "torch.compile", cost=2),
)


def compared(seconds: float, executors: Sequence[str], turns: int, to: Path, device: str = "cpu") -> int:
    """Tune a model by each executor in turns, on a CPU one thread a candidate. The first executor is what the others
    are held against. Caches of compilers are filled before.
    """
    if device == "cuda":
        needs_gpu()
        one_assembler()
    else:
        torch.set_num_threads(1)
    model, x = model_of(MODEL, device)
    # Each search of products that a mode makes is some minute of a GPU's time when it is made first.
    candidates = [c for c in CANDIDATES if device == "cpu" or not c.name.endswith("no-cudagraphs")]
    # The server that candidates are forks of is started once in a process, whatever the executor.
    lamina.tune(model, x, candidates=candidates, modules=False, journal=False, seconds=0.1, executor=executors[-1])
    told: list[dict[str, Any]] = []
    for executor in [*executors] * turns:
        with _cluster() if executor == RUNNING else contextlib.nullcontext():
            start = time.monotonic()
            result = lamina.tune(
                model,
                x,
                candidates=candidates,
                modules=False,
                journal=False,
                seconds=seconds,
                executor=executor.partition(",")[0],
            )
            spent = time.monotonic() - start
        rows = {row.candidate.name: row.verdict for row in result.rows}
        told.append({"executor": executor, "seconds": round(spent, 1), "load": os.getloadavg()[0], "rows": rows})
        print(executor, f"{spent:.1f} s, load {os.getloadavg()[0]:.1f}", flush=True)
    spans = {name: [t["seconds"] for t in told if t["executor"] == name] for name in executors}
    means = {name: round(mean(spent), 1) for name, spent in spans.items()}
    ratios = {name: round(means[executors[0]] / spent, 2) for name, spent in means.items()}
    table = [
        [name, f"{spent:.1f}", f"{min(spans[name]):.1f} to {max(spans[name]):.1f}", f"{ratios[name]:.2f}"]
        for name, spent in means.items()
    ]
    print_table("seconds of a search", ("executor", "mean", "from, to", f"times as fast as {executors[0]}"), table)
    gpus = [] if device == "cpu" else [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    found: dict[str, Any] = {"gpus": gpus} if gpus else {}
    found |= {"cores": os.cpu_count(), "seconds a candidate": seconds, "means": means, "ratios": ratios, "each": told}
    write_results(to, found)
    return 0


@contextlib.contextmanager
def _cluster() -> Iterator[None]:
    """A Ray cluster of this machine that has run something on each core."""
    ray = import_module("ray")
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        ray.get([ray.remote(_wait).remote() for _ in range(os.cpu_count() or 1)])
        yield
    finally:
        ray.shutdown()


def _wait() -> None:
    time.sleep(1)
