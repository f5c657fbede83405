"""The option compare_eager on planted regions: is the faster way kept, what does it cost, and what is left of it after.

``python -m benchmarks.turns``

A region is planted by a schedule without vectors: eager is then the faster way. Others are compiled as usual. Each is
compiled again ``--runs`` times, and nothing that one run found is told to the next. A graph that is compared and one
that is not are called by turns, so that whatever else the machine does slows down both; ``--burners`` says how many
other processes keep it busy. What is lost is the difference between the sums of the first hundred calls, in time at
work, without the first three, which compile.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

import lamina
from benchmarks.patterns import private_copy
from benchmarks.report import RESULTS, print_table, write_results
from lamina.backends import cpu
from lamina.bench import alternate
from lamina.eager_comparison import trial
from lamina.ir.plan import Plan, Schedule

__all__ = ["main"]

_COMPILING = 3


@dataclass(frozen=True, slots=True)
class Case:
    """A program, its input, whether it is trained, whether its schedule is made slow, and which way is to be kept."""

    function: Callable[[Tensor], Any]
    shape: tuple[int, ...]
    training: bool = False
    slow: bool = False
    eager: bool = False


def _slices(x: Tensor) -> Tensor:
    total = x[:, :16]
    for i in range(1, 30):
        total = total + x[:, 16 * i : 16 * i + 16]
    return total


def _series(x: Tensor) -> Tensor:
    return torch.exp(torch.cumsum(F.logsigmoid(x), -1)) * x


CASES = {
    "tanh, slow": Case(lambda x: torch.tanh(x) + 1, (256, 1024), slow=True, eager=True),
    "GELU, slow": Case(lambda x: F.gelu(x) * 2, (512, 1024), slow=True, eager=True),
    "GELU with gradient, slow": Case(lambda x: F.gelu(x) * 2, (512, 1024), training=True, slow=True, eager=True),
    "logarithm of gamma, no kernel": Case(lambda x: torch.lgamma(x) * 2, (128, 1024)),
    "cumulative sum": Case(_series, (256, 1024)),
    "bilinear": Case(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (4, 32, 56, 56)),
    "30 slices with gradient": Case(_slices, (64, 1024), training=True),
    "softmax and top 64": Case(lambda x: torch.topk(torch.softmax(x, -1), 64)[0] + 1, (256, 1024)),
    "ReLU of a product": Case(lambda x: torch.relu(x @ x.T), (512, 512)),
}
"""Where it is not said which way is to be kept, it is whichever is faster when both are timed at length."""


def _without_vectors(*given: Any, **more: Any) -> Plan:
    plan = _make_plan(*given, **more)
    kernels = tuple(
        replace(
            k, schedules=tuple(replace(s, vector=None, width=0) if isinstance(s, Schedule) else s for s in k.schedules)
        )
        for k in plan.kernels
    )
    return replace(plan, kernels=kernels)


_make_plan: Callable[..., Plan] = cpu.make_plan


@contextmanager
def _burning(count: int) -> Iterator[None]:
    """Other processes that compute all the time."""
    others = [multiprocessing.get_context("spawn").Process(target=_burn, daemon=True) for _ in range(count)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.terminate()
            other.join()


def _burn() -> None:
    torch.set_num_threads(1)
    x = torch.randn(256, 256)
    while True:
        x = torch.tanh(x @ x)


def _step(function: Callable[..., Any], x: Tensor, training: bool) -> Callable[[], Any]:
    if not training:
        return lambda: function(x)

    def step() -> Any:
        return torch.autograd.grad(function(x).sum(), x)

    return step


def _compiled(case: Case, compare: bool) -> Any:
    torch.compiler.reset()
    return lamina.compile(
        private_copy(case.function), dynamic=False, options={"compare_eager": "cpu" if compare else "off"}
    )


@dataclass(frozen=True, slots=True)
class Run:
    """Which way was kept (None: neither, in doubt still or not compared), and what share of the time was lost."""

    eager: bool | None
    asked: bool
    lost: float
    calls_by_eager: int


def _run(case: Case, calls: int, more: int) -> Run:
    x = torch.randn(case.shape, requires_grad=case.training)
    tried, plain = _compiled(case, True), _compiled(case, False)
    with_turns, without = _step(tried, x, case.training), _step(plain, x, case.training)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(calls):
        for turns in (True, False) if number % 2 else (False, True):
            start = time.thread_time()
            (with_turns if turns else without)()
            seconds[turns].append(time.thread_time() - start)
    for _ in range(more):
        if tried.record.decisions("eager"):
            break
        with_turns()
    sums = {turns: sum(found[_COMPILING:]) for turns, found in seconds.items()}
    verdicts = tried.record.decisions("eager")
    pairs = dict(verdicts[-1].facts)["pairs"] if verdicts else 0
    asked = any(d.taken for d in tried.record.decisions("turns"))
    return Run(verdicts[-1].taken if verdicts else None, asked, sums[True] / sums[False] - 1, int(pairs))


def _ratio(case: Case) -> float:
    """Eager's median over the compiled graph's, in time at work."""
    x = torch.randn(case.shape, requires_grad=case.training)
    steps = [_step(function, x, case.training) for function in (case.function, _compiled(case, False))]
    times: list[list[float]] = [[], []]
    for _ in range(60):
        for step, found in zip(steps, times, strict=True):
            start = time.thread_time()
            step()
            found.append(time.thread_time() - start)
    eager, compiled = (statistics.median(found[_COMPILING:]) for found in times)
    return eager / compiled


def _overhead() -> dict[str, float]:
    """Microseconds of a call of a tiny graph with the option, after it was decided, and without."""
    tiny = Case(lambda x: (x * 2 + 1).relu(), (8, 8))
    x = torch.randn(tiny.shape)
    tried, plain = _compiled(tiny, True), _compiled(tiny, False)
    for _ in range(200):
        tried(x)
    assert tried.record.decisions("eager")
    timed = alternate({"with": lambda: tried(x), "without": lambda: plain(x)}, seconds=4.0)
    return {name: 1e6 * timed[name].median for name in ("with", "without")}


def _measured(name: str, case: Case, args: argparse.Namespace) -> dict[str, Any]:
    slow = mock.patch.object(cpu, "make_plan", _without_vectors if case.slow else _make_plan)
    with slow, mock.patch.object(trial, "_remembered", return_value=None):
        ratio = _ratio(case)
        runs = [_run(case, args.calls, args.more) for _ in range(args.runs)]
    kept = [run.eager for run in runs]
    right = sum(_is_right(run.eager, case, ratio) for run in runs)
    lost = [run.lost for run in runs]
    return {
        "eager_over_compiled": ratio,
        "compared": sum(run.asked for run in runs),
        "eager_kept": kept.count(True),
        "right": right,
        "runs": len(runs),
        "lost_percent": 100 * statistics.median(lost),
        "pairs": statistics.median(run.calls_by_eager for run in runs),
    }


def _is_right(eager: bool | None, case: Case, ratio: float) -> bool:
    """Whether the way that is kept is the faster one, or as fast but for five percent."""
    if case.eager:
        return eager is True
    return ratio < 1.05 if eager else ratio > 0.9


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--more", type=int, default=600, help="calls in which the rest is decided")
    parser.add_argument("--burners", type=int, default=0, help="other processes that compute all the time")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--json", type=Path, default=RESULTS / "turns.json")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    results: dict[str, dict[str, Any]] = {}
    with _burning(args.burners):
        for name, case in CASES.items():
            if args.only in name:
                results[name] = _measured(name, case, args)
                print(name, results[name], flush=True)
        overhead = _overhead()
    rows = [
        [
            name,
            f"{found['eager_over_compiled']:.2f}",
            f"{found['compared']} of {found['runs']}",
            f"{found['eager_kept']} of {found['runs']}",
            f"{found['right']} of {found['runs']}",
            f"{found['lost_percent']:.1f} %",
        ]
        for name, found in results.items()
    ]
    columns = ["case", "eager / compiled", "compared", "eager kept", "right", "time of 100 calls"]
    print_table(f"Calls in turns with eager, {args.burners} other processes", columns, rows)
    print(f"a call afterwards: {overhead['with']:.2f} µs, never compared {overhead['without']:.2f}")
    write_results(args.json, {"burners": args.burners, "cases": results, "microseconds_afterwards": overhead})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
