"""Where the GPU time of a row goes: each kernel's microseconds and launches in one call, compiler by compiler.

``python -m benchmarks.gpu_profile convnext.training bottleneck.forward --rivals torch lamina --top 12``; a row of the
sweep's generated programs is named as there, ``generated/13025.bf16.training``.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.compilers import compile_function, compiler_name
from benchmarks.gpu_blocks import BLOCKS
from benchmarks.gpu_machine import gpu, needs_gpu
from benchmarks.gpu_models import MODELS
from benchmarks.gpu_programs import PROGRAMS, GpuData, GpuProgram
from benchmarks.patterns import private_copy
from benchmarks.report import print_table, write_results
from benchmarks.sweep import GPU_SCALE
from benchmarks.sweeping.case import DTYPES, MODES, Row, Variant
from benchmarks.sweeping.grammar import generated
from benchmarks.sweeping.measure import rival_of
from lamina.testing import tensors

__all__ = ["KernelTime", "main", "profile_row"]

CALLS = 3


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel by name: launches and microseconds on the GPU in one call of the row."""

    name: str
    launches: float
    microseconds: float


def _step(pattern: GpuProgram, training: bool, rival: str) -> Callable[[], Any]:
    data = GpuData(torch.bfloat16, training)
    program = pattern.build(data)
    compiled = compile_function(rival)(private_copy(program.function), dynamic=False)

    def forward() -> Any:
        with torch.no_grad():
            return compiled(*program.args)

    def train() -> Any:
        outputs = tensors(compiled(*program.args))
        return torch.autograd.grad(outputs, data.leaves, [torch.ones_like(t) for t in outputs], allow_unused=True)

    return train if training else forward


def _of_sweep(name: str) -> Callable[[str], Callable[[], Any]] | None:
    """What builds the call of a generated program of the sweep for a rival, if that is what the name says."""
    found = re.fullmatch(rf"generated/(\d+)\.({'|'.join(DTYPES)})\.({'|'.join(MODES)})", name)
    if found is None:
        return None
    row = Row(generated(int(found[1]), GPU_SCALE), Variant(found[2], found[3], "cuda", GPU_SCALE))
    return lambda rival: rival_of(row, rival).call


def profile_row(make: Callable[[], Callable[[], Any]]) -> list[KernelTime]:
    """The kernels of one call, the longest first; a training call includes one fill for each output's gradient."""
    torch.compiler.reset()
    call = make()
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
    found = [e for e in recorded.key_averages() if e.device_type == DeviceType.CUDA and e.self_device_time_total > 0]
    kernels = [KernelTime(e.key, e.count / CALLS, e.self_device_time_total / CALLS) for e in found]
    return sorted(kernels, key=lambda kernel: -kernel.microseconds)


def main(argv: Sequence[str] | None = None) -> int:
    """Profile, print, write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", metavar="ROW", help="pattern.mode, of the patterns, blocks or models")
    parser.add_argument("--rivals", nargs="*", type=compiler_name, metavar="NAME", default=["torch", "lamina"])
    parser.add_argument("--top", type=int, default=15, help="kernels to print")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    known = {
        f"{p.name}.{mode}": partial(_step, p, mode == "training")
        for p in (*PROGRAMS, *BLOCKS, *MODELS)
        for mode in p.modes
    }
    makers = {row: known.get(row) or _of_sweep(row) for row in args.rows}
    unknown = [row for row, make in makers.items() if make is None]
    if unknown:
        raise SystemExit(f"no row is called {', '.join(unknown)}; there are {', '.join(known)}")
    needs_gpu()
    about, rows = gpu(), []
    for row, make in makers.items():
        assert make is not None
        for rival in args.rivals:
            kernels = profile_row(partial(make, rival))
            total = sum(kernel.microseconds for kernel in kernels)
            table = [[k.name[:90], f"{k.launches:g}", f"{k.microseconds:.1f}"] for k in kernels[: args.top]]
            print_table(f"{row}, {rival}: {total:.0f} us of GPU time a call", ["kernel", "launches", "us"], table)
            rows.append({"row": row, "compile": rival, "us": total, "kernels": [asdict(k) for k in kernels]})
            if args.json:
                write_results(args.json, {"gpu": about, "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
