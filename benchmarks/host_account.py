"""Where the host time of a compiled call goes, line by line: programs that differ by one layer each.

``python -m benchmarks.host_account --device cpu``

The first lines are Dynamo with a backend that does nothing: the code that it made, its guards around that, the function
that is called around these. Each further one adds a layer of a compiled region, so that the differences are what the
layers cost. (Layers timed by themselves are 10 to 40 us faster, as their code stays in the
processor's caches; such figures would not add up.) Tensors are tiny: no device holds the host up.

A call with gradients is also shown in the order of events, from one program's start or end to the next, beside the same
call of a bare ``autograd.Function``: on a GPU a good part passes while threads of torch's engine wake each other.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import lamina
from benchmarks.gpu_machine import needs_gpu
from benchmarks.patterns import private_copy
from benchmarks.report import print_table
from benchmarks.torch_private import within_entry
from lamina.aot.torch_private import never_captured
from lamina.backends import cpu, cuda
from lamina.capture.dynamo import compile_callable
from lamina.runtime.host import load_program

__all__ = ["Account", "accounts", "main", "print_accounts"]

SIZE = 64


@dataclass(slots=True)
class Account:
    """Microseconds of a call: ``totals`` of the programs with ever more layers, and those of others."""

    totals: dict[str, float] = field(default_factory=dict)
    rivals: dict[str, float] = field(default_factory=dict)
    events: dict[str, list[float]] = field(default_factory=dict)
    """Microseconds between the events of ``EVENTS``, of a bare function and of ours."""

    @property
    def lines(self) -> dict[str, float]:
        """What each layer adds."""
        before, found = 0.0, {}
        for name, total in self.totals.items():
            found[name], before = total - before, total
        return found


class _Layers:
    """Stands in for what loads host programs, so that those of a region can be run in part.

    ``level`` 0 runs nothing and gives views of earlier results, 1 all but the launches, 2 everything.
    """

    def __init__(self) -> None:
        self.level = 2

    def load(self, text: str, name: str, namespace: Mapping[str, Any] | None = None) -> Callable[..., Any]:
        given = dict(namespace or {})
        silent = {k: SimpleNamespace(launch=_no_launch, pack=_pack(v)) for k, v in given.get("kernels", {}).items()}
        whole = load_program(text, name, given)
        programs = [whole, load_program(text, name, {**given, "kernels": silent}), whole]
        results: list[Any] = []

        def nothing(args: list[Any]) -> Any:
            args.clear()
            return tuple(t.detach() if isinstance(t, Tensor) else t for t in results)

        def call(args: list[Any]) -> Any:
            found = _stamped(programs[self.level], args)
            if self.level == 2:
                results[:] = found
            return found

        programs[0] = nothing
        return call


class _Stamps:
    """Where programs note when they begin and end, while that is wanted."""

    wanted: list[int] | None = None


def _stamped(function: Callable[..., Any], *args: Any) -> Any:
    stamps = _Stamps.wanted
    if stamps is None:
        return function(*args)
    stamps.append(time.perf_counter_ns())
    found = function(*args)
    stamps.append(time.perf_counter_ns())
    return found


def _no_launch(*given: Any) -> int:
    return 0


def _pack(kernel: Any) -> Any:
    """How the arguments of a CPU's kernel are written down; a GPU's kernel does that itself."""
    return getattr(kernel, "pack", None)


@contextmanager
def _layered() -> Iterator[_Layers]:
    layers, before = _Layers(), (cpu.load_program, cuda.load_program)
    cpu.load_program = cuda.load_program = layers.load  # type: ignore[assignment]
    try:
        yield layers
    finally:
        cpu.load_program, cuda.load_program = before


def _function(x: Tensor, y: Tensor) -> Tensor:
    return (x * y + 1).relu()


def _sum(x: Tensor, y: Tensor) -> Tensor:
    return x.sum(0)


FUNCTIONS = {"one kernel": _function, "one sum": _sum}


def _empty(result: Tensor) -> Callable[..., Any]:
    """A backend that computes nothing."""

    def run(*args: Any) -> Any:
        return (result.detach(),)

    never_captured(run)
    return lambda graph, inputs: run


class _Bare(torch.autograd.Function):
    """An autograd function that computes nothing."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, gradient: Tensor, *inputs: Tensor) -> Tensor:
        ctx.gradient = gradient
        ctx.save_for_backward(*inputs)
        return _stamped(result.detach)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        found = _stamped(ctx.gradient.detach)
        return (None, None, *(found for _ in ctx.saved_tensors))


def _bare(result: Tensor, gradient: Tensor) -> Callable[..., Any]:
    apply: Callable[..., Any] = _Bare.apply

    def run(*args: Any) -> Any:
        return (apply(result, gradient, *args),)

    never_captured(run)
    return lambda graph, inputs: run


