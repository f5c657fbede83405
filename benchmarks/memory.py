"""Memory of a process that trains a model, or runs it: eager, torch.compile and Lamina, in fresh processes by turns.

``python -m benchmarks.memory [--models GPT CNN ...] [--rounds 2] [--compile lamina] [--rivals eager torch]``

Figures are MiB of resident memory over what the process had with the model, its input and a small compiled program.
``peak`` is the most during a step from the third on, ``kept`` what is left between such steps. What the compiler
itself has allocated for the model is in both. Of each the median over the rounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.compilers import compile_function, compiler_name
from benchmarks.memory_models import MODELS
from benchmarks.report import RESULTS, print_table, write_results

__all__ = ["main"]

_MIB = 1 << 20
_MARK = "RESULT "
_WARM, _STEPS = 3, 3


def _status(name: str) -> float:
    """MiB of a line of the process's status."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def _loss(found: Tensor) -> Tensor:
    return found if found.dim() == 0 else found.square().mean()


def _measured(name: str, compiler: str, training: bool) -> dict[str, float]:
    """In a process of its own: the figures of one model."""
    compile_ = compile_function(compiler)
    small = torch.ones(64, requires_grad=True)
    _loss(compile_(lambda t: t.sin() * t)(small)).backward()  # type: ignore[no-untyped-call]
    torch.manual_seed(0)
    make, given = MODELS[name]
    model, x = make(), given()
    call: Callable[..., Tensor] = compile_(model)

    def step() -> None:
        if not training:
            with torch.no_grad():
                call(x)
            return
        _loss(call(x)).backward()  # type: ignore[no-untyped-call]
        for parameter in model.parameters():
            parameter.grad = None

    gc.collect()
    start = _status("VmRSS")
    for _ in range(_WARM):
        step()
    gc.collect()
    kept = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak from here on
    for _ in range(_STEPS):
        step()
    return {"peak": _status("VmHWM") - start, "kept": kept - start}


def _process(name: str, compiler: str, training: bool) -> dict[str, float]:
    what = "training" if training else "inference"
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.memory", "--child", name, compiler, what]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    line = next((line for line in done.stdout.splitlines() if line.startswith(_MARK)), "")
    if not line:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, float] = json.loads(line.removeprefix(_MARK))
    return found


def _row(name: str, training: bool, compilers: Sequence[str], rounds: int) -> dict[str, object]:
    runs: dict[str, list[dict[str, float]]] = {compiler: [] for compiler in compilers}
    for _ in range(rounds):
        for compiler in compilers:
            runs[compiler].append(_process(name, compiler, training))
    middle = {
        compiler: {key: round(statistics.median(run[key] for run in found), 1) for key in ("peak", "kept")}
        for compiler, found in runs.items()
    }
    return {"model": name, "training": training, "rounds": rounds, "MiB": middle}


def _table(rows: Sequence[dict[str, object]], compilers: Sequence[str]) -> None:
    columns = ["model", *(f"{compiler} {key}" for compiler in compilers for key in ("peak", "kept"))]
    lines: list[list[str]] = []
    for row in rows:
        found = row["MiB"]
        assert isinstance(found, dict)
        figures = [f"{found[compiler][key]:.0f}" for compiler in compilers for key in ("peak", "kept")]
        lines.append([f"{row['model']} {'training' if row['training'] else 'inference'}", *figures])
    print_table("MiB over the start", columns, lines)


def _kept(path: Path, models: Sequence[str]) -> list[dict[str, object]]:
    """Rows of earlier runs, but for those of ``models``."""
    if not path.exists():
        return []
    rows: list[dict[str, object]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [row for row in rows if row["model"] not in models]


def main() -> None:
    """Measure, print tables, write ``results/memory.json``, in which rows of models that are not named stay."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--compile", type=compiler_name, default="lamina")
    parser.add_argument("--rivals", nargs="*", type=compiler_name, default=["eager", "torch"])
    parser.add_argument("--output", type=Path, default=RESULTS / "memory.json")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        name, compiler, what = given.child
        print(_MARK + json.dumps(_measured(name, compiler, what == "training")))
        return
    compilers = [*given.rivals, given.compile]
    rows = _kept(given.output, given.models)
    for training in (True, False):
        for name in given.models:
            rows.append(_row(name, training, compilers, given.rounds))
            _table(rows[-1:], compilers)
            write_results(given.output, {"rows": rows})


if __name__ == "__main__":
    main()
