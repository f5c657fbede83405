"""Microseconds of host time per call: one operation with and without gradients, and stacks of small blocks.

``python -m benchmarks.call_overhead --compile lamina``
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.compilers import compile_function, compiler_name
from benchmarks.patterns import private_copy
from benchmarks.report import RESULTS, print_table, write_results
from lamina.bench import alternate

__all__ = ["main"]


class Blocks(nn.Module):
    """A stack of tiny residual blocks: many guards and parameters, little work."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU()) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def _one_operation(grad: bool, backward: bool, compiler: Callable[..., Any]) -> Callable[[], Any]:
    x, cotangent = torch.randn(8, 8, requires_grad=grad), torch.randn(8, 8)
    function = compiler(private_copy(lambda t: t * 2.0 + 1.0), dynamic=False)
    if not backward:
        return lambda: function(x)

    def step() -> Any:
        return torch.autograd.grad(function(x), x, cotangent)

    return step


def _thirty_operations(compiler: Callable[..., Any]) -> Callable[[], Any]:
    def chain(x: Tensor) -> Tensor:
        for _ in range(15):
            x = (x + 0.5).sin()
        return x

    x = torch.randn(8, 8)
    function = compiler(private_copy(chain), dynamic=False)
    return lambda: function(x)


def _stack(count: int, backward: bool, compiler: Callable[..., Any]) -> Callable[[], Any]:
    torch.manual_seed(0)
    own: Any = type("Blocks", (Blocks,), {"forward": private_copy(Blocks.forward)})
    model, x = own(count), torch.randn(2, 8)
    function = compiler(model, dynamic=False)

    def infer() -> Any:
        with torch.no_grad():
            return function(x)

    def train() -> Any:
        model.zero_grad(set_to_none=True)
        function(x).sum().backward()

    return train if backward else infer


CASES: dict[str, Callable[[Callable[..., Any]], Callable[[], Any]]] = {
    "one op": lambda c: _one_operation(False, False, c),
    "one op, needs grad": lambda c: _one_operation(True, False, c),
    "one op, forward + backward": lambda c: _one_operation(True, True, c),
    "chain of 30 ops": _thirty_operations,
    **{f"{n} blocks, no grad": lambda c, n=n: _stack(n, False, c) for n in (1, 12, 48)},
    **{f"{n} blocks, forward + backward": lambda c, n=n: _stack(n, True, c) for n in (1, 12, 48)},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", default="lamina", type=compiler_name, metavar="NAME")
    parser.add_argument("--rivals", nargs="*", default=["eager", "dynamo", "torch"], type=compiler_name, metavar="NAME")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--seconds", type=float, default=1.0, help="time given to each rival of a case")
    parser.add_argument("--json", type=Path, default=RESULTS / "call_overhead.json")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads; these tensors are too small for two")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    rivals = list(dict.fromkeys([*args.rivals, args.compile]))
    results: dict[str, dict[str, float]] = {}
    for name, build in CASES.items():
        if args.only not in name:
            continue
        torch.compiler.reset()
        timed = alternate({r: build(compile_function(r)) for r in rivals}, seconds=args.seconds, warmup=10)
        results[name] = {rival: timed[rival].median * 1e6 for rival in rivals}
        print(f"{name}: " + ", ".join(f"{r} {v:.1f} µs" for r, v in results[name].items()), flush=True)
    rows = [[name, *(f"{times[rival]:.1f}" for rival in rivals)] for name, times in results.items()]
    print_table("Host microseconds per call", ["case", *rivals], rows)
    write_results(args.json, {"microseconds": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
