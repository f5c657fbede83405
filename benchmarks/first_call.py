"""Seconds of the first call of small models of three libraries, in fresh processes with empty caches, by stage.

``python -m benchmarks.first_call --rivals torch --results /tmp/first_call`` (resumable: a file for each model).
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

import lamina
from benchmarks.compile_time import COMPILERS, MARK, counting_compilers
from benchmarks.compilers import compile_function, compiler_name
from benchmarks.first_call_models import MODELS, build
from benchmarks.report import RESULTS, geometric_mean, print_table, write_results

__all__ = ["FirstCall", "main"]

_ONE_AFTER_THE_OTHER = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", "LAMINA_JOBS": "1"}
_STAGES = ("capture", "aot", "rewrite", "partition", "lower", "fuse", "plan", "codegen", "build", "wait")


@dataclass(slots=True)
class FirstCall:
    """What one fresh process measured; ``error`` is why there are no figures."""

    rival: str
    model: str
    training: bool
    seconds: float = 0.0
    """From the call of the compile function to the end of the first call, backward pass included."""

    cpu_seconds: float = 0.0
    """Of this process and of the compilers it started, all cores."""

    compiler_cpu_seconds: float = 0.0
    compiler_starts: int = 0
    compilations: int = 0
    stages: dict[str, float] = field(default_factory=dict)
    launches: int = 0
    kernels: int = 0
    compiled: int = 0
    library_calls: int = 0
    error: str = ""


def _child(rival: str, name: str, training: bool, size: int) -> None:
    """Make the first call in this process; prints one line of JSON. Imports and the model's making do not count."""
    result = FirstCall(rival, name, training)
    try:
        compiler, (model, inputs) = compile_function(rival), build(name, size)
    except ImportError as missing:
        result.error = str(missing)
        print(MARK + json.dumps(asdict(result)))
        return
    model.train(training)
    before, start = os.times(), time.perf_counter()
    with contextlib.nullcontext() if training else torch.no_grad():
        function = compiler(model, dynamic=False)
        outputs = function(**inputs)
        if training:
            torch.autograd.backward(_loss(outputs))
    result.seconds = time.perf_counter() - start
    after = os.times()
    result.compiler_cpu_seconds = sum(after[2:4]) - sum(before[2:4])
    result.cpu_seconds = sum(after[:4]) - sum(before[:4])
    record = getattr(function, "record", None)
    if record is not None:
        _describe(record, result)
    print(MARK + json.dumps(asdict(result)))


def _loss(outputs: Any) -> torch.Tensor:
    """The sum of the squares of all results that have a gradient."""
    values = outputs.values() if isinstance(outputs, Mapping) else outputs
    if isinstance(values, torch.Tensor):
        return values.square().mean()
    losses = [_loss(value) for value in values if not isinstance(value, float | int | str | None)]
    return torch.stack([loss for loss in losses if loss.requires_grad]).sum()


def _describe(record: Any, result: FirstCall) -> None:
    result.stages = record.seconds()
    for stage in record.stages:
        if stage.name == "plan":
            result.launches += stage.value.kernel_count
            result.library_calls += stage.value.library_count
            result.kernels += len(stage.value.kernels)
        elif stage.name == "build" and stage.value is not None:
            result.compiled += stage.value.compiled


def _measure(rival: str, name: str, training: bool, size: int, seconds: float, sequential: bool) -> FirstCall:
    """The first call in a process of its own with a cache of its own.

    ``sequential``: on one thread, with one compiler at a time.
    """
    with tempfile.TemporaryDirectory() as folder:
        compilers = counting_compilers(Path(folder) / "bin")
        caches = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "LAMINA_CACHE_DIR": "lamina"}
        environment = {**os.environ, "PATH": f"{compilers}{os.pathsep}{os.environ['PATH']}"}
        environment |= {variable: str(Path(folder) / name) for variable, name in caches.items()}
        environment |= _ONE_AFTER_THE_OTHER if sequential else {}
        # What pip installs has its bytecode beside it.
        for variable in ("CC", "CXX", "LAMINA_CXX", "PYTHONDONTWRITEBYTECODE"):
            environment.pop(variable, None)
        command = [sys.executable, "-m", "benchmarks.first_call", "--child", rival, "--models", name]
        command += ["--size", str(size), *(["--no-inference"] if training else ["--no-training"])]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            return FirstCall(rival, name, training, seconds, error=f"more than {seconds:g} s")
        line = next((text for text in done.stdout.splitlines() if text.startswith(MARK)), None)
        if line is None:
            return FirstCall(rival, name, training, error=(done.stderr.strip().splitlines() or ["no word"])[-1][:300])
        result = FirstCall(**json.loads(line.removeprefix(MARK)))
        log = compilers / "log"
        calls = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        result.compiler_starts = len(calls)
        result.compilations = sum(any(w.endswith((".cpp", ".c", ".cc", ".cxx")) for w in c.split()) for c in calls)
        return result


