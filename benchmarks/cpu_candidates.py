"""What timing the schedules of CPU kernels gains: ``mode="max-autotune"`` against the default mode, by turns.

``python -m benchmarks.cpu_candidates --programs 40`` compiles the twenty CPU patterns, single functions and reads at
places, and generated programs of the sweep in both modes. The calls are timed where at least one kernel got another
schedule than the model's; where none did, both modes run the same code. The JSON file has each candidate's median too.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import elementwise
from benchmarks.limit import TookTooLong, at_most
from benchmarks.patterns import PATTERNS, Data, Pattern, private_copy
from benchmarks.report import RESULTS, geometric_mean, print_table, write_results
from benchmarks.sweeping import grammar
from benchmarks.sweeping.case import DTYPES, MODES, Case, Skipped, Variant
from lamina import compile as lamina_compile
from lamina.bench import alternate
from lamina.record import Record
from lamina.testing import tensors
from lamina.tuning.values import Tuned

__all__ = ["Row", "main", "measure"]

ORIGINS = ("patterns", "functions", "generated")
SUBJECT = "max-autotune"
ROW_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Program:
    """``make`` gives a function with a code object of its own, its arguments, and what gets gradients."""

    name: str
    make: Callable[[], tuple[Callable[..., Any], Sequence[Any], Sequence[Tensor]]]


@dataclass(slots=True)
class Row:
    """``gain``: how many times as long the default mode takes; 1 where all kernels have the model's schedules.

    ``kernels`` has of each timed kernel its candidates' microseconds, the model's choice first, what the cost model
    expects of them, and the winner.
    """

    name: str
    gain: float = 1.0
    changed: int = 0
    first_call_seconds: dict[str, float] = field(default_factory=dict)
    kernels: dict[str, dict[str, Any]] = field(default_factory=dict)


def _of_pattern(pattern: Pattern, dtype: str, mode: str) -> Program:
    def make() -> tuple[Callable[..., Any], Sequence[Any], Sequence[Tensor]]:
        data = Data(DTYPES[dtype], DTYPES[dtype], mode == "training")
        problem = pattern.build(data)
        return private_copy(problem.function), problem.args, data.leaves

    return Program(f"{pattern.name}.{dtype}.{mode}", make)


def _of_function(case: elementwise.Case) -> Program:
    def make() -> tuple[Callable[..., Any], Sequence[Any], Sequence[Tensor]]:
        leaves = [a for a in case.args if isinstance(a, Tensor) and a.requires_grad] if case.training else []
        return private_copy(case.function), case.args, leaves

    return Program(f"function {case.name}", make)


def _of_case(case: Case, variant: Variant) -> Program:
    def make() -> tuple[Callable[..., Any], Sequence[Any], Sequence[Tensor]]:
        problem = case.make(variant)
        return problem.function, problem.args, problem.leaves if variant.training else ()

    return Program(f"{case.name}.{variant.dtype}.{variant.mode}", make)


def programs(origins: Sequence[str], count: int, seed: int) -> Iterator[Program]:
    """The patterns, each function of the other benchmark, and ``count`` generated programs in one variant each."""
    for pattern in PATTERNS if "patterns" in origins else ():
        for dtype in DTYPES:
            yield from (_of_pattern(pattern, dtype, mode) for mode in MODES if mode in pattern.modes)
    if "functions" in origins:
        yield from map(_of_function, elementwise.cases())
    kinds = [Variant(dtype, mode) for dtype in DTYPES for mode in MODES]
    for number, case in enumerate(grammar.cases(count, seed) if "generated" in origins else ()):
        yield _of_case(case, kinds[number % len(kinds)])


def measure(program: Program, seconds: float) -> Row:
    """Compile in both modes, and time the calls where the modes differ."""
    torch.compiler.reset()
    row = Row(program.name)
    calls: dict[str, Callable[[], Any]] = {}
    for mode in ("default", SUBJECT):
        function, args, leaves = program.make()
        compiled = lamina_compile(function, mode=mode, dynamic=False)
        calls[mode] = _call(compiled, args, leaves)
        start = time.perf_counter()
        calls[mode]()
        row.first_call_seconds[mode] = round(time.perf_counter() - start, 3)
        if mode == SUBJECT:
            _note(row, compiled.record)
    if row.changed:
        row.gain = round(alternate(calls, seconds=seconds, warmup=5).ratio("default", SUBJECT), 4)
    return row


def _call(compiled: Callable[..., Any], args: Sequence[Any], leaves: Sequence[Tensor]) -> Callable[[], Any]:
    cotangents: list[Tensor] = []

    def call() -> Any:
        outputs = tensors(compiled(*args))
        ends = [t for t in outputs if t.requires_grad] if leaves else []
        if not ends:
            return outputs
        if not cotangents:
            cotangents.extend(torch.randn_like(t) for t in ends)
        return [*outputs, *torch.autograd.grad(ends, leaves, cotangents, allow_unused=True)]

    return call


def _note(row: Row, record: Record) -> None:
    for stage in record.stages:
        for choice in stage.value.choices if isinstance(stage.value, Tuned) else ():
            first = choice.task.candidates[0].label
            row.changed += choice.winner.label != first
            if choice.times:
                times = {label: round(us, 2) for label, us in choice.times.items()}
                guesses = {c.label: round(c.predicted, 2) for c in choice.task.candidates if c.predicted is not None}
                row.kernels[choice.task.subject] = {
                    "first": first,
                    "winner": choice.winner.label,
                    "times": times,
                    "predicted": {label: guesses[label] for label in times if label in guesses},
                }


def _summary(rows: Sequence[Row]) -> dict[str, Any]:
    kernels = [k for row in rows for k in row.kernels.values() if k["first"] in k["times"]]
    won = [k for k in kernels if k["winner"] != k["first"]]
    gains = [k["times"][k["first"]] / k["times"][k["winner"]] for k in kernels]
    changed = [row for row in rows if row.changed]
    return {
        "programs": len(rows),
        "programs_changed": len(changed),
        "gain": geometric_mean(row.gain for row in rows),
        "gain_where_changed": geometric_mean(row.gain for row in changed) if changed else 1.0,
        "slower_by_3_percent": [row.name for row in changed if row.gain < 1 / 1.03],
        "kernels_timed": len(kernels),
        "kernels_changed": len(won),
        "kernel_gain": geometric_mean(gains) if gains else 1.0,
        "kernels_within_3_percent_of_the_fastest": sum(gain <= 1.03 for gain in gains),
        "steps": dict(Counter(_differs(k["first"], k["winner"]) for k in won).most_common()),
    }


def _differs(first: str, winner: str) -> str:
    """The words that one label has and the other has not."""
    a, b = first.split(), winner.split()
    return " ".join([*(f"-{w}" for w in a if w not in b), *(f"+{w}" for w in b if w not in a)])


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the rows that gain most, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--origins", nargs="*", default=list(ORIGINS), choices=ORIGINS)
    parser.add_argument("--programs", type=int, default=40, help="how many are generated")
    parser.add_argument("--seed", type=int, default=0, help="number of the first generated program")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    parser.add_argument("--seconds", type=float, default=0.3, help="time given to each mode of a row")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds for the whole run")
    parser.add_argument("--json", type=Path, default=RESULTS / "cpu_candidates.json")
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    left_out: dict[str, str] = {}
    started = time.perf_counter()
    for program in programs(args.origins, args.programs, args.seed):
        if args.only not in program.name or time.perf_counter() - started > args.budget:
            continue
        try:
            with at_most(ROW_SECONDS):
                rows.append(measure(program, args.seconds))
        except (Skipped, TookTooLong, RuntimeError, NotImplementedError, TypeError) as problem:
            left_out[program.name] = f"{type(problem).__name__}: {problem}"[:200]
            continue
        print(f"{rows[-1].name}: {rows[-1].changed} changed, gain {rows[-1].gain:.2f}", flush=True)
    summary = _summary(rows)
    best = sorted(rows, key=lambda row: -abs(math.log(row.gain)))[:25]
    table = [[row.name, f"{row.gain:.2f}", str(row.changed), str(len(row.kernels))] for row in best]
    print_table("max-autotune against default (above 1: it gains)", ["program", "gain", "changed", "timed"], table)
    print(summary)
    write_results(args.json, {"summary": summary, "left_out": left_out, "rows": [asdict(row) for row in rows]})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
