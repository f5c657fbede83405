"""One program measured: every rival on inputs of its own, compared with eager, then timed by turns in this process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.compilers import compile_function
from benchmarks.gpu_timing import alternate_events
from benchmarks.sweeping.case import Problem, Row, Skipped, Variant
from benchmarks.torch_private import kernels_of_inductor
from lamina.base.accuracy import judge_alone
from lamina.base.reference import copied, doubled, in_double
from lamina.bench import alternate, orders
from lamina.testing import error, mismatch, tensors
from tests.ops.check import record_counts

__all__ = ["SLOWER", "Finding", "Rival", "Timer", "measure", "rival_of", "timed_by_turns"]

SLOWER = 1.05
"""A program is slower where the better rival takes less than the subject's time divided by this."""

LEAST_MS, MOST_MS = {"cpu": 0.1, "cuda": 0.02}, 100.0
"""Programs that eager runs faster are not worth timing, or are a matter of calls; slower ones take the run's time."""

FURTHER = 8.0
"""How many times eager's error a rival may have and still be the same program."""

AGAIN = 2
"""How often what was slower is timed once more; the median counts."""

LEAST_ROUNDS = 5
"""How often each rival is called at least where one thread is timed by its own clock."""

Timer = Callable[[Mapping[str, Callable[[], Any]], Variant, float], Mapping[str, Sequence[float]]]
"""Milliseconds of each callable, one a round or one median each."""


@dataclass(slots=True)
class Finding:
    """What became of a row: its status is "timed", "skipped" or "differs", later perhaps "crash" or "failed"."""

    name: str
    status: str
    detail: str = ""
    kinds: tuple[str, ...] = ()
    milliseconds: dict[str, float] = field(default_factory=dict)
    speedups: dict[str, float] = field(default_factory=dict)
    first_seconds: dict[str, float] = field(default_factory=dict)
    kernels: int = 0
    libraries: int = 0
    graphs: int = 0
    rival_kernels: int = 0
    fallback: str = ""
    decisions: tuple[str, ...] = ()
    text: str = ""

    @property
    def best(self) -> float:
        """The subject's speed over that of the better rival."""
        return min(self.speedups.values(), default=1.0)

    @property
    def slower(self) -> bool:
        return self.status == "timed" and self.best < 1 / SLOWER


@dataclass(slots=True)
class Rival:
    """A rival's own problem, what calls it (and its gradients, in training), and what was compiled."""

    problem: Problem
    call: Callable[[], Any]
    compiled: Any = None


def timed_by_turns(calls: Mapping[str, Callable[[], Any]], variant: Variant, seconds: float) -> dict[str, list[float]]:
    """Milliseconds: on a CPU of each round, on a GPU the median by its own clock on a flushed cache.

    One thread of a CPU is timed by its own clock: what other processes take of a machine that is busy does not count.
    """
    if variant.device == "cuda":
        found = alternate_events(calls, 50, seconds * len(calls), host_us=1000)
        return {name: [value] for name, value in found.items()}
    if torch.get_num_threads() == 1:
        return _at_work(calls, seconds)
    rivals = alternate(calls, seconds=seconds, warmup=2)
    return {m.name: [s * 1e3 for s in m.samples] for m in rivals.measurements}


