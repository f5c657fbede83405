"""Kernels for CPUs built with ``-fsanitize=address,undefined``: torch's operators and the patterns, and each report.

``python -m benchmarks.sanitizers --workers 2`` writes results/sanitizers.json. A compiler that adds the flags is put
before the real one (option ``cxx``), the cache is a folder of its own, and the sanitizers' libraries are loaded before
Python. Seen are accesses outside of an allocation and undefined operations in generated code; not seen are accesses
that stay inside the allocation that a view is part of, masked loads and stores of vectors (the compiler does not
instrument them), and signed overflow, which ``-fwrapv`` defines.
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
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.compilers import compile_function
from benchmarks.operators import DTYPES, check_task, task_names
from benchmarks.patterns import PATTERNS, Data, private_copy
from benchmarks.report import RESULTS, print_table, write_results
from benchmarks.workers import START, Crew, say
from lamina.testing import tensors
from tests.ops.check import Result
from tests.ops.torch_private import modules, operators

__all__ = ["libraries", "main", "reports_in", "sanitized"]

_FLAGS = "-fsanitize=address,undefined -fsanitize-recover=address,undefined -fno-omit-frame-pointer -g1"
_REPORT = re.compile(r"ERROR: AddressSanitizer: ([^\n]+)|runtime error: ([^\n]+)")
_OURS = re.compile(r"#[0-2] \S+ [^\n]*\(/proc/self/fd/")
"""Kernels are loaded by descriptor."""
_VARIANTS = tuple(f"{mode} {sizes}" for mode in ("forward", "training") for sizes in ("static", "dynamic"))


def libraries(compiler: str = "g++") -> str:
    """The sanitizers' libraries of ``compiler``, separated by spaces; "" where it has none."""
    found = []
    for name in ("libasan.so", "libubsan.so"):
        with contextlib.suppress(OSError):
            said = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False)
            found.append(said.stdout.strip())
    return " ".join(found) if len(found) == 2 and all(map(os.path.isabs, found)) else ""


def sanitized(folder: Path, compiler: str = "g++") -> dict[str, str]:
    """The environment of a process whose kernels are built with sanitizers; what is built goes to ``folder``."""
    wrapper = folder / "cxx"
    # The compiler itself is no program to look at.
    wrapper.write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec {compiler} "$@" {_FLAGS}\n', encoding="utf-8")
    wrapper.chmod(0o700)
    return {
        **os.environ,
        "LAMINA_CXX": str(wrapper),
        "LAMINA_CACHE_DIR": str(folder / "cache"),
        "LD_PRELOAD": libraries(compiler),
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def reports_in(text: str) -> list[str]:
    """What sanitizers say in ``text`` of generated code, each as one line with the place."""
    places = [found.start() for found in _REPORT.finditer(text)]
    parts = [text[start:end] for start, end in itertools.pairwise([*places, len(text)])]
    return [_brief(part) for part in parts if _OURS.search(part)]


def _brief(part: str) -> str:
    what = _REPORT.match(part)
    assert what is not None
    place = re.search(r"[^\s/]+\.cpp:\d+|[^\s/]+\.h:\d+", part)
    return f"{(what[1] or what[2]).strip()[:200]} {place[0] if place else ''}".strip()


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
    mode, sizes = variant.split()
    (pattern,) = (p for p in PATTERNS if p.name == name)
    if mode not in pattern.modes:
        return Result(task, "skipped", f"has no {mode}")
    torch.compiler.reset()
    data = Data(torch.float32, torch.float32, mode == "training")
    problem = pattern.build(data)
    compiled = compile_function("lamina")(private_copy(problem.function), dynamic=sizes == "dynamic")
    for _ in range(2):
        results = tensors(compiled(*problem.args))
        if mode == "training":
            torch.autograd.grad(results, data.leaves, [torch.ones_like(t) for t in results], allow_unused=True)
    return Result(task, "passed", samples=2)


def _work(tasks: Sequence[str], samples: int) -> None:
    """Child process: run each task, and tell what the sanitizers said meanwhile."""
    faulthandler.enable()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known, classes, compile, log = operators(), modules(), compile_function("lamina"), _Log()
    for task in tasks:
        print(START + task, flush=True)
        if task.startswith("patterns/"):
            result = _pattern(task)
        else:
            result = check_task(task, known, classes, compile, samples)
        said = log.new()
        if said:
            result = replace(result, status="mismatch", detail=f"sanitizers: {'; '.join(dict.fromkeys(said))}"[:600])
        elif result.status in ("mismatch", "strides", "exception"):
            result = replace(result, status="passed", detail=f"not judged here: {result.status}")
        say(result)


def _names(args: argparse.Namespace) -> list[str]:
    patterns = [f"patterns/{variant}/{p.name}" for variant in _VARIANTS for p in PATTERNS]
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
        os.environ.update(sanitized(folder))
        preload = os.environ.pop("LD_PRELOAD")
        crew = Crew(["env", f"LD_PRELOAD={preload}", *command], names, args.chunk, args.limit, None)
        results = sorted(crew.run(args.workers, args.seconds).values(), key=lambda r: r.name)
        kernels = sum(1 for _ in (folder / "cache").rglob("kernels.so"))
    return _report(args, results, len(names), kernels)


def _report(args: argparse.Namespace, results: Sequence[Result], asked: int, kernels: int) -> int:
    failed = [r for r in results if r.status not in ("passed", "skipped")]
    print_table("Reports of sanitizers", ["task", "status", "detail"], [[r.name, r.status, r.detail] for r in failed])
    parts: dict[str, dict[str, int]] = {}
    for result in results:
        row = parts.setdefault(result.name.rpartition("/")[0], {"tasks": 0, "skipped": 0, "samples": 0, "failed": 0})
        row["tasks"] += 1
        row["samples"] += result.samples
        row["skipped"] += result.status == "skipped"
        row["failed"] += result in failed
    summary: dict[str, Any] = {
        "flags": _FLAGS,
        "files_of_kernels": kernels,
        "samples_of_each": args.samples or "all",
        "not_reached": asked - len(results),
        "parts": parts,
        "failed": [asdict(r) for r in failed],
    }
    print(f"{kernels} files of kernels, {len(results)} of {asked} tasks, {len(failed)} with a report or a crash")
    write_results(args.out, summary)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
