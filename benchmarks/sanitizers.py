"""Kernels for CPUs built with ``-fsanitize=address,undefined``: torch's operators and the patterns, and each report.

``python -m benchmarks.sanitizers --workers 2`` writes results/sanitizers.json. A compiler that adds the flags is put
before the real one (option ``cxx``), the cache is a folder of its own, and the sanitizers' libraries are loaded before
Python. Seen are accesses outside of an allocation and undefined operations in generated code; not seen are accesses
that stay inside the allocation that a view is part of, masked loads and stores of vectors (the compiler does not
instrument them), and signed overflow, which ``-fwrapv`` defines: ``--overflow`` builds with ``-fno-wrapv`` and reports
it, the user's own arithmetic that wraps too. ``LAMINA_SIMD=plain`` is passed on: kernels without masked vectors.

It ends with 1 if anything is reported, a process ends, or no kernel was built; values are for other programs to judge.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import itertools
import math
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.compilers import compile_function
from benchmarks.operators import DTYPES, check_task, task_names
from benchmarks.patterns import PATTERNS, Data, private_copy
from benchmarks.report import RESULTS, print_table, write_results
from benchmarks.workers import FAILURES, START, Crew, say
from lamina.testing import tensors
from tests.ops.check import Result, record_counts
from tests.ops.torch_private import modules, operators

__all__ = ["OVERFLOW", "UNJUDGED", "counts", "judged", "libraries", "main", "reports_in", "sanitized"]

_FLAGS = "-fsanitize=address,undefined -fsanitize-recover=address,undefined -fno-omit-frame-pointer -g1"
OVERFLOW = "-fno-wrapv"
"""Comes after the ``-fwrapv`` of every kernel and so holds: overflow is undefined again, and reported."""
_REPORT = re.compile(r"ERROR: AddressSanitizer: ([^\n]+)|(?:([^\s:]+:\d+:\d+): )?runtime error: ([^\n]+)")
_ADDRESSES = re.compile(r" on address 0x\S+| at pc 0x\S+ bp 0x\S+ sp 0x\S+")
_ACCESS = re.compile(r"\b(?:READ|WRITE) of size \d+")
_OURS = re.compile(r"#[0-2] 0x\S+ +([^\n]*)\(/proc/self/fd/[^+)\n]*(\+0x[0-9a-f]+)?")
"""Kernels are loaded by descriptor; what is between is the function, where the symbols were found."""
UNJUDGED = "not judged"
"""A task without a report that ended otherwise than eager: the sanitizers saw what ran of it."""
_PATTERN_TYPES = ("float32", "bfloat16", "float16", "float64")
_VARIANTS = tuple(f"{mode} {sizes}" for mode in ("forward", "training") for sizes in ("static", "dynamic"))


def libraries(compiler: str = "g++") -> str:
    """The sanitizers' libraries of ``compiler``, separated by spaces; "" where it has none."""
    found = []
    for name in ("libasan.so", "libubsan.so"):
        with contextlib.suppress(OSError):
            said = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False)
            found.append(said.stdout.strip())
    return " ".join(found) if len(found) == 2 and all(map(os.path.isabs, found)) else ""


