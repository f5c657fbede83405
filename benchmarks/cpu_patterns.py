"""Speed and error of the twenty CPU patterns: eager, torch.compile and a compile function, in one process by turns.

``python -m benchmarks.cpu_patterns --rows softmax layer_norm --dtypes fp32 --modes training``
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.compilers import compile_function, compiler_name
from benchmarks.patterns import PATTERNS, Data, Pattern, private_copy
from benchmarks.report import RESULTS, geometric_mean, print_table, write_results
from lamina.bench import Rivals, alternate
from lamina.testing import error, judge, tensors

__all__ = ["Row", "main", "measure", "rival_of"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TIE = 1.03
"""A row is slower only beyond this ratio: less is noise."""


@dataclass(slots=True)
class Row:
    """One line of the table: microseconds per call and largest error against fp64 by rival, and ratios of medians."""

    name: str
    microseconds: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    speedups: dict[str, float] = field(default_factory=dict)
    compile_seconds: dict[str, float] = field(default_factory=dict)
    kernels: str = ""
    complaints: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Rival:
    """One way to run a pattern, on inputs of its own."""

    call: Callable[[], Any]
    values: Callable[[], list[Tensor]]


def rival_of(pattern: Pattern, data: Data, compiler: Callable[..., Any] | None) -> tuple[_Rival, Any]:
    """A pattern on ``data`` compiled with ``compiler`` (None: eager), and the compiled function."""
    problem = pattern.build(data)
    function = private_copy(problem.function)
    compiled = function if compiler is None else compiler(function, dynamic=False)
    cotangents: list[Tensor] = []

    def forward() -> list[Tensor]:
        return tensors(compiled(*problem.args))

    def training() -> list[Tensor]:
        outputs = forward()
        if not cotangents:
            cotangents.extend(data.randn(*t.shape).to(t.dtype) for t in outputs)
        return [*outputs, *torch.autograd.grad(outputs, data.leaves, cotangents)]

    call = training if data.training else forward

    def values() -> list[Tensor]:
        results = [*call(), *problem.state]
        return [t.detach().clone() for t in results]

    return _Rival(call, values), compiled


def measure(pattern: Pattern, dtype: str, mode: str, subject: str, rivals: Sequence[str], seconds: float) -> Row:
    """Build the pattern once per rival, check each against fp64, then time all of them by turns."""
    torch.compiler.reset()
    row = Row(f"{pattern.name}.{dtype}.{mode}")
    stored, training = DTYPES[dtype], mode == "training"
    exact = rival_of(pattern, Data(stored, torch.float64, training), None)[0].values()
    values: dict[str, list[Tensor]] = {}
    calls: dict[str, Callable[[], Any]] = {}
    for name in rivals:
        compiler = None if name == "eager" else compile_function(name)
        rival, compiled = rival_of(pattern, Data(stored, stored, training), compiler)
        start = time.perf_counter()
        values[name] = rival.values()
        row.compile_seconds[name] = time.perf_counter() - start
        row.errors[name] = max(error(v, e).largest for v, e in zip(values[name], exact, strict=True))
        calls[name] = rival.call
        if name == subject:
            row.kernels = _kernels(compiled)
    for number, results in enumerate(zip(values[subject], values["eager"], exact, strict=True)):
        complaint = judge(*results)
        if complaint:
            row.complaints.append(f"result {number}: {complaint}")
    timed = _timed(calls, seconds)
    for name in rivals:
        row.microseconds[name] = timed[name].median * 1e6
        if name != subject:
            row.speedups[name] = timed.ratio(name, subject)
    return row


def _timed(calls: dict[str, Callable[[], Any]], seconds: float) -> Rivals:
    return alternate(calls, seconds=seconds, warmup=5)


def _kernels(compiled: Any) -> str:
    record = getattr(compiled, "record", None)
    if record is None:
        return ""
    plans = [stage.value for stage in record.stages if hasattr(stage.value, "kernel_count")]
    return f"{sum(p.kernel_count for p in plans)}+{sum(p.library_count for p in plans)}"


def _selected(args: argparse.Namespace) -> list[tuple[Pattern, str, str]]:
    known = {p.name for p in PATTERNS}
    unknown = set(args.rows) - known
    if unknown:
        raise SystemExit(f"no pattern is called {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    chosen = [
        (pattern, dtype, mode)
        for pattern in PATTERNS
        for dtype in args.dtypes
        for mode in args.modes
        if mode in pattern.modes and (not args.rows or pattern.name in args.rows)
    ]
    return [c for c in chosen if not args.only or args.only in f"{c[0].name}.{c[1]}.{c[2]}"]


def _print(rows: Sequence[Row], subject: str, rivals: Sequence[str]) -> None:
    others = [name for name in rivals if name != subject]
    columns = ["row", *(f"{name} µs" for name in rivals), *(f"vs {name}" for name in others), "vs best"]
    columns += ["error eager", f"error {subject}", "kernels", "verdict"]
    table = []
    for row in rows:
        best = min(row.speedups.values(), default=1.0)
        verdict = "WRONG" if row.complaints else "slower" if best < 1 / TIE else ""
        table.append(
            [
                row.name,
                *(f"{row.microseconds.get(name, float('nan')):.1f}" for name in rivals),
                *(f"{row.speedups.get(name, float('nan')):.2f}" for name in others),
                f"{best:.2f}",
                f"{row.errors.get('eager', float('nan')):.1e}",
                f"{row.errors.get(subject, float('nan')):.1e}",
                row.kernels,
                verdict,
            ]
        )
    print_table(f"CPU patterns: {subject} against {', '.join(others)} (above 1: {subject} is faster)", columns, table)


def _summary(rows: Sequence[Row]) -> dict[str, Any]:
    timed = [row for row in rows if row.speedups]
    names = list(timed[0].speedups) if timed else []
    summary: dict[str, Any] = {f"geomean_vs_{n}": geometric_mean(r.speedups[n] for r in timed) for n in names}
    for dtype in DTYPES:
        part = [row for row in timed if f".{dtype}." in row.name]
        summary |= {f"geomean_vs_{n}_{dtype}": geometric_mean(r.speedups[n] for r in part) for n in names if part}
    summary["rows"] = len(rows)
    summary["slower_than_best"] = [r.name for r in timed if min(r.speedups.values()) < 1 / TIE]
    summary["wrong"] = {r.name: r.complaints for r in rows if r.complaints}
    return summary


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON; 1 if a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--compile", default="lamina", type=compiler_name, metavar="NAME", help="compile function to judge"
    )
    parser.add_argument("--rows", nargs="*", default=[], metavar="NAME", help="patterns to run; default all")
    parser.add_argument("--only", default="", help="run rows whose full name (pattern.dtype.mode) contains this")
    parser.add_argument("--dtypes", nargs="*", default=list(DTYPES), choices=list(DTYPES))
    parser.add_argument("--modes", nargs="*", default=["forward", "training"], choices=["forward", "training"])
    parser.add_argument(
        "--rivals", nargs="*", default=["torch"], type=compiler_name, metavar="NAME", help="besides eager"
    )
    parser.add_argument("--seconds", type=float, default=0.6, help="time given to each rival of a row")
    parser.add_argument("--repeat", type=int, default=1, help="measure each row so often, keep the median row")
    parser.add_argument("--json", type=Path, default=RESULTS / "cpu_patterns.json", help="where to write the results")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    rivals = list(dict.fromkeys(["eager", *args.rivals, args.compile]))
    rows = []
    chosen = _selected(args)
    for number, (pattern, dtype, mode) in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {pattern.name}.{dtype}.{mode}", flush=True)
        try:
            tries = [measure(pattern, dtype, mode, args.compile, rivals, args.seconds) for _ in range(args.repeat)]
        except Exception as problem:
            text = f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
            rows.append(Row(f"{pattern.name}.{dtype}.{mode}", complaints=[text]))
            print(f"    {text}", flush=True)
            continue
        tries.sort(key=lambda r: min(r.speedups.values(), default=1.0))
        rows.append(copy.copy(tries[len(tries) // 2]))
    _print(rows, args.compile, rivals)
    summary = _summary(rows)
    for key, value in summary.items():
        print(f"{key}: {value:.3f}" if isinstance(value, float) else f"{key}: {value}")
    write_results(args.json, {"subject": args.compile, "summary": summary, "rows": [asdict(r) for r in rows]})
    return 1 if summary["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
