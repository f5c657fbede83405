"""Seconds to the end of the first training step of a GPT, in fresh processes, with empty caches and with full ones.

``python -m benchmarks.compile_time --layers 12 24 --rivals eager torch lamina``
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import stat
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.compilers import compile_function, compiler_name
from benchmarks.gpt import batch, private_gpt
from benchmarks.report import RESULTS, print_table, write_results
from lamina.bench import alternate

__all__ = ["COMPILERS", "MARK", "Sample", "counting_compilers", "main"]

COMPILERS = ("g++", "gcc", "c++", "cc", "clang++", "clang")
MARK = "RESULT "


@dataclass(slots=True)
class Sample:
    """What one fresh process measured."""

    rival: str
    layers: int
    cache: str
    first_step_seconds: float
    forward_seconds: float
    step_milliseconds: float
    peak_megabytes: float
    loss: float
    stages: dict[str, float] = field(default_factory=dict)
    compilations: int = 0
    compiler_processes: int = 0


def _step(function: Callable[..., Any], model: torch.nn.Module, data: tuple[Any, ...]) -> Callable[[], Any]:
    def step() -> Any:
        model.zero_grad(set_to_none=True)
        loss = function(*data)
        loss.backward()
        return loss

    return step


def _child(rival: str, layers: int, steps: int) -> None:
    """Compile and train in this process; prints one line of JSON. Imports and the model's construction do not count."""
    compiler, model, data = compile_function(rival), private_gpt(layers), batch()
    start = time.perf_counter()
    function = compiler(model, dynamic=False)
    loss = function(*data)
    forward = time.perf_counter() - start
    loss.backward()
    first = time.perf_counter() - start
    step = _step(function, model, data)
    times = []
    for _ in range(steps):
        before = time.perf_counter()
        step()
        times.append(time.perf_counter() - before)
    record = getattr(function, "record", None)
    sample = Sample(
        rival,
        layers,
        "",
        first,
        forward,
        statistics.median(times) * 1e3 if times else 0.0,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        loss.item(),
        record.seconds() if record is not None else {},
    )
    print(MARK + json.dumps(asdict(sample)))


def _child_steady(rivals: Sequence[str], layers: int, seconds: float) -> None:
    """Time the steady training step of all rivals in this process, by turns; prints one line of JSON."""
    data, steps = batch(), {}
    for rival in rivals:
        model = private_gpt(layers)
        steps[rival] = _step(compile_function(rival)(model, dynamic=False), model, data)
    timed = alternate(steps, seconds=seconds, warmup=5)
    result = {
        "layers": layers,
        "milliseconds": {rival: timed[rival].median * 1e3 for rival in rivals},
        "spread": {rival: timed[rival].spread * 1e3 for rival in rivals},
        "ratio": {rival: timed.ratio(rival, rivals[-1]) for rival in rivals[:-1]},
    }
    print(MARK + json.dumps(result))


def counting_compilers(folder: Path) -> Path:
    """A folder of scripts named as the C++ compilers, each of which notes its arguments and runs the real one."""
    folder.mkdir()
    for name in COMPILERS:
        real = shutil.which(name)
        if real is None:
            continue
        script = folder / name
        script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> "{folder}/log"\nexec "{real}" "$@"\n', encoding="utf-8")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return folder