def sanitized(folder: Path, compiler: str = "g++", more: str = "") -> dict[str, str]:
    """The environment of a process whose kernels are built with sanitizers and the flags ``more``, into ``folder``."""
    wrapper = folder / "cxx"
    # The compiler itself is no program to look at.
    wrapper.write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec {compiler} "$@" {_FLAGS} {more}\n', encoding="utf-8")
    wrapper.chmod(0o700)
    return {
        **os.environ,
        "LAMINA_CXX": str(wrapper),
        "LAMINA_CACHE_DIR": str(folder / "cache"),
        "LD_PRELOAD": libraries(compiler),
        # GCC 13 does not align vectors on the stack that this check puts in their place.
        # The process goes on after a report: a write beyond an array meets its wide margin and no other object.
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=0:detect_stack_use_after_return=0:redzone=1024",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def reports_in(text: str) -> list[str]:
    """What sanitizers say in ``text`` of generated code, each as one line with the place."""
    places = [found.start() for found in _REPORT.finditer(text)]
    parts = [text[start:end] for start, end in itertools.pairwise([*places, len(text)])]
    return [_brief(part) for part in parts if _OURS.search(part)]


def _brief(part: str) -> str:
    """What it is, and the place: in the kernel's source where the report begins with it, else in the kernel's code."""
    what, frame = _REPORT.match(part), _OURS.search(part)
    assert what is not None
    assert frame is not None
    access = _ACCESS.search(part)
    words = [_ADDRESSES.sub("", what[1] or what[3]).strip()[:200], access[0] if what[1] and access else ""]
    place = what[2] or f"{frame[1].strip() or 'kernel'}{frame[2] or ''}"
    return " ".join([*filter(None, words), "at", place])


class _Log:
    """What sanitizers have written of this process, whose error stream is a file, since it was last asked."""

    def __init__(self) -> None:
        self.file, self.read = Path("/proc/self/fd/2"), 0

    def new(self) -> list[str]:
        """The reports since the last call."""
        text = self.file.read_text(encoding="utf-8", errors="replace")
        fresh, self.read = text[self.read :], len(text)
        return reports_in(fresh)


def _pattern(task: str) -> Result:
    """Run a pattern twice; its values are another program's to judge."""
    _, variant, name = task.split("/", 2)
    dtype, _, variant = variant.partition(" ")
    mode, sizes = variant.split()
    (pattern,) = (p for p in PATTERNS if p.name == name)
    if mode not in pattern.modes:
        return Result(task, "skipped", f"has no {mode}")
    torch.compiler.reset()
    kind = getattr(torch, dtype)
    data = Data(kind, kind, mode == "training")
    problem = pattern.build(data)
    compiled = compile_function("lamina")(private_copy(problem.function), dynamic=sizes == "dynamic")
    for _ in range(2):
        results = tensors(compiled(*problem.args))
        if mode == "training":
            torch.autograd.grad(results, data.leaves, [torch.ones_like(t) for t in results], allow_unused=True)
    graphs, kernels, calls, fallback = record_counts(compiled)
    return Result(task, "passed", graphs=graphs, kernels=kernels, libraries=calls, fallback=fallback, samples=2)


def _work(tasks: Sequence[str], samples: int) -> None:
    """Child process: run each task, and tell what the sanitizers said meanwhile."""
    faulthandler.enable()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known, classes, compile, log = operators(), modules(), compile_function("lamina"), _Log()
    for task in tasks:
        print(START + task, flush=True)
        result = _pattern(task) if task.startswith("patterns/") else check_task(task, known, classes, compile, samples)
        say(judged(result, log.new()))


def judged(result: Result, said: Sequence[str]) -> Result:
    """What the sanitizers say of a task; one whose values differ or that raises is no pass, only not judged here."""
    if said:
        return replace(result, status="mismatch", detail=f"sanitizers: {'; '.join(dict.fromkeys(said))}"[:600])
    if result.status in ("mismatch", "strides", "exception"):
        return replace(result, status=UNJUDGED, detail=f"{result.status}: {result.detail}"[:600])
    return result


def _names(args: argparse.Namespace) -> list[str]:
    kinds = [dtype for dtype in args.dtype if dtype in _PATTERN_TYPES]
    patterns = [f"patterns/{kind} {variant}/{p.name}" for kind in kinds for variant in _VARIANTS for p in PATTERNS]
    names = patterns if "patterns" in args.part else []
    parts = [part for part in args.part if part != "patterns"]
    names += task_names(parts, args.dtype, args.only)
    return [name for name in names if not args.only or name.split("/", 2)[2] in args.only]


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lamina-sanitizers-") as name:
        yield Path(name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, write JSON; 1 if a sanitizer reports anything or a process ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="*", default=["patterns", "static"], choices=["patterns", "static", "dynamic"])
    parser.add_argument("--dtype", nargs="*", default=["float32", "int64", "bool", "bfloat16"], choices=DTYPES)
    parser.add_argument("--only", nargs="*", default=[], help="names of operators or patterns; default all")
    parser.add_argument("--samples", type=int, default=4, help="of each operator, evenly spread; 0 means all")
    parser.add_argument("--overflow", action="store_true", help="build without -fwrapv and report signed overflow")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--chunk", type=int, default=40, help="tasks per process")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this time with what is done")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one task")
    parser.add_argument("--out", type=Path, default=RESULTS / "sanitizers.json")
    parser.add_argument("--tasks", nargs="*", default=None, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.tasks is not None:
        _work(args.tasks, args.samples)
        return 0
    if not libraries():
        raise SystemExit("g++ has no libasan.so and libubsan.so here: install its sanitizers")
    names = _names(args)
    if not names:
        raise SystemExit(f"no operator or pattern is called {', '.join(args.only)}")
    command = [sys.executable, "-u", "-m", "benchmarks.sanitizers", "--samples", str(args.samples), "--tasks"]
    with _folder() as folder:
        os.environ.update(sanitized(folder, more=OVERFLOW if args.overflow else ""))
        preload = os.environ.pop("LD_PRELOAD")
        crew = Crew(["env", f"LD_PRELOAD={preload}", *command], names, args.chunk, args.limit, None)
        results = sorted(crew.run(args.workers, args.seconds).values(), key=lambda r: r.name)
        kernels = sum(1 for _ in (folder / "cache").rglob("kernels.so"))
    return _report(args, results, len(names), kernels)


def counts(results: Sequence[Result]) -> dict[str, int]:
    """How many tasks ran and how they ended; one that fell back ran in part, or all of it, without kernels."""
    return {
        "tasks": len(results),
        "ran": sum(r.status != "skipped" for r in results),
        "skipped": sum(r.status == "skipped" for r in results),
        "fell_back": sum(bool(r.fallback) and r.status != "skipped" for r in results),
        "not_judged": sum(r.status == UNJUDGED for r in results),
        "failed": sum(r.status in FAILURES for r in results),
        "samples": sum(r.samples for r in results if r.status != "skipped"),
    }


def _report(args: argparse.Namespace, results: Sequence[Result], asked: int, kernels: int) -> int:
    failed = [r for r in results if r.status in FAILURES]
    print_table("Reports of sanitizers", ["task", "status", "detail"], [[r.name, r.status, r.detail] for r in failed])
    parts: dict[str, list[Result]] = {}
    for result in results:
        parts.setdefault("/".join(result.name.split("/", 2)[:2]), []).append(result)
    total = counts(results)
    summary: dict[str, Any] = {
        "flags": f"{_FLAGS} {OVERFLOW}" if args.overflow else _FLAGS,
        "simd": os.environ.get("LAMINA_SIMD", "auto"),
        "files_of_kernels": kernels,
        "pattern_programs": len({n for n in (_program(r) for r in results) if n}),
        "samples_of_each": args.samples or "all",
        "not_reached": asked - len(results),
        "total": total,
        "parts": {part: counts(members) for part, members in parts.items()},
        "failed": [asdict(r) for r in failed],
        "not_judged": {r.name: r.detail for r in results if r.status == UNJUDGED},
        "fallbacks": {r.name: r.fallback for r in results if r.fallback},
        "skipped": dict(Counter(r.detail.partition(":")[0] for r in results if r.status == "skipped")),
    }
    print(f"{kernels} files of kernels, {asked - len(results)} of {asked} tasks not reached")
    print(", ".join(f"{count} {what}" for what, count in total.items()))
    if not kernels:
        print("no kernel was built: nothing was looked at")
    write_results(args.out, summary)
    return 1 if failed or not kernels else 0


def _program(result: Result) -> str:
    """Of a pattern that ran, its name and type; forward and training, static and dynamic are one program's."""
    part, variant, name = result.name.split("/", 2)
    return f"{name} {variant.split()[0]}" if part == "patterns" and result.status != "skipped" else ""


if __name__ == "__main__":
    raise SystemExit(main())
