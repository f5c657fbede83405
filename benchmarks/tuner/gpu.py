"""Three models tuned on a GPU: eager, Lamina and torch.compile in their modes, channels-last, autocast and TF32."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import lamina
from benchmarks.gpu_machine import gpu, needs_gpu
from benchmarks.report import write_results
from benchmarks.tuner.models import GPU_MODELS, model_of
from lamina.tuner.values import Candidate

__all__ = ["tuned"]

_LAMINA = (
    Candidate("lamina", "lamina", cost=2),
    Candidate("lamina, reduce-overhead", "lamina", {"mode": "reduce-overhead"}, 3),
)
_TORCH = (
    Candidate("torch.compile", "torch.compile", cost=2),
    Candidate("torch.compile, reduce-overhead", "torch.compile", {"mode": "reduce-overhead"}, 3),
)
_LOSSY = (
    Candidate("autocast bfloat16", "autocast", {"dtype": "bfloat16"}, 2, True),
    Candidate("autocast float16, lamina", "autocast", {"dtype": "float16", "compiled": "lamina"}, 3, True),
    Candidate("tf32", "tf32", {}, 2, True),
    Candidate("lamina, tf32", "tf32", {"compiled": "lamina"}, 3, True),
)
CANDIDATES = {
    "chain": (*_LAMINA, *_TORCH),
    "encoder layer": (*_LAMINA, *_TORCH, *_LOSSY),
    "convolutions": (
        _LAMINA[0],
        _TORCH[0],
        Candidate("channels-last", "channels-last", cost=2),
        Candidate("lamina, channels-last", "channels-last", {"compiled": "lamina"}, 3),
        *_LOSSY[2:],
    ),
}


def tuned(seconds: float, to: Path) -> int:
    """Tune each model and write all rows; 1 if a chosen one is slower than eager."""
    needs_gpu()
    card = gpu()
    found: dict[str, Any] = {}
    for name in GPU_MODELS:
        model, x = model_of(name, "cuda")
        objective = "latency, error<=1e-2" if any(c.lossy for c in CANDIDATES[name]) else "latency"
        start = time.monotonic()
        result = lamina.tune(
            model, x, objective=objective, candidates=CANDIDATES[name], modules=False, journal=False, seconds=seconds
        )
        print(result, flush=True)
        rows = [{**row.to_json(), "log": list(row.log)[-3:]} for row in result.rows]
        for row in rows:
            if row["figures"]:
                row["figures"] = {k: v for k, v in row["figures"].items() if "timings" not in k}
        chosen = result.chosen.candidate.name
        found[name] = {"chosen": chosen, "seconds": time.monotonic() - start, "objective": objective, "rows": rows}
        write_results(to, {"gpu": card, "seconds_of_a_candidate": seconds, "models": found})
    slower = [row for one in found.values() for row in one["rows"] if row["candidate"]["name"] == one["chosen"]]
    return 1 if any(row["verdict"] == "slower" for row in slower) else 0
