"""Microseconds of host time that an operation made with torch.library.custom_op takes, called directly and compiled.

``python -m benchmarks.custom_ops``: "function" is the Python function behind the operation, "direct" the operation
called in eager, "in a region" what a compiled region pays for the call, "lamina" and "torch" a compiled function that
does nothing else. The operations do next to nothing themselves.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lamina
from benchmarks.patterns import private_copy
from benchmarks.report import RESULTS, print_table, write_results
from lamina.bench import alternate
from lamina.runtime.user_ops import user_op

__all__ = ["main"]

_OUT = torch.empty(8)


@torch.library.custom_op("lamina_benchmarks::one", mutates_args=())
def one(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("lamina_benchmarks::several", mutates_args=())
def several(x: Tensor, y: Tensor, z: Tensor, scale: float, flag: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(y)


@torch.library.custom_op("lamina_benchmarks::into", mutates_args={"out"})
def into(x: Tensor, out: Tensor) -> None:
    return None


one.register_fake(torch.empty_like)
several.register_fake(lambda x, y, z, scale, flag: (torch.empty_like(x), torch.empty_like(y)))


def _one(op: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: op(x)


def _several(op: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: op(x, y, x, 0.5, True)


def _into(op: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Tensor, y: Tensor) -> None:
        op(x, y)

    return call


CASES: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "one tensor to one": (one, "one", _one),
    "three tensors and numbers to two": (several, "several", _several),
    "writes to an argument": (into, "into", _into),
}


def rivals(op: Any, name: str, program: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The operation called in every way."""
    torch.compiler.reset()
    overload = getattr(torch.ops.lamina_benchmarks, name).default
    return {
        "function": program(op._init_fn),
        "direct": program(overload),
        "in a region": program(user_op(f"lamina_benchmarks.{name}.default", "cpu")),
        "lamina": lamina.compile(private_copy(program(op)), fullgraph=True, options={"strict": True}),
        "torch": torch.compile(private_copy(program(op)), fullgraph=True),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="time given to each way of a case")
    parser.add_argument("--json", type=Path, default=RESULTS / "custom_ops.json")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    x, y = torch.randn(8), torch.randn(8)
    results: dict[str, dict[str, float]] = {}
    for case, (op, name, program) in CASES.items():
        ways = rivals(op, name, program)
        timed = alternate(ways, x, y, seconds=args.seconds, warmup=10)
        results[case] = {way: timed[way].median * 1e6 for way in ways}
    ways = list(next(iter(results.values())))
    rows = [
        [case, *(f"{times[w]:.1f}" for w in ways), f"{times['lamina'] - times['direct']:+.1f}"]
        for case, times in results.items()
    ]
    print_table("Host microseconds per call", ["operation", *ways, "lamina - direct"], rows)
    write_results(args.json, {"microseconds": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
