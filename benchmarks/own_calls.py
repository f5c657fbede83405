"""Microseconds of host time per call with our own front end, as facts hold, beside eager and the capture by Dynamo.

Graphs run as they were captured, so that what differs is what capture costs a call; those of the rows "facts of" give
a tensor that is there already: ``python -m benchmarks.own_calls``
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.call_overhead import Blocks
from benchmarks.report import RESULTS, print_table, write_results
from lamina.backends.caches import guard_machine
from lamina.bench import alternate
from lamina.capture.own.callable import interpreted_callable
from lamina.options import Options
from lamina.record import Record

__all__ = ["CASES", "WAYS", "main"]

Call = Callable[[], Any]


Backend = Callable[[Any, Any], Callable[..., Any]]


def _as_captured(gm: Any, examples: Any) -> Callable[..., Any]:
    return gm.forward  # type: ignore[no-any-return]


def _nothing(gm: Any, examples: Any) -> Callable[..., Any]:
    given = (torch.zeros(2, 8),)
    return lambda *tensors: given


def _eager(target: Any, backend: Backend) -> Any:
    return target if backend is _as_captured else lambda x: x


def _own(target: Any, backend: Backend) -> Any:
    machine = partial(guard_machine, Options.from_environment())
    return interpreted_callable(target, backend_callable=backend, record=Record(), machine=machine)


def _own_in_python(target: Any, backend: Backend) -> Any:
    return interpreted_callable(target, backend_callable=backend, record=Record())


def _dynamo(target: Any, backend: Backend) -> Any:
    return torch.compile(target, backend=backend, dynamic=False)


Wrap = Callable[[Any, Backend], Any]


def _one_operation(grad: bool) -> Callable[[Wrap], Call]:
    def make(wrap: Wrap) -> Call:
        x = torch.randn(8, requires_grad=grad)
        function = wrap(lambda t: t.relu(), _as_captured)
        return lambda: function(x)

    return make


def _three_operations(wrap: Wrap) -> Call:
    x, y = torch.randn(8), torch.randn(8)
    function = wrap(lambda t, u: (t * u + 1).relu(), _as_captured)
    return lambda: function(x, y)


def _module(count: int, backend: Backend) -> Callable[[Wrap], Call]:
    def make(wrap: Wrap) -> Call:
        model = wrap(Blocks(count).requires_grad_(False), backend)
        x = torch.randn(2, 8)
        return lambda: model(x)

    return make


CASES: dict[str, Callable[[Wrap], Call]] = {
    "one operation": _one_operation(False),
    "one operation, needs grad": _one_operation(True),
    "three operations": _three_operations,
    "1 block": _module(1, _as_captured),
    "12 blocks": _module(12, _as_captured),
    "facts of 12 blocks": _module(12, _nothing),
    "facts of 48 blocks": _module(48, _nothing),
    "facts of 96 blocks": _module(96, _nothing),
}
WAYS: dict[str, Wrap] = {"eager": _eager, "dynamo": _dynamo, "own, facts in Python": _own_in_python, "own": _own}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure by turns, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="time given to each way of a case")
    parser.add_argument("--json", type=Path, default=RESULTS / "own_calls.json")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    results: dict[str, dict[str, float]] = {}
    for name, build in CASES.items():
        torch.compiler.reset()
        timed = alternate({way: build(wrap) for way, wrap in WAYS.items()}, seconds=args.seconds, warmup=10)
        results[name] = {way: timed[way].median * 1e6 for way in WAYS}
    rows = [[name, *(f"{times[way]:.1f}" for way in WAYS)] for name, times in results.items()]
    print_table("Host microseconds per call", ["case", *WAYS], rows)
    write_results(args.json, {"microseconds": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
