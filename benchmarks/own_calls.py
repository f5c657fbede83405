"""Microseconds of host time per call with our own front end, as facts hold, beside eager and the capture by Dynamo.

Graphs run as they were captured, so that what differs is what capture costs a call: ``python -m benchmarks.own_calls``
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.call_overhead import Blocks
from benchmarks.report import RESULTS, print_table, write_results
from lamina.bench import alternate
from lamina.capture.own.callable import interpreted_callable
from lamina.record import Record

__all__ = ["main"]

Call = Callable[[], Any]


def _own(target: Any) -> Any:
    return interpreted_callable(target, backend_callable=lambda gm, fakes: gm.forward, record=Record())


def _dynamo(target: Any) -> Any:
    return torch.compile(target, backend="eager", dynamic=False)


def _one_operation(wrap: Callable[[Any], Any]) -> Call:
    x = torch.randn(8)
    function = wrap(lambda t: t.relu())
    return lambda: function(x)


def _three_operations(wrap: Callable[[Any], Any]) -> Call:
    x, y = torch.randn(8), torch.randn(8)
    function = wrap(lambda t, u: (t * u + 1).relu())
    return lambda: function(x, y)


def _module(count: int) -> Callable[[Callable[[Any], Any]], Call]:
    def make(wrap: Callable[[Any], Any]) -> Call:
        model: nn.Module = wrap(Blocks(count).requires_grad_(False))
        x = torch.randn(2, 8)
        return lambda: model(x)

    return make


CASES = {
    "one operation": _one_operation,
    "three operations": _three_operations,
    "1 block": _module(1),
    "12 blocks": _module(12),
}
_WAYS: dict[str, Callable[[Any], Any]] = {"eager": lambda target: target, "dynamo": _dynamo, "own": _own}


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
        timed = alternate({way: build(wrap) for way, wrap in _WAYS.items()}, seconds=args.seconds, warmup=10)
        results[name] = {way: timed[way].median * 1e6 for way in _WAYS}
    rows = [[name, *(f"{times[way]:.1f}" for way in _WAYS)] for name, times in results.items()]
    print_table("Host microseconds per call", ["case", *_WAYS], rows)
    write_results(args.json, {"microseconds": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
