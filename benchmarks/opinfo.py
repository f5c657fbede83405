"""Torch's operator database against a compile function: every operator's first sample, in processes that may crash.

``python -m benchmarks.opinfo --compile lamina --jobs 2``; ``--only NAME..`` for some, ``--device cuda`` for samples on
a GPU, ``--compile aot_eager --write-limits`` to note again what torch's own capture and AOTAutograd get wrong before
any backend sees it.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import os
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.compilers import compile_function, compiler_name
from benchmarks.gpu_machine import needs_gpu
from benchmarks.report import RESULTS, print_table, write_results
from benchmarks.workers import FAILURES, START, Crew, say
from tests.ops.check import Result, check
from tests.ops.torch_private import DTYPES, operators

__all__ = ["LIMITS", "main"]

LIMITS = Path(__file__).parent / "results" / "opinfo_torch_limits.json"
"""Operators that fail with the backend aot_eager, which runs the captured graph as it is: torch's limits, not ours."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Which sample of each operator, and how it is compiled."""

    compile: str
    dtype: str
    largest: bool
    dynamic: bool
    device: str

    @classmethod
    def of(cls, args: argparse.Namespace) -> _Kind:
        return cls(args.compile, args.dtype, args.largest, args.dynamic, args.device)

    def arguments(self) -> list[str]:
        flags = [f"--{name}" for name in ("largest", "dynamic") if getattr(self, name)]
        return ["--compile", self.compile, "--dtype", self.dtype, "--device", self.device, *flags]

    @property
    def name(self) -> str:
        """For a file of results."""
        words = (
            self.device if self.compile == "lamina" or self.device != "cpu" else "",
            "" if self.compile == "lamina" else self.compile.replace(":", "_"),
            self.dtype,
            "largest" if self.largest else "",
            "dynamic" if self.dynamic else "",
        )
        return "_".join(word for word in words if word not in ("", "float32"))


def _work(kind: _Kind, names: Sequence[str], threads: int) -> None:
    """Child process: check each operator, and say before each which one it is."""
    faulthandler.enable()  # where a signal ends it
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    known, compile = operators(), compile_function(kind.compile)
    dtypes = DTYPES if kind.dtype == "float32" else (getattr(torch, kind.dtype),)
    for name in names:
        print(START + name, flush=True)
        result = check(
            name, known[name], compile, dtypes=dtypes, largest=kind.largest, dynamic=kind.dynamic, device=kind.device
        )
        if kind.device == "cuda":
            torch.cuda.synchronize()  # after a failed assertion the process is lost: it ends here, as the culprit's
        say(result)


def _limits() -> dict[str, dict[str, str]]:
    return json.loads(LIMITS.read_text(encoding="utf-8"))["limits"] if LIMITS.exists() else {}  # type: ignore[no-any-return]


def _summary(results: Sequence[Result], limits: dict[str, dict[str, str]]) -> tuple[dict[str, Any], list[Result]]:
    """Counts, and the failures that are not torch's."""
    failed = [r for r in results if r.status in FAILURES]
    ours = [r for r in failed if limits.get(r.name, {}).get("status") != r.status]
    ran = [r for r in results if r.status not in ("skipped", "crash", "timeout")]
    with_plan = [r for r in ran if (r.kernels or r.libraries) and not r.fallback]
    own = [r for r in with_plan if r.kernels and not r.libraries]
    mixed = [r for r in with_plan if r.kernels and r.libraries]
    steps = sum(r.kernels + r.libraries for r in with_plan)
    return {
        "operators": len(results),
        "ran": len(ran),
        "with_gradients": sum(r.gradients for r in ran),
        "random": sum(r.random for r in ran),
        "by_status": dict(Counter(r.status for r in results)),
        "failures_of_torch": len(failed) - len(ours),
        "failures": {r.name: f"{r.status}: {r.detail}" for r in ours},
        "undefined_in_eager": {r.name: r.undefined for r in ran if r.undefined},
        "fell_back_to_eager_calls": {r.name: r.fallback for r in ran if r.fallback},
        "left_to_python_by_capture": {r.name: r.breaks for r in ran if not r.graphs},
        "nothing_to_compute": [r.name for r in ran if r.graphs and not (r.kernels or r.libraries or r.fallback)],
        "only_own_kernels": len(own),
        "own_kernels_and_library_calls": len(mixed),
        "only_library_calls": len(with_plan) - len(own) - len(mixed),
        "share_of_operators_in_own_kernels": len(own) / len(with_plan) if with_plan else 0.0,
        "share_of_steps_in_own_kernels": sum(r.kernels for r in with_plan) / steps if steps else 0.0,
    }, ours


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, write JSON; 1 if anything fails that torch's own front end does not fail on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", default="lamina", type=compiler_name, metavar="NAME")
    parser.add_argument("--only", nargs="*", default=[], help="full names of operators; default all")
    parser.add_argument("--dtype", default="float32", help="float32, the default, stands for the first type that fits")
    parser.add_argument("--largest", action="store_true", help="the largest of the first samples, not the first")
    parser.add_argument("--dynamic", action="store_true", help="compile with dynamic=True")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="where the samples are")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--chunk", type=int, default=40, help="operators per process")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this time with what is done")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one operator")
    parser.add_argument("--write-limits", action="store_true", help=f"note these operators' failures in {LIMITS.name}")
    parser.add_argument("--journal", type=Path, default=None, help="note each result here, and skip those noted")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    names = args.only or list(operators())
    if unknown := set(names) - set(operators()):
        raise SystemExit(f"no operator is called {', '.join(sorted(unknown))}")
    if args.device == "cuda":
        needs_gpu()
    if args.child:
        _work(_Kind.of(args), names, threads=1)
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-u", "-m", "benchmarks.opinfo", "--child", *_Kind.of(args).arguments(), "--only"]
    crew = Crew(command, names, args.chunk, args.limit, args.journal)
    results = sorted(crew.run(args.jobs, args.seconds).values(), key=lambda r: r.name)
    limits = {} if args.write_limits else _limits()
    summary, ours = _summary(results, limits)
    table = [[r.name, r.status, r.detail[:110]] for r in results if r.status in (*FAILURES, "skipped")]
    table += [[r.name, "fallback", r.fallback[:110]] for r in results if r.fallback]
    table = [[*row, "torch" if limits.get(row[0], {}).get("status") == row[1] else ""] for row in table]
    print_table(f"Operators with something to say, {args.compile}", ["operator", "status", "detail", "known of"], table)
    for key, value in summary.items():
        print(f"{key}: {value:.3f}" if isinstance(value, float) else f"{key}: {value}")
    if args.write_limits:
        failed = {r.name: {"status": r.status, "reason": r.detail} for r in results if r.status in FAILURES}
        kept = {name: limit for name, limit in _limits().items() if name not in names}
        write_results(LIMITS, {"backend": args.compile, "limits": dict(sorted({**kept, **failed}.items()))})
        return 0
    path = args.json or RESULTS / f"opinfo_{_Kind.of(args).name}.json"
    write_results(path, {"compile": args.compile, "summary": summary, "results": [asdict(r) for r in results]})
    return 1 if ours else 0


if __name__ == "__main__":
    raise SystemExit(main())
