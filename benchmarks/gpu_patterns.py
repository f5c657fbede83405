"""Speed and error of the GPU patterns: a compile function against eager and every mode of torch.compile, by turns.

``python -m benchmarks.gpu_patterns --rows softmax_50257 layer_norm --only training --rivals eager torch``

One process, rivals in alternating order, the second-level cache written over before every sample, medians of CUDA
events. The JSON file is written again after every row, so that an interrupted run leaves what it has.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lamina
from benchmarks.gpu_machine import flush_cache, gpu
from benchmarks.gpu_programs import PROGRAMS, GpuData, GpuProgram, Program
from benchmarks.patterns import private_copy
from benchmarks.report import RESULTS, geometric_mean, print_table, write_results
from lamina.testing import error, judge, tensors

__all__ = ["RIVALS", "GpuRow", "alternate_events", "compiler_of", "main"]

RIVALS = ("eager", "torch", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
TIE = 1.03


@dataclass(slots=True)
class GpuRow:
    """One line of the table: GPU milliseconds and first call's seconds by rival, errors against fp64.

    ``speedup`` is the fastest rival's time over the subject's, ``share`` what part of the copy bandwidth the subject
    reached with the fewest bytes a forward can move.
    """

    name: str
    milliseconds: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    best: str = ""
    speedup: float = math.nan
    share: float | None = None
    peak_mib: dict[str, float] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


def compiler_of(name: str) -> Callable[[Any], Any]:
    """The compile function called ``name``: eager, torch, a mode of torch.compile, lamina or lamina:<mode>."""
    if name == "eager":
        return lambda function: function
    if name.startswith("lamina"):
        mode = name.partition(":")[2] or None
        return lambda function: lamina.compile(function, dynamic=False, mode=mode)
    mode = None if name == "torch" else name
    return lambda function: torch.compile(function, dynamic=False, mode=mode)


@dataclass(frozen=True, slots=True)
class _Rival:
    call: Callable[[], Any]
    values: Callable[[], list[Tensor]]


def _rival(program: Program, data: GpuData, name: str) -> _Rival:
    compiled = compiler_of(name)(private_copy(program.function))
    cotangents: list[Tensor] = []

    def forward() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            return compiled(*program.args)

    def training() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        outputs = tensors(compiled(*program.args))
        if not cotangents:
            drawn = torch.Generator("cuda").manual_seed(1)
            for t in outputs:
                wide = torch.randn(t.shape, generator=drawn, device="cuda").to(torch.bfloat16)
                cotangents.append(wide.to(t.dtype))
        gradients = torch.autograd.grad(outputs, data.leaves, cotangents)
        return [*outputs, *gradients]

    call = training if data.training else forward

    def values() -> list[Tensor]:
        return [t.detach().clone() for t in [*tensors(call()), *program.state]]

    return _Rival(call, values)


def alternate_events(calls: Mapping[str, Callable[[], Any]], samples: int) -> dict[str, float]:
    """Median GPU milliseconds of each callable, in turns whose order is reversed every other round."""
    for call in calls.values():
        for _ in range(5):
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(samples):
        marks = []
        for name in order:
            flush_cache()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            calls[name]()
            end.record()
            marks.append((name, start, end))
        torch.cuda.synchronize()
        for name, start, end in marks:
            times[name].append(start.elapsed_time(end))
        order.reverse()
    return {name: statistics.median(found) for name, found in times.items()}


def measure(pattern: GpuProgram, mode: str, subject: str, rivals: Sequence[str], samples: int, copy: float) -> GpuRow:
    """Build a row: every rival once, its error, its peak memory, then all by turns."""
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
    row, training = GpuRow(f"{pattern.name}.{mode}"), mode == "training"
    exact = None if pattern.random else _exact(pattern, training)
    calls: dict[str, Callable[[], Any]] = {}
    eager: list[Tensor] = []
    shared: tuple[Program, GpuData] | None = None
    moved = 0
    for name in dict.fromkeys(["eager", *rivals, subject]):
        if shared is None or shared[0].state:
            data = GpuData(torch.bfloat16, training)
            shared = pattern.build(data), data
        program, data = shared
        try:
            rival = _rival(program, data, name)
            start = time.perf_counter()
            found = rival.values()
            torch.cuda.synchronize()
            row.seconds[name] = time.perf_counter() - start
        except Exception as problem:
            row.failures[name] = f"{type(problem).__name__}: {problem}"[:300]
            continue
        if name == "eager":
            eager, moved = found, program.moved or _bytes(program, found)
        if exact is not None:
            row.errors[name] = max(error(v, e).largest for v, e in zip(found, exact, strict=True))
            if name == subject:
                complaints = [judge(*results) for results in zip(found, eager, exact, strict=True)]
                row.complaints = [f"result {k}: {text}" for k, text in enumerate(complaints) if text]
        del found
        row.peak_mib[name] = _peak(rival.call)
        if name == "eager" or name in rivals or name == subject:
            calls[name] = rival.call
    del exact, eager
    gc.collect()
    torch.cuda.empty_cache()
    row.milliseconds = alternate_events(calls, samples)
    others = {name: ms for name, ms in row.milliseconds.items() if name != subject}
    if subject in row.milliseconds and others:
        row.best = min(others, key=lambda name: others[name])
        row.speedup = others[row.best] / row.milliseconds[subject]
        if not training:
            row.share = moved / row.milliseconds[subject] / 1e6 / copy
    return row


def _exact(pattern: GpuProgram, training: bool) -> list[Tensor] | None:
    """The results in fp64, or None where they do not fit into memory."""
    try:
        data = GpuData(torch.float64, training)
        return _rival(pattern.build(data), data, "eager").values()
    except torch.cuda.OutOfMemoryError:
        return None


def _bytes(program: Program, results: Sequence[Tensor]) -> int:
    given = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors(program.args)}
    return sum(given.values()) + sum(t.numel() * t.element_size() for t in results)


def _peak(call: Callable[[], Any]) -> float:
    """Most MiB allocated during the second of two calls, beyond what was before."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated() - before) / 2**20