EVENTS = (
    "call: Dynamo, autograd.Function, until the forward's program",
    "forward's program",
    "saved tensors, outputs, return",
    "torch.autograd.grad until the backward's program",
    "backward's program",
    "gradients, return",
)


def _between_events(
    call: Callable[[], Any], backward: Callable[[Any], Any], device: str, count: int = 2000
) -> list[float]:
    """Lower quartiles of the microseconds between ``EVENTS``; none where the call runs no program of ours."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    found = []
    for number in range(count):
        if number % 50 == 0:
            wait()
        stamps = _Stamps.wanted = [time.perf_counter_ns()]
        result = call()
        stamps.append(time.perf_counter_ns())
        backward(result)
        stamps.append(time.perf_counter_ns())
        found.append([(end - start) / 1e3 for start, end in pairwise(stamps)])
    _Stamps.wanted = None
    if len(found[0]) < len(EVENTS):
        return []
    return [statistics.quantiles(column)[0] for column in zip(*found, strict=True)]


def _by_turns(
    calls: Mapping[str, Callable[[], Any]], device: str, rounds: int = 40, count: int = 50
) -> dict[str, float]:
    """Lowest mean of ``count`` calls, in microseconds, of each callable in turns."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            wait()
            start = time.perf_counter_ns()
            for _ in range(count):
                call()
            best[name] = min(best[name], (time.perf_counter_ns() - start) / count / 1e3)
            wait()
    return best


def _account(function: Callable[..., Tensor], training: bool, device: str) -> Account:
    torch.compiler.reset()
    x = torch.randn(SIZE, SIZE, device=device, requires_grad=training)
    y = torch.randn(SIZE, SIZE, device=device)
    result = function(x.detach(), y)
    cotangent = torch.randn_like(result)

    def backward(result: Tensor) -> Any:
        return torch.autograd.grad(result, x, cotangent)

    def run(call: Callable[..., Any]) -> Callable[[], Any]:
        return (lambda: backward(call(x, y))) if training else (lambda: call(x, y))

    with _layered() as layers:
        compiled = lamina.compile(private_copy(function), dynamic=False)
        ours = run(compiled)
        for _ in range(3):
            ours()

    def at(level: int) -> Callable[[], Any]:
        def call() -> Any:
            layers.level = level
            return ours()

        return call

    empty = compile_callable(private_copy(function), backend_callable=_empty(result))
    bare = compile_callable(private_copy(function), backend_callable=_bare(result, torch.zeros_like(x)))
    empty(x, y)
    code, guarded = within_entry(empty)
    entered_by_torch = torch.compile(private_copy(function), backend=_empty(result))
    calls: dict[str, Callable[[], Any]] = {
        "the code that Dynamo made (empty backend)": lambda: code(x, y),
        "Dynamo's evaluation of frames, its guards": lambda: guarded(x, y),
        "the function that is called": lambda: empty(x, y),
    }
    if training:
        calls["torch's autograd.Function and engine"] = run(bare)
    calls["Lamina's wrappers, forward and backward" if training else "Lamina's wrappers"] = at(0)
    calls["checks of arguments, allocation, packing"] = at(1)
    calls["launches"] = at(2)
    rivals = {
        "eager": run(function),
        "torch.compile's entry (empty backend)": lambda: entered_by_torch(x, y),
        "torch.compile": run(torch.compile(private_copy(function), dynamic=False)),
        "Lamina": run(lamina.compile(private_copy(function), dynamic=False)),
    }
    found = _by_turns({**calls, **rivals}, device)
    events: dict[str, list[float]] = {}
    if training:
        for name, call in (("bare autograd.Function", bare), ("Lamina", compiled)):
            events[name] = _between_events(lambda call=call: call(x, y), backward, device)  # type: ignore[misc]
    return Account({name: found[name] for name in calls}, {name: found[name] for name in rivals}, events)


def accounts(device: str) -> dict[str, Account]:
    """One pointwise kernel and one sum, without and with gradients."""
    return {
        f"{name}{', forward + backward' if training else ''}": _account(function, training, device)
        for name, function in FUNCTIONS.items()
        for training in (False, True)
    }


def print_accounts(found: Mapping[str, Account]) -> None:
    """A table for each case: what every layer adds."""
    for case, account in found.items():
        rows = [[name, f"{us:.1f}", f"{account.totals[name]:.1f}"] for name, us in account.lines.items()]
        print_table(f"Host microseconds of a call: {case}", ["layer", "adds", "up to here"], rows)
        print("  ".join(f"{name} {us:.1f}" for name, us in account.rivals.items()), flush=True)
        if all(account.events.values()) and account.events:
            columns = zip(EVENTS, *account.events.values(), strict=True)
            order = [[name, *(f"{us:.1f}" for us in figures)] for name, *figures in columns]
            print_table(f"The same in order: {case}", ["until", *account.events], order)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    args = parser.parse_args(argv)
    if args.device == "cuda":
        needs_gpu()
    torch.set_num_threads(1)
    print_accounts(accounts(args.device))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
