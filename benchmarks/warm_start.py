"""Whole processes that make one training step: eager beside what an earlier process has stored, by turns.

``python -m benchmarks.warm_start --rounds 5 [--models gpt hf_bert ...]``

A first process of each model compiles and stores. Then fresh processes take turns. Figures are CPU seconds of all
threads and seconds of the clock; of each, the median over the rounds of the difference within a round, so that other
load of the machine weighs on both alike. ``first`` is the first step, ``whole`` the process with all imports. Threads
that wait do not spin, which is no work of either; modules have their byte code stored, as they usually have.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, print_table, write_results

__all__ = ["main"]

_MODELS = (
    "gpt12", "gpt24", "hf_bert", "hf_gpt2", "hf_llama", "hf_t5_encoder", "hf_distilbert", "hf_qwen2", "hf_resnet",
    "hf_mobilenet_v2", "hf_regnet", "hf_convnext", "hf_swin", "hf_efficientnet",
)  # fmt: skip
_MARK = "RESULT "
_CHILD = """
import time
start, cpu = time.perf_counter(), time.process_time()
import json, sys
import torch
name, stored = sys.argv[1], sys.argv[2] == "stored"
if stored:
    import lamina
torch.manual_seed(0)
if name.startswith("gpt"):
    from benchmarks.gpt import GPT
    model, given = GPT(int(name[3:])), {n: torch.randint(0, 512, (4, 64)) for n in ("tokens", "targets")}
else:
    from benchmarks.first_call_models import build
    model, given = build(name)
    model.train()
before, cpu_before = time.perf_counter(), time.process_time()
call = lamina.compile(model, options={"capture": "own"}) if stored else model
found = call(**given)
while not isinstance(found, torch.Tensor):
    found = next(iter(found.values())) if hasattr(found, "values") else found[0]
(found if found.dim() == 0 else found.float().square().mean()).backward()
after, cpu_after = time.perf_counter(), time.process_time()
result = {"first": after - before, "first_cpu": cpu_after - cpu_before, "whole": after - start}
result |= {"whole_cpu": cpu_after - cpu, "compiler": "lamina.compile" in sys.modules}
if stored:
    from lamina.artefacts.front import stored_calls
    store = stored_calls(call)
    store.keep()
    result["told"] = [str(d.reason) for d in call.record.decisions("capture")][-3:]
print("RESULT " + json.dumps(result))
"""


def _process(name: str, mode: str, cache: str) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-c", _CHILD, name, mode]
    environment = {**os.environ, "LAMINA_CACHE_DIR": cache, "LAMINA_PROGRESS": "0", "OMP_WAIT_POLICY": "passive"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith(_MARK)), "")
    if not line:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(line.removeprefix(_MARK))
    return {**found, "process": time.perf_counter() - started}


def _measured(name: str, rounds: int, cache: str) -> dict[str, Any]:
    cold = _process(name, "stored", cache)
    pairs = [(_process(name, "eager", cache), _process(name, "stored", cache)) for _ in range(rounds)]
    figures: dict[str, Any] = {"model": name, "rounds": rounds, "cold_first_cpu": cold["first_cpu"]}
    figures["loaded"] = not any(stored["compiler"] for _, stored in pairs)
    if not figures["loaded"]:
        figures["told"] = pairs[0][1]["told"]
    for what in ("first", "first_cpu", "whole", "whole_cpu", "process"):
        figures[f"{what}_eager"] = statistics.median(eager[what] for eager, _ in pairs)
        figures[f"{what}_more"] = statistics.median(stored[what] - eager[what] for eager, stored in pairs)
    return figures


def main() -> None:
    """Measure, print and write ``results/warm_start.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="*", default=_MODELS)
    parser.add_argument("--results", type=Path, default=RESULTS / "warm_start.json")
    arguments = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as cache:
        for name in arguments.models:
            try:
                found.append(_measured(name, arguments.rounds, cache))
            except RuntimeError as error:
                found.append({"model": name, "error": str(error)[-300:]})
            print(json.dumps(found[-1]), flush=True)
    rows = [
        [
            f["model"],
            str(f["loaded"]),
            *(f"{f[k]:.2f}" for k in ("first_cpu_eager", "first_cpu_more", "whole_cpu_more")),
        ]
        for f in found
        if "error" not in f
    ]
    columns = ["model", "loaded", "eager's first step, CPU s", "more", "more, whole process"]
    print_table("Training steps of processes that find their calls stored", columns, rows)
    write_results(arguments.results, {"load": os.getloadavg()[0], "models": found})


if __name__ == "__main__":
    main()