def _at_work(calls: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    """Milliseconds of this thread for each call; seconds are those of the thread, for each callable."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    until = time.thread_time() + seconds * len(calls)
    for done, order in enumerate(orders(calls)):
        if done >= LEAST_ROUNDS and time.thread_time() >= until:
            break
        for name in order:
            start = time.thread_time()
            calls[name]()
            found[name].append(1e3 * (time.thread_time() - start))
    return found


def measure(
    row: Row,
    subject: str,
    rivals: Sequence[str],
    seconds: float,
    timer: Timer = timed_by_turns,
    reached: Callable[[str], object] = str,
    alone: AbstractContextManager[Any] | None = None,
) -> Finding:
    """Build, compare and time a row; ``rivals`` has eager, the subject, and whatever else it is compared with.

    ``reached`` is told which rival is about to run first. ``alone``: entered while something is timed.

    A rival that fails, or is further from eager than rounding explains, is left out and named in the detail; where
    that is the subject, nothing is timed.
    """
    torch.compiler.reset()
    alone = alone or nullcontext()
    finding = Finding(row.name, "timed", text=row.case.text, kinds=row.case.kinds)
    try:
        eager = rival_of(row, "eager")
        expected = _warmed(eager, row)
        if timer is timed_by_turns:
            with alone:
                _worth_timing(eager.call, row.variant.device)
    except Skipped as problem:
        finding.status, finding.detail = "skipped", str(problem)
        return finding
    calls, ours = {"eager": eager.call}, None
    for name in rivals:
        if name == "eager":
            continue
        reached(name)
        complaint, rival = _compared(row, name, expected, finding)
        ours = rival if name == subject else ours
        if rival is not None and not complaint:
            calls[name] = rival.call
        elif name == subject:
            finding.status, finding.detail = "failed" if rival is None else "differs", complaint
            return finding
        else:
            finding.detail += f"{name}: {complaint} "
    with alone:
        _time(finding, calls, row.variant, subject, seconds, timer)
    if ours is not None:  # after its calls: what is left to eager by a comparison is known only then
        _read_record(finding, ours.compiled)
    return finding


def _time(
    finding: Finding,
    calls: Mapping[str, Callable[[], Any]],
    variant: Variant,
    subject: str,
    seconds: float,
    timer: Timer,
) -> None:
    tries: list[tuple[float, dict[str, float], dict[str, float]]] = []
    for _ in range(1 + AGAIN):
        times = timer(calls, variant, seconds)
        medians = {name: statistics.median(found) for name, found in times.items()}
        ratios = {
            name: statistics.median(a / b for a, b in zip(found, times[subject], strict=True))
            for name, found in times.items()
            if name != subject
        }
        tries.append((min(ratios.values()), medians, ratios))
        if len(tries) == 1 and tries[0][0] >= 1 / SLOWER:
            break
    tries.sort(key=lambda t: t[0])
    _, finding.milliseconds, finding.speedups = tries[len(tries) // 2]


def rival_of(row: Row, name: str) -> Rival:
    """A row built for a compiler by name, or for eager; nothing has run yet."""
    problem = row.case.make(row.variant)
    options = {"numerics": "eager"} if problem.random and name != "eager" else None
    compiled = compile_function(name)(problem.function, dynamic=False, options=options)
    cotangents: list[Tensor] = []

    def forward() -> list[Tensor]:
        return tensors(compiled(*problem.args))

    def training() -> list[Tensor]:
        outputs = forward()
        ends = [t for t in outputs if t.requires_grad]
        if not cotangents:
            cotangents.extend(_cotangent(t) for t in ends)
        found = torch.autograd.grad(ends, problem.leaves, cotangents, allow_unused=True)
        return [*outputs, *(g for g in found if g is not None)]

    return Rival(problem, training if row.variant.training else forward, compiled)


def _cotangent(output: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(output.shape, generator=generator).to(output.dtype).to(output.device)


def _warmed(eager: Rival, row: Row) -> list[Tensor]:
    """Eager's results, of a program that is worth timing."""
    training = row.variant.training
    if training and not eager.problem.leaves:
        raise Skipped("no input gets a gradient")
    try:
        torch.manual_seed(1)
        results = [t.detach().clone() for t in eager.call()]
        if training and not any(t.requires_grad for t in tensors(eager.problem.function(*eager.problem.args))):
            raise Skipped("no result has a gradient")
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as problem:
        raise Skipped(f"eager raises {type(problem).__name__}: {str(problem)[:100]}") from None
    return results


def _worth_timing(call: Callable[[], Any], device: str) -> None:
    took = []
    for _ in range(3):
        clock = time.thread_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
        start = clock()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        took.append(1e3 * (clock() - start))
    if not LEAST_MS[device] <= min(took) <= MOST_MS:
        raise Skipped(f"eager takes {'less' if min(took) < LEAST_MS[device] else 'more'} time than is worth measuring")


def _compared(row: Row, name: str, expected: Sequence[Tensor], finding: Finding) -> tuple[str, Rival | None]:
    """What is wrong with a rival, "" if nothing is, and the rival, None if it raised."""
    start = time.perf_counter()
    try:
        with kernels_of_inductor() as counted:
            rival = rival_of(row, name)
            torch.manual_seed(1)
            results = [t.detach().clone() for t in rival.call()]
    except Exception as problem:
        text = str(problem).strip().splitlines()
        return f"{type(problem).__name__}: {text[0][:160] if text else ''}", None
    finding.first_seconds[name] = round(time.perf_counter() - start, 2)
    finding.rival_kernels = max(finding.rival_kernels, counted())
    if rival.problem.random:
        return "", rival
    return _difference(results, expected, row), rival


def _read_record(finding: Finding, compiled: Any) -> None:
    """What the subject made of the program, and why parts of it are eager's, if they are."""
    finding.graphs, finding.kernels, finding.libraries, finding.fallback = record_counts(compiled)
    record = getattr(compiled, "record", None)
    decisions = [] if record is None else record.decisions()
    left = dict.fromkeys(str(d.reason) for d in decisions if d.kind == "eager" and d.taken)
    finding.fallback = " | ".join([*filter(None, [finding.fallback]), *(text[:200] for text in left)])
    against = dict.fromkeys(f"{d.kind}: {d.reason}"[:160] for d in decisions if not d.taken)
    finding.decisions = tuple(against)[:12]


def _difference(results: Sequence[Tensor], expected: Sequence[Tensor], row: Row) -> str:
    if len(results) != len(expected):
        return f"{len(results)} results, eager has {len(expected)}"
    rough = [judge_alone(a, b) for a, b in zip(results, expected, strict=True)]
    if not any(rough):
        return ""
    exact = _exact(row)
    if exact is None or [t.shape for t in exact] != [t.shape for t in expected]:
        return next(filter(None, rough))
    return next(filter(None, map(_further, results, expected, exact)), "")


def _further(ours: Tensor, eager: Tensor, exact: Tensor) -> str:
    """What says that a result is of another program: eager may be as far from exact.

    Not as strict as ``lamina.testing.judge``: of some hundred results one is bound to be a bit worse than eager's.
    """
    complaint = mismatch(ours, eager, exact)
    if complaint or not (ours.is_floating_point() or ours.is_complex()):
        return complaint
    own, allowed = error(ours, exact).largest, FURTHER * error(eager, exact).largest + 16 * torch.finfo(ours.dtype).eps
    return f"largest error {own:.2g} of the largest element, {allowed:.2g} would pass" if own > allowed else ""


def _exact(row: Row) -> list[Tensor] | None:
    problem = row.case.make(row.variant)
    args = copied(problem.args, wide=True)
    leaves = [t for t in tensors(args) if t.requires_grad]
    wide = None if problem.module is None else doubled(problem.module)
    if wide is not None:
        leaves = [*wide.parameters(), *leaves]
    with suppress(Exception), in_double():
        outputs = tensors(problem.function(*args) if wide is None else wide(*args[0], **args[1]))
        ends = [t for t in outputs if t.requires_grad]
        if not row.variant.training:
            return outputs
        cotangents = [_cotangent(t.to(row.variant.torch_dtype)).double() for t in ends]
        found = torch.autograd.grad(ends, leaves, cotangents, allow_unused=True)
        return [*outputs, *(g for g in found if g is not None)]
    return None
