"""Host microseconds of GPU calls, line by line: what a launch costs by each way to do it, and a call of a region.

``python -m benchmarks.gpu_overhead`` needs a GPU. Tensors are tiny, so that the GPU never holds the host up; each
figure is the lowest of several medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import nn

from benchmarks.compilers import compile_function, compiler_name
from benchmarks.gpu_machine import gpu, needs_gpu
from benchmarks.host_account import accounts, print_accounts
from benchmarks.report import RESULTS, print_table, write_results
from lamina.runtime.cache import Cache
from lamina.runtime.cuda_driver import CudaKernel, Driver, make_launcher
from lamina.runtime.cuda_host import current_device, current_stream, empty
from lamina.runtime.toolchain import find_compiler
from lamina.runtime.triton_build import TritonUnit, build_triton
from lamina.runtime.triton_pool import compiler_pool

__all__ = ["main"]

BLOCK = 256
TEXT = """\
import triton
import triton.language as tl


@triton.jit
def add(b0, b1, b2, s0):
    i = tl.program_id(0) * 256 + tl.arange(0, 256)
    tl.store(b2 + i, tl.load(b0 + i, mask=i < s0) + tl.load(b1 + i, mask=i < s0), mask=i < s0)
"""


@triton.jit
def add_kernel(b0, b1, b2, s0):  # type: ignore[no-untyped-def]
    """The same as ``TEXT``, for Triton's own launchers."""
    i = tl.program_id(0) * 256 + tl.arange(0, 256)
    tl.store(b2 + i, tl.load(b0 + i, mask=i < s0) + tl.load(b1 + i, mask=i < s0), mask=i < s0)


def microseconds(call: Callable[[], Any], repeats: int = 15, calls: int = 200) -> float:
    """Host time of a call while the GPU keeps up."""
    for _ in range(20):
        call()
    medians = []
    for _ in range(3):
        samples = []
        for _ in range(repeats):
            torch.cuda.synchronize()
            start = time.perf_counter_ns()
            for _ in range(calls):
                call()
            samples.append((time.perf_counter_ns() - start) / calls / 1e3)
        medians.append(statistics.median(samples))
    return min(medians)


def _loaded(compiled: bool) -> CudaKernel:
    cache = Cache(None)
    types = ("*fp32", "*fp32", "*fp32", "i64")
    unit = TritonUnit("add", "add", TEXT, ("b0", "b1", "b2", "s0"), types, (0, 1, 2, 3), 4, 3)
    major, minor = torch.cuda.get_device_capability()
    built = build_triton([unit], capability=10 * major + minor, cache=cache, pool=lambda: compiler_pool(1))
    launcher = make_launcher(find_compiler("", cache) if compiled else None, cache)
    return Driver(launcher=launcher).load(built.cubins["add"], 0)


def launches() -> dict[str, float]:
    """One kernel, by every way to launch it, and the pieces of a host program."""
    x, y = torch.randn(BLOCK, device="cuda"), torch.randn(BLOCK, device="cuda")
    out = torch.empty_like(x)
    ways: dict[str, Callable[[], Any]] = {
        "eager add": lambda: x + y,
        "eager add out=": lambda: torch.add(x, y, out=out),
    }
    for name, compiled in (("ours, C++", True), ("ours, ctypes", False)):
        kernel = _loaded(compiled)
        ways[name] = _ours(kernel, x, y, out)
    ways["triton jit"] = lambda: add_kernel[(1,)](x, y, out, BLOCK)
    compiled_kernel = add_kernel[(1,)](x, y, out, BLOCK)
    ways["triton compiled kernel"] = lambda: compiled_kernel[(1, 1, 1)](x, y, out, BLOCK)
    ways["triton's C launcher"] = _triton_launcher(compiled_kernel, x, y, out)
    ways |= {
        "current_device": current_device,
        "current_stream": lambda: current_stream(0),
        "data_ptr": x.data_ptr,
        "empty": lambda: empty((BLOCK,), (1,), torch.float32),
        "torch.empty_like": lambda: torch.empty_like(x),
    }
    return {name: microseconds(way) for name, way in ways.items()}


def _ours(kernel: CudaKernel, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> Callable[[], Any]:
    launch = kernel.launch

    def call() -> None:
        if launch(current_stream(0), 1, 1, 1, x.data_ptr(), y.data_ptr(), out.data_ptr(), BLOCK):
            raise RuntimeError("the launch failed")

    return call


def _triton_launcher(kernel: Any, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> Callable[[], Any]:
    """What Triton compiles for the signature, called with nothing in between."""
    run = kernel.run.launch
    function, packed = kernel.function, kernel.packed_metadata

    def call() -> None:
        pointers = (x.data_ptr(), y.data_ptr(), out.data_ptr())
        run(1, 1, 1, current_stream(0), function, False, False, None, None, packed, None, None, None, *pointers, BLOCK)

    return call


def regions(rivals: Sequence[str]) -> dict[str, dict[str, float]]:
    """One pointwise kernel, without and with gradients, and three layers."""
    found: dict[str, dict[str, float]] = {}
    for name in rivals:
        torch.compiler.reset()
        compiler = compile_function(name)
        x, y = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")

        def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (x * y + 1).relu()

        one = compiler(function)
        leaf = torch.randn(64, 64, device="cuda", requires_grad=True)
        gradient = torch.randn(64, 64, device="cuda")

        def training(call: Any = one, leaf: torch.Tensor = leaf, gradient: torch.Tensor = gradient) -> None:
            leaf.grad = None
            call(leaf, leaf).backward(gradient)

        layers = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()))).cuda()
        several = compiler(layers)
        with torch.no_grad():
            figures = {
                "one kernel": microseconds(lambda one=one, x=x, y=y: one(x, y)),
                "three layers": microseconds(lambda several=several, x=x: several(x)),
            }
        figures["one kernel, forward + backward"] = microseconds(training, calls=100)
        found[name] = figures
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON: launches, calls, and what each layer of a call adds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rivals", nargs="*", type=compiler_name, metavar="NAME", default=["eager", "torch", "lamina"])
    parser.add_argument("--json", type=Path, default=RESULTS / "gpu_overhead.json")
    args = parser.parse_args(argv)
    needs_gpu()
    single = launches()
    print_table("Host microseconds", ["way", "us"], [[name, f"{us:.2f}"] for name, us in single.items()])
    calls = regions(args.rivals)
    columns = list(next(iter(calls.values()), {}))
    rows = [[name, *(f"{figures[c]:.1f}" for c in columns)] for name, figures in calls.items()]
    print_table("Host microseconds of a call", ["compiler", *columns], rows)
    layers = accounts("cuda")
    print_accounts(layers)
    account = {
        case: {"layers": found.lines, "rivals": found.rivals, "events": found.events} for case, found in layers.items()
    }
    write_results(args.json, {"gpu": gpu(), "launches": single, "calls": calls, "account": account})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