def _run(arguments: Sequence[str], caches: Path, compilers: Path) -> dict[str, Any]:
    environment = {
        **os.environ,
        "PATH": f"{compilers}{os.pathsep}{os.environ['PATH']}",
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "LAMINA_CACHE_DIR": str(caches / "lamina"),
    }
    for name in ("CC", "CXX", "LAMINA_CXX"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "benchmarks.compile_time", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            return json.loads(line.removeprefix(MARK))  # type: ignore[no-any-return]
    raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")


def _measure(rival: str, layers: int, caches: tuple[str, ...], steps: int) -> list[Sample]:
    samples = []
    with tempfile.TemporaryDirectory() as folder:
        compilers = counting_compilers(Path(folder) / "bin")
        log = compilers / "log"
        for cache in caches:
            log.write_text("", encoding="utf-8")
            arguments = ["--child", rival, "--layers", str(layers), "--steps", str(steps)]
            sample = Sample(**_run(arguments, Path(folder), compilers))
            calls = log.read_text(encoding="utf-8").splitlines()
            sample.cache, sample.compiler_processes = cache, len(calls)
            sample.compilations = sum(any(w.endswith((".cpp", ".c", ".cc", ".cxx")) for w in c.split()) for c in calls)
            samples.append(sample)
            print(
                f"{rival}, {layers} layers, {cache}: first step {sample.first_step_seconds:.2f} s, "
                f"{sample.compilations} compilations",
                flush=True,
            )
    return samples


def _median(samples: Sequence[Sample]) -> Sample:
    return sorted(samples, key=lambda s: s.first_step_seconds)[len(samples) // 2]


def _print(samples: Sequence[Sample], steady: Sequence[dict[str, Any]]) -> None:
    columns = ["rival", "layers", "cache", "first step s", "forward s", "compilations", "compiler processes"]
    rows = [
        [
            s.rival,
            str(s.layers),
            s.cache,
            f"{s.first_step_seconds:.2f}",
            f"{s.forward_seconds:.2f}",
            str(s.compilations),
            str(s.compiler_processes),
            f"{s.step_milliseconds:.1f}",
            f"{s.peak_megabytes:.0f}",
        ]
        for s in samples
    ]
    print_table("First training step of a GPT, fresh process each", [*columns, "step ms", "peak MB"], rows)
    for s in samples:
        if s.stages:
            stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in s.stages.items())
            print(f"{s.rival}, {s.layers} layers, {s.cache}, seconds by stage: {stages}")
    for row in steady:
        times = ", ".join(f"{name} {value:.1f} ms" for name, value in row["milliseconds"].items())
        ratios = ", ".join(f"{name} {value:.2f}" for name, value in row["ratio"].items())
        print(f"steady step by turns in one process, {row['layers']} layers: {times}; last against {ratios}")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", default="lamina", type=compiler_name, metavar="NAME")
    parser.add_argument("--rivals", nargs="*", default=["eager", "torch"], type=compiler_name, metavar="NAME")
    parser.add_argument("--layers", nargs="*", type=int, default=[12, 24])
    parser.add_argument("--caches", nargs="*", default=["cold", "warm"], choices=["cold", "warm"])
    parser.add_argument("--repeat", type=int, default=1, help="samples of each; the median is reported")
    parser.add_argument("--steps", type=int, default=30, help="steps timed after the first")
    parser.add_argument("--steady", type=float, default=6.0, help="seconds per rival of the steady comparison; 0: none")
    parser.add_argument("--json", type=Path, default=RESULTS / "compile_time.json")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--child-steady", nargs="*", default=[], help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        _child(args.child, args.layers[0], args.steps)
        return 0
    if args.child_steady:
        _child_steady(args.child_steady, args.layers[0], args.steady)
        return 0
    rivals = list(dict.fromkeys([*args.rivals, args.compile]))
    if "warm" in args.caches and "cold" not in args.caches:
        args.caches = ["cold", "warm"]  # a warm cache is the one that the cold run filled
    samples, steady = [], []
    for layers in args.layers:
        for rival in rivals:
            runs = [_measure(rival, layers, tuple(args.caches), args.steps) for _ in range(args.repeat)]
            samples += [_median(of_one_cache) for of_one_cache in zip(*runs, strict=True)]
        if args.steady:
            steady.append(_steady(rivals, layers, args.steady))
    _print(samples, steady)
    write_results(args.json, {"samples": [asdict(s) for s in samples], "steady": steady})
    return 0


def _steady(rivals: Sequence[str], layers: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        compilers = counting_compilers(Path(folder) / "bin")
        arguments = ["--child-steady", *rivals, "--layers", str(layers), "--steady", str(seconds)]
        return _run(arguments, Path(folder), compilers)


if __name__ == "__main__":
    raise SystemExit(main())
