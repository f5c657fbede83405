"""Times the candidates of every kernel of some patterns on this machine's GPU, and checks results against eager.

    python benchmarks/gpu_kernels.py [--only NAME ...] [--variants]

One line for a pattern: microseconds of all its kernels together (median, second-level cache flushed), share of copy
bandwidth by the bytes it must move, largest error relative to float32. With ``--variants``, one line for each candidate
of each kernel that takes a tenth of the time or more.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.graphs import traced
from lamina.base.dtypes import torch_dtype
from lamina.base.target import Target, nvidia
from lamina.codegen.triton.emit import emit
from lamina.codegen.triton.source import TritonSource
from lamina.ir.plan import Kernel, KernelCall, Plan
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.gpu_space import candidates
from lamina.schedule.plan import make_plan

BF16 = torch.bfloat16


@dataclass(frozen=True)
class Pattern:
    """A function of tensors and the shapes and dtypes of its arguments."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[tuple[tuple[int, ...], torch.dtype], ...]


def norm_backward(g: Any, x: Any, w: Any, b: Any) -> Any:
    mean, var = x.float().mean(-1, keepdim=True), x.float().var(-1, unbiased=False, keepdim=True)
    return torch.ops.aten.native_layer_norm_backward(
        g, x, [x.shape[-1]], mean, (var + 1e-5).rsqrt(), w, b, [True, True, True]
    )


def gelu_backward(g: Any, x: Any) -> Any:
    d = torch.ops.aten.gelu_backward(g, x, approximate="tanh")
    return d, d.sum(0)


def batch_norm(x: Any, w: Any, y: Any) -> Any:
    return F.relu(F.batch_norm(x, None, None, w, w, True) + y)


def rotary(q: Any, c: Any, s: Any) -> Any:
    half = q.shape[-1] // 2
    turned = torch.cat([-q[..., half:], q[..., :half]], -1)
    return q * c + turned * s


def quantised(x: Any) -> Any:
    scale = x.float().abs().amax(-1, keepdim=True) / 127
    return (x.float() / scale).round().to(torch.int8), scale


def group_quantised(x: Any) -> Any:
    y = x.float().reshape(x.shape[0], -1, 128)
    scale = y.abs().amax(-1, keepdim=True).clamp(1e-6) / 448
    return (y / scale).to(torch.float8_e4m3fn), scale


def loss(x: Any, t: Any) -> Any:
    return F.cross_entropy(x.float(), t)


