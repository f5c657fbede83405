"""Torch's databases of operators and modules, all samples in seven types, and all inputs that operators must refuse.

``python -m benchmarks.operators --workers 2``: static and dynamic sizes, samples, wrong inputs and modules. ``--part``,
``--dtype`` and ``--only`` choose some of it; ``--samples 8`` takes eight of each operator's samples, evenly spread.
"""

from __future__ import annotations

import argparse
import faulthandler
import math
import os
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.compilers import CompileFunction, compile_function, compiler_name
from benchmarks.report import RESULTS, print_table, write_results
from benchmarks.workers import FAILURES, START, Crew, say
from tests.ops.check import Result
from tests.ops.databases import check_errors, check_module, check_samples
from tests.ops.torch_private import modules, operators

__all__ = ["DTYPES", "check_task", "main", "task_names"]

DTYPES = ("float32", "bfloat16", "float16", "float64", "int64", "bool", "complex64")
PARTS = ("static", "dynamic", "errors", "modules", "modules-dynamic")


def task_names(parts: Sequence[str], dtypes: Sequence[str], only: Sequence[str]) -> list[str]:
    """What is checked, each as "part/type/operator"."""
    found = []
    for part in parts:
        known = modules() if part.startswith("modules") else operators()
        types = ("any",) if part == "errors" else dtypes
        found += [f"{part}/{dtype}/{name}" for dtype in types for name in known if not only or name in only]
    return found


def check_task(
    task: str, known: dict[str, Any], classes: dict[str, Any], compile: CompileFunction, most: int
) -> Result:
    """One task; the checks know the operator by its own name, by which some are judged."""
    part, dtype, name = task.split("/", 2)
    if part == "errors":
        result = check_errors(name, known[name], compile)
    elif part.startswith("modules"):
        kind = getattr(torch, dtype)
        result = check_module(name, classes[name], compile, kind, dynamic=part.endswith("dynamic"))
    else:
        kind = getattr(torch, dtype)
        result = check_samples(name, known[name], compile, kind, most=most, dynamic=part == "dynamic")
    return replace(result, name=task)


def _work(args: argparse.Namespace) -> None:
    """Child process: check each task, and say before each which one it is."""
    faulthandler.enable()  # where a signal ends it
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known, classes, compile = operators(), modules(), compile_function(args.compile)
    for task in args.tasks:
        print(START + task, flush=True)
        say(check_task(task, known, classes, compile, args.samples))


def _summary(results: Sequence[Result]) -> dict[str, Any]:
    """Counts by part and type, and every failure."""
    table: dict[str, dict[str, int]] = {}
    for result in results:
        part, dtype, _ = result.name.split("/", 2)
        row = table.setdefault(f"{part} {dtype}", {"operators": 0, "samples": 0, "failed": 0, "skipped": 0})
        row["operators"] += 1
        row["samples"] += result.samples if result.status != "skipped" else 0
        row["failed"] += result.status in FAILURES
        row["skipped"] += result.status == "skipped"
    return {
        "by_status": dict(Counter(r.status for r in results)),
        "samples": sum(row["samples"] for row in table.values()),
        "parts": table,
        "failures": {r.name: f"{r.status}: {r.detail}" for r in results if r.status in FAILURES},
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, write JSON; 1 if anything fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", default="lamina", type=compiler_name, metavar="NAME")
    parser.add_argument("--part", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--dtype", nargs="*", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--only", nargs="*", default=[], help="full names of operators or modules; default all")
    parser.add_argument("--samples", type=int, default=0, help="of each operator, evenly spread; 0 means all")
    parser.add_argument("--workers", "--jobs", dest="jobs", type=int, default=2)
    parser.add_argument("--chunk", type=int, default=40, help="operators per process")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this time with what is done")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one operator")
    parser.add_argument("--journal", type=Path, default=None, help="note each result here, and skip those noted")
    parser.add_argument("--out", "--json", dest="json", type=Path, default=RESULTS / "operators_cpu.json")
    parser.add_argument("--tasks", nargs="*", default=None, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.tasks is not None:
        _work(args)
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    names = task_names(args.part, args.dtype, args.only)
    if args.only and not names:
        raise SystemExit(f"no operator or module is called {', '.join(args.only)}")
    command = [sys.executable, "-u", "-m", "benchmarks.operators", "--compile", args.compile]
    crew = Crew([*command, "--samples", str(args.samples), "--tasks"], names, args.chunk, args.limit, args.journal)
    results = sorted(crew.run(args.jobs, args.seconds).values(), key=lambda r: r.name)
    summary = _summary(results)
    rows = [[r.name, r.status, r.detail[:110]] for r in results if r.status in FAILURES]
    print_table(f"Operators that differ, {args.compile}", ["operator", "status", "detail"], rows)
    for part, row in summary["parts"].items():
        print(part, *(f"{count} {what}" for what, count in row.items()))
    undone = len(names) - len(results)
    settings = {"compile": args.compile, "samples_of_each": args.samples or "all", "not_reached": undone}
    failed = [asdict(r) for r in results if r.status in FAILURES]
    write_results(args.json, {**settings, "summary": summary, "failed": failed})
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