def _kept(path: Path, measure: Callable[[], FirstCall]) -> FirstCall:
    """The result that ``path`` holds, else that of ``measure``, which is written there."""
    if path.exists():
        return FirstCall(**json.loads(path.read_text(encoding="utf-8")))
    result = measure()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(result), indent=1) + "\n", encoding="utf-8")
    part.rename(path)
    return result


def _print(ours: str, results: Sequence[FirstCall], sequential: bool) -> None:
    def taken(result: FirstCall) -> float:
        return result.cpu_seconds if sequential else result.seconds

    by_call: dict[tuple[str, bool], dict[str, FirstCall]] = {}
    for result in results:
        by_call.setdefault((result.model, result.training), {})[result.rival] = result
    rows, ratios = [], []
    for (model, training), of in by_call.items():
        mine, others = of[ours], [r for r in of.values() if r.rival != ours]
        title = f"{model} {'training' if training else 'inference'}"
        if mine.error:
            rows.append([title, mine.error[:40]])
            continue
        ratio = [taken(r) / taken(mine) for r in others if taken(r)]
        ratios += ratio
        shown = [
            f"{mine.seconds:.1f}",
            f"{mine.cpu_seconds:.1f}",
            *(f"{mine.stages.get(stage, 0.0):.2f}" for stage in _STAGES),
        ]
        counts = [mine.launches, mine.kernels, mine.compiled, mine.compiler_starts]
        per_kernel = f"{mine.compiler_cpu_seconds / mine.compiled * 1e3:.0f}" if mine.compiled else ""
        rivals = [f"{taken(r) or r.seconds:.1f}{'+' if r.error else ''}" for r in others]
        rows.append([title, *shown, *map(str, counts), per_kernel, *rivals, *(f"{r:.1f}" for r in ratio)])
    columns = [
        "first call",
        "s",
        "CPU s",
        *_STAGES,
        "launches",
        "kernels",
        "compiled",
        "starts",
        "ms/kernel",
        "rival s",
        "ratio",
    ]
    print_table("First calls, fresh process and empty cache each", columns, rows)
    seconds = [taken(r) for r in results if r.rival == ours and not r.error]
    if seconds:
        print(f"{len(seconds)} first calls, longest {max(seconds):.1f} {'CPU ' * sequential}s", end="")
        print(f"; rivals take {geometric_mean(ratios):.1f} times as long, least {min(ratios):.1f}" if ratios else "")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is not there yet, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", default="lamina", type=compiler_name, metavar="NAME")
    parser.add_argument("--rivals", nargs="*", default=["torch"], type=compiler_name, metavar="NAME")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS), metavar="MODEL")
    parser.add_argument("--size", type=int, default=0, help="pixels of an image's side; 0: the model's own")
    parser.add_argument("--no-training", action="store_true")
    parser.add_argument("--no-inference", action="store_true")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a first call is given up")
    parser.add_argument(
        "--sequential", action="store_true", help="one thread, one compiler at a time; processor's seconds are compared"
    )
    parser.add_argument("--results", type=Path, default=None, help="a folder of results to go on with")
    parser.add_argument("--json", type=Path, default=RESULTS / "first_call.json")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        _child(args.child, args.models[0], args.no_inference, args.size)
        return 0
    kinds = [training for training in (True, False) if not (args.no_training if training else args.no_inference)]
    results = []
    compileall.compile_dir(Path(lamina.__file__).parent, quiet=2)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.results or Path(temporary)
        for name in args.models:
            for training in kinds:
                for rival in dict.fromkeys([args.compile, *args.rivals]):
                    path = folder / f"{name}_{'training' if training else 'inference'}_{rival}_{args.size}.json"
                    found = _kept(
                        path, partial(_measure, rival, name, training, args.size, args.limit, args.sequential)
                    )
                    print(f"{path.stem}: {found.error or f'{found.seconds:.2f} s'}", flush=True)
                    results.append(found)
    _print(args.compile, results, args.sequential)
    write_results(args.json, {"compilers": list(COMPILERS), "results": [asdict(r) for r in results]})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