def _print(rows: Sequence[GpuRow], subject: str, rivals: Sequence[str]) -> None:
    columns = ["row", *(f"{name} ms" for name in rivals), "best", "ratio", "of copy", "err eager", f"err {subject}", ""]
    table = []
    for row in rows:
        slow = row.speedup < 1 / TIE
        verdict = "FAILED" if subject in row.failures else "WRONG" if row.complaints else "slower" if slow else ""
        table.append(
            [
                row.name,
                *(f"{row.milliseconds[n]:.3f}" if n in row.milliseconds else "-" for n in rivals),
                row.best,
                f"{row.speedup:.2f}",
                "" if row.share is None else f"{row.share:.2f}",
                f"{row.errors.get('eager', math.nan):.1e}",
                f"{row.errors.get(subject, math.nan):.1e}",
                verdict,
            ]
        )
    print_table(f"GPU patterns: {subject} over the best rival (above 1: {subject} is faster)", columns, table)


def _summary(rows: Sequence[GpuRow], subject: str) -> dict[str, Any]:
    timed = [row for row in rows if not math.isnan(row.speedup)]
    return {
        "rows": len(rows),
        "geomean_over_best": geometric_mean(row.speedup for row in timed),
        "slower_than_best": {row.name: round(row.speedup, 3) for row in timed if row.speedup < 1 / TIE},
        "forward_under_0.85_of_copy": {r.name: round(r.share, 3) for r in timed if r.share and r.share < 0.85},
        "wrong": {row.name: row.complaints for row in rows if row.complaints},
        "failed": {row.name: row.failures[subject] for row in rows if subject in row.failures},
    }


def _selected(args: argparse.Namespace) -> list[tuple[GpuProgram, str]]:
    known = {p.name for p in PROGRAMS}
    unknown = set(args.rows) - known
    if unknown:
        raise SystemExit(f"no pattern is called {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    chosen = [(p, mode) for p in PROGRAMS for mode in p.modes if not args.rows or p.name in args.rows]
    return [(p, mode) for p, mode in chosen if not args.only or args.only in f"{p.name}.{mode}"]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON; 1 if a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", default="lamina", help="what is judged: lamina, lamina:<mode>, torch, ...")
    parser.add_argument("--rows", nargs="*", default=[], metavar="NAME", help="patterns to run; default all")
    parser.add_argument("--only", default="", help="run rows whose full name (pattern.mode) contains this")
    parser.add_argument("--rivals", nargs="*", default=list(RIVALS))
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no row after this time")
    parser.add_argument("--json", type=Path, default=RESULTS / "gpu_patterns.json")
    args = parser.parse_args(argv)
    started = time.monotonic()
    about = gpu()
    rivals = list(dict.fromkeys(["eager", *args.rivals, args.compile]))
    rows: list[GpuRow] = []
    chosen = _selected(args)
    for number, (pattern, mode) in enumerate(chosen, 1):
        if time.monotonic() - started > args.seconds:
            print(f"no time for {len(chosen) - number + 1} rows", flush=True)
            break
        print(f"[{number}/{len(chosen)}] {pattern.name}.{mode}", flush=True)
        try:
            row = measure(pattern, mode, args.compile, args.rivals, args.samples, about["copy_gbs"])
        except Exception as problem:
            row = GpuRow(
                f"{pattern.name}.{mode}", failures={args.compile: f"{type(problem).__name__}: {problem}"[:300]}
            )
        rows.append(row)
        content = {"subject": args.compile, "gpu": about, "samples": args.samples}
        content |= {"summary": _summary(rows, args.compile), "rows": [asdict(r) for r in rows]}
        write_results(args.json, content)
    print(f"{about['name']}: copy {about['copy_gbs']} GB/s, bf16 products {about['gemm_bf16_tflops']} TFLOP/s")
    _print(rows, args.compile, rivals)
    summary = _summary(rows, args.compile)
    for key, value in summary.items():
        print(f"{key}: {value:.3f}" if isinstance(value, float) else f"{key}: {value}")
    return 1 if summary["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