def rms_norm(x: Any, r: Any, w: Any) -> Any:
    h = x + r
    f = h.float()
    return h, (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


PATTERNS = [
    Pattern("bias_gelu", lambda x, b: F.gelu(x + b, approximate="tanh"), (((8192, 16384), BF16), ((16384,), BF16))),
    Pattern("layer_norm", lambda x, w: F.layer_norm(x, (4096,), w, w), (((16384, 4096), BF16), ((4096,), BF16))),
    Pattern("norm_backward", norm_backward, (*((((16384, 4096), BF16),) * 2), *((((4096,), BF16),) * 2))),
    Pattern("rms_norm", rms_norm, (*((((16384, 4096), BF16),) * 2), ((4096,), BF16))),
    Pattern("softmax_1k", lambda x: x.softmax(-1), (((32768, 1024), BF16),)),
    Pattern("softmax_16k", lambda x: x.softmax(-1), (((4096, 16384), BF16),)),
    Pattern("softmax_50257", lambda x: x.softmax(-1), (((4096, 50257), BF16),)),
    Pattern("softmax_262144", lambda x: x.softmax(-1), (((1024, 262144), BF16),)),
    Pattern("cross_entropy", loss, (((8192, 50304), BF16), ((8192,), torch.int64))),
    Pattern("group_norm", lambda x: F.silu(F.group_norm(x, 32)), (((32, 320, 64, 64), BF16),)),
    Pattern("batch_norm", batch_norm, (((256, 64, 56, 56), BF16), ((64,), BF16), ((256, 64, 56, 56), BF16))),
    Pattern("swiglu", lambda a, b: F.silu(a) * b, (*((((16384, 14336), BF16),) * 2),)),
    Pattern("transposed", lambda a, b: a + b.t(), (*((((16384, 16384), BF16),) * 2),)),
    Pattern("column_sum", lambda x: x.sum(0), (((16384, 8192), BF16),)),
    Pattern("middle_mean", lambda x: x.mean(1), (((64, 2048, 1024), BF16),)),
    Pattern("row_sum", lambda x: x.sum(1), (((16384, 8192), BF16),)),
    Pattern("variance", lambda x: x.var(), (((16384, 8192), BF16),)),
    Pattern("cumsum", lambda x: x.float().cumsum(1), (((16384, 8192), BF16),)),
    Pattern("quantised", quantised, (((16384, 8192), BF16),)),
    Pattern("group_quantised", group_quantised, (((16384, 8192), BF16),)),
    Pattern("gelu_backward", gelu_backward, (*((((16384, 8192), BF16),) * 2),)),
    Pattern("embedding", lambda w, i: F.embedding(i, w), (((50257, 1024), BF16), ((65536,), torch.int64))),
]


def argument(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    if dtype == torch.int64:
        return torch.randint(0, 1000, shape, device=device)
    return (
        torch.randn(shape, device=device, dtype=torch.float32).to(dtype)
        if device != "cpu"
        else torch.empty(shape, dtype=dtype)
    )


class Kernels:
    """Compiled kernels by source text."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.done: dict[str, Any] = {}

    def function(self, source: TritonSource) -> Any:
        if source.text not in self.done:
            path = self.folder / f"k{len(self.done)}.py"
            path.write_text(source.text)
            spec = importlib.util.spec_from_file_location(path.stem, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            self.done[source.text] = getattr(module, source.name)
        return self.done[source.text]

    def launcher(self, source: TritonSource, args: list[Any], sizes: list[int]) -> Callable[[], Any]:
        function = self.function(source)
        values = {f"s{k}": n for k, n in enumerate(sizes)}
        grid = (int(source.grid[0].evaluate(values)),)
        failed = [torch.zeros(1, dtype=torch.int32, device="cuda")] if source.checks else []
        return lambda: function[grid](*args, *sizes, *failed, num_warps=source.warps, num_stages=source.stages)


FLUSH = 1 << 28


def timed(run: Callable[[], Any], repeats: int) -> float:
    """Median microseconds with a cold second-level cache."""
    flush = torch.empty(FLUSH, dtype=torch.int8, device="cuda")
    times = []
    run()
    for _ in range(repeats):
        flush.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    return statistics.median(times)


def bound(plan: Plan, copy: float) -> float:
    """Microseconds that reading the inputs and writing the outputs once takes."""
    moved = 0
    outputs = {o.buffer for o in plan.outputs if hasattr(o, "buffer")}
    for b in plan.buffers:
        if b.name in outputs or b.kind == "input":
            n = 1
            for e in b.shape:
                n *= int(e)
            moved += n * torch_dtype(b.dtype).itemsize
    return moved / copy / 1000


def launches(
    plan: Plan, kernels: Kernels, inputs: list[torch.Tensor], target: Target
) -> tuple[list[Any], dict[str, Any]]:
    table = plan.buffer_map()
    tensors: dict[str, torch.Tensor] = {n: t for n, t in zip(plan.inputs, inputs, strict=True) if isinstance(n, str)}
    for b in plan.buffers:
        if b.name not in tensors:
            shape, strides = [int(e) for e in b.shape], [int(e) for e in b.strides]
            tensors[b.name] = torch.empty_strided(shape, strides, dtype=torch_dtype(b.dtype), device="cuda")
    made = []
    known = {k.name: k for k in plan.kernels}
    for step in plan.steps:
        if not isinstance(step, KernelCall):
            raise RuntimeError(f"library call {step.op}")
        kernel = known[step.kernel]
        args, sizes = [tensors[b] for b in step.buffers], [int(e) for e in step.sizes]
        made.append((kernel, args, sizes, kernels.launcher(emit(kernel, target), args, sizes)))
    del table
    return made, tensors


def variants(kernel: Kernel, args: list[Any], sizes: list[int], kernels: Kernels, target: Target) -> None:
    dtypes = {f"b{k}": d for k, d in enumerate(kernel.dtypes)}
    for schedule in (ranked.schedule for ranked in candidates(kernel.nests[0], dtypes, target)):
        one = replace(kernel, schedules=(schedule,))
        blocks = " ".join(f"{'.'.join(b.axes)}:{b.size}{b.role[0]}" for b in schedule.blocks)
        try:
            micro = timed(kernels.launcher(emit(one, target), args, sizes), 15)
            print(f"    {micro:9.1f} us  warps {schedule.warps:2d} stages {schedule.stages}  {blocks}", flush=True)
        except Exception as error:
            print(f"    failed: {type(error).__name__} {str(error)[:100]}  {blocks}", flush=True)


def error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    gap = (ours.double() - exact.double()).abs()
    return float(gap.max() / exact.double().abs().max().clamp(min=1e-30))


def measure(pattern: Pattern, kernels: Kernels, target: Target, with_variants: bool) -> None:
    plan = make_plan(
        fuse(lower(traced(pattern.function, [argument(s, d, "cpu") for s, d in pattern.arguments]), "p")), target
    )
    inputs = [argument(s, d, "cuda") for s, d in pattern.arguments]
    made, tensors = launches(plan, kernels, inputs, target)

    def run() -> None:
        for _, _, _, launch in made:
            launch()

    micro = timed(run, 30)
    want = pattern.function(*inputs)
    exact = want if isinstance(want, tuple) else (want,)
    worst = 0.0
    for out, right in zip(plan.outputs, exact, strict=False):
        ours = tensors[out.buffer]
        ours = ours.as_strided([int(e) for e in out.shape], [int(e) for e in out.strides], int(out.offset))
        worst = max(worst, error(ours, right))
    eager = timed(lambda: pattern.function(*inputs), 10)
    share = bound(plan, target.copy_gbs) / micro
    print(
        f"{pattern.name:16s} {micro:9.1f} us  {share:5.2f} of copy  eager {eager:9.1f}  error {worst:.2g}"
        f"  {len(made)} kernels",
        flush=True,
    )
    for kernel, args, sizes, launch in made:
        own = timed(launch, 10)
        if own > micro / 10 and with_variants:
            print(f"  {kernel.name} {own:.1f} us")
            variants(kernel, args, sizes, kernels, target)


def copy_bandwidth() -> float:
    a = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
    b = torch.empty_like(a)
    return 2 * a.numel() / timed(lambda: b.copy_(a), 20) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--variants", action="store_true")
    given = parser.parse_args()
    facts = torch.cuda.get_device_properties(0)
    copy = copy_bandwidth()
    target = nvidia(facts.name, facts.multi_processor_count, facts.major * 10 + facts.minor, copy, facts.L2_cache_size)
    print(f"{facts.name}, torch {torch.__version__}, copy {copy:.0f} GB/s", flush=True)
    kernels = Kernels()
    for pattern in PATTERNS:
        if given.only and pattern.name not in given.only:
            continue
        try:
            measure(pattern, kernels, target, given.variants)
        except Exception as problem:
            print(f"{pattern.name:16s} failed: {type(problem).__name__}: {str(problem)[:600]}", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
