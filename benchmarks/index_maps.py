"""Speed of index maps and what reads them: eager, torch.compile and a compile function, in one process by turns.

Rolls, windows, pads, pooling, resampling, slices and complex numbers: ``python -m benchmarks.index_maps --rows roll``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.compilers import compile_function, compiler_name
from benchmarks.report import RESULTS, geometric_mean, print_table, write_results
from lamina.bench import alternate
from lamina.testing import tensors

__all__ = ["MAPS", "main", "measure"]

Make = Callable[[], list[Tensor]]


def _floats(*shapes: Sequence[int], dtype: torch.dtype = torch.float32) -> Make:
    return lambda: [torch.randn(*shape).to(dtype) for shape in shapes]


def _channels_last(*shape: int) -> Make:
    return lambda: [torch.randn(*shape).to(memory_format=torch.channels_last)]


def _shifted_windows(x: Tensor) -> Tensor:
    x = torch.roll(x, (-3, -3), (1, 2))
    b, h, w, c = x.shape
    return x.view(b, h // 7, 7, w // 7, 7, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, c)


def _mixed(x: Tensor) -> Tensor:
    a, b, c, d = x.split([512, 512, 64, 64], -1)
    return torch.cat([functional.silu(a) * b, c * d], -1)


def _shifted_sums(x: Tensor) -> Tensor:
    return x[..., :-3] * 0.1 + x[..., 1:-2] * 0.2 + x[..., 2:-1] * 0.3 + x[..., 3:] * 0.4


def _product(x: Tensor) -> Tensor:
    y = torch.view_as_complex(x)
    return torch.view_as_real(y * y)


def _rotary(x: Tensor, angles: Tensor) -> Tensor:
    turns = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns).flatten(-2)


def _relative_shift(x: Tensor) -> Tensor:
    """Scores of distances as scores of places, as in Transformer-XL."""
    heads, rows, columns = x.shape
    wide = functional.pad(x * 0.9, (0, 1)).reshape(heads, -1)[:, : rows * columns]
    return wide.reshape(heads, rows, columns)[:, :, :rows] * 2


def _sum_of_slices(x: Tensor) -> Tensor:
    y = x * 0.9
    total = y[:, :16]
    for k in range(1, 30):
        total = total + y[:, 16 * k : 16 * k + 16]
    return total


def _unpooled(x: Tensor) -> Tensor:
    values, places = functional.max_pool1d(x * 0.9, 2, 2, return_indices=True)
    return functional.max_unpool1d(values, places, 2, 2) * 0.5


def _resized(mode: str, scale: float, corners: bool | None = None) -> Callable[[Tensor], Tensor]:
    return lambda x: functional.interpolate(x, scale_factor=scale, mode=mode, align_corners=corners)


def _pooled(*size: int) -> Callable[[Tensor], Tensor]:
    return lambda x: functional.adaptive_avg_pool2d(x, size)


def _padded(mode: str) -> Callable[[Tensor], Tensor]:
    return lambda x: functional.pad(x, (2, 1, 3, 2), mode=mode) * 2


MAPS: dict[str, tuple[Callable[..., Tensor], Make]] = {
    "roll_windows": (_shifted_windows, _floats((8, 56, 56, 96))),
    "roll_windows_bf16": (_shifted_windows, _floats((8, 56, 56, 96), dtype=torch.bfloat16)),
    "roll_rows": (lambda x: torch.roll(x, 5, 0) * 2 + x, _floats((513, 1027))),
    "roll_columns": (lambda x: torch.roll(x, 5, -1) * 2 + x, _floats((513, 1027))),
    "roll_images": (lambda x: torch.roll(x, (2, 3), (2, 3)) * 2, _floats((4, 32, 57, 61))),
    "roll_flat": (lambda x: torch.roll(x * 0.9, 7) * 0.5, _floats((4000, 3, 70))),
    "roll_flat_bf16": (lambda x: torch.roll(x * 0.9, 7) * 0.5, _floats((4000, 3, 70), dtype=torch.bfloat16)),
    "roll_short": (lambda x: torch.roll(x * 0.9, (1, 2, 1), (1, 2, 3)) * 0.5, _floats((4000, 3, 7, 5))),
    "relative_shift": (_relative_shift, _floats((16, 256, 511))),
    "relative_shift_bf16": (_relative_shift, _floats((16, 256, 511), dtype=torch.bfloat16)),
    "repeat_rows": (lambda x: (x * 0.9).repeat(1, 3) * 2, _floats((256, 1027))),
    "narrow": (lambda x: torch.narrow(x * 0.9, 1, 3, 500) * 0.5 + 0.25, _floats((512, 1024))),
    "slices": (_sum_of_slices, _floats((512, 1024))),
    "unpool": (_unpooled, _floats((64, 32, 256))),
    "unpool_bf16": (_unpooled, _floats((64, 32, 256), dtype=torch.bfloat16)),
    "adaptive_uneven": (_pooled(5, 7), _floats((8, 64, 56, 56))),
    "adaptive_uneven_small": (_pooled(3, 3), _floats((8, 256, 13, 13))),
    "adaptive_channels_last": (_pooled(5, 7), _channels_last(8, 64, 56, 56)),
    "adaptive_even": (_pooled(7, 7), _floats((8, 64, 56, 56))),
    "max_pool": (lambda x: functional.max_pool2d(x, 3, 2, 1) * 2, _floats((8, 64, 57, 57))),
    "average_less": (lambda x: functional.avg_pool2d(x, 3, 1, 1) - x, _floats((8, 64, 56, 56))),
    "bilinear_2": (_resized("bilinear", 2.0, False), _floats((4, 32, 56, 56))),
    "bilinear_corners": (_resized("bilinear", 2.0, True), _floats((4, 32, 57, 55))),
    "bilinear_odd": (_resized("bilinear", 1.7, False), _floats((4, 32, 56, 56))),
    "bilinear_down": (_resized("bilinear", 0.45, False), _floats((4, 32, 112, 112))),
    "bilinear_channels_last": (_resized("bilinear", 2.0, False), _channels_last(4, 32, 56, 56)),
    "bilinear_bf16": (_resized("bilinear", 2.0, False), _floats((4, 32, 56, 56), dtype=torch.bfloat16)),
    "bilinear_small": (_resized("bilinear", 2.0, False), _floats((2, 16, 14, 14))),
    "bicubic": (_resized("bicubic", 2.0, False), _floats((4, 16, 56, 56))),
    "linear": (_resized("linear", 2.0, False), _floats((4, 32, 2048))),
    "trilinear": (_resized("trilinear", 2.0, False), _floats((2, 8, 16, 24, 24))),
    "nearest_2": (_resized("nearest", 2.0), _floats((4, 32, 56, 56))),
    "nearest_odd": (_resized("nearest", 1.7), _floats((4, 32, 56, 56))),
    "split_mixed": (_mixed, _floats((512, 1152))),
    "shifted_sums": (_shifted_sums, _floats((256, 4099))),
    "pad_constant": (_padded("constant"), _floats((8, 32, 64, 64))),
    "pad_reflect": (_padded("reflect"), _floats((8, 32, 64, 64))),
    "pad_replicate": (_padded("replicate"), _floats((8, 32, 64, 64))),
    "pad_circular": (_padded("circular"), _floats((8, 32, 64, 64))),
    "windows": (lambda x: x.unfold(-1, 16, 8) * 2, _floats((64, 4096))),
    "unfold_images": (lambda x: functional.unfold(x, 3, padding=1) * 2, _floats((4, 16, 56, 56))),
    "shuffle": (lambda x: functional.pixel_shuffle(x, 2) * 2, _floats((4, 64, 64, 64))),
    "complex_square": (_product, _floats((256, 1024, 2))),
    "complex_rotary": (_rotary, _floats((8, 8, 256, 64), (256, 32))),
}
"""Programs by name, each with what makes its inputs."""


def _step(function: Callable[..., Any], inputs: Sequence[Tensor], training: bool) -> Callable[[], list[Tensor]]:
    if not training:
        return lambda: tensors(function(*inputs))
    leaves = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for x in inputs]
    cotangent: list[Tensor] = []

    def step() -> list[Tensor]:
        out = function(*leaves)
        if not cotangent:
            cotangent.append(torch.ones_like(out))
        return [out, *torch.autograd.grad(out, leaves, cotangent)]

    return step


def measure(name: str, training: bool, subject: str, rivals: Sequence[str], seconds: float) -> dict[str, Any]:
    """Milliseconds of each rival, ``subject``'s largest distance from eager, and its speed over the fastest other."""
    torch.compiler.reset()
    torch.manual_seed(0)
    function, make = MAPS[name]
    inputs = make()
    runs = {r: function if r == "eager" else compile_function(r)(function) for r in rivals}
    steps = {r: _step(run, inputs, training) for r, run in runs.items()}
    pairs = zip(steps["eager"](), steps[subject](), strict=True)
    distance = max(float((a.detach().double() - b.detach().double()).abs().max()) for a, b in pairs)
    timed = alternate(steps, seconds=seconds, warmup=3)
    best = min(timed.ratio(r, subject) for r in rivals if r != subject)
    milliseconds = {r: round(timed[r].median * 1e3, 4) for r in rivals}
    row = f"{name}.{'training' if training else 'forward'}"
    return {"row": row, "milliseconds": milliseconds, "distance": distance, "vs_best": round(best, 3)}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", default="lamina", type=compiler_name, metavar="NAME")
    parser.add_argument("--rows", nargs="*", default=[], metavar="TEXT", help="parts of programs' names")
    parser.add_argument("--modes", nargs="*", default=["forward", "training"], choices=["forward", "training"])
    parser.add_argument("--rivals", nargs="*", default=["torch"], type=compiler_name, metavar="NAME")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--json", type=Path, default=RESULTS / "index_maps.json")
    args = parser.parse_args(argv)
    rivals = list(dict.fromkeys(["eager", *args.rivals, args.compile]))
    chosen = [name for name in MAPS if not args.rows or any(text in name for text in args.rows)]
    rows = []
    for name in chosen:
        for mode in args.modes:
            row = measure(name, mode == "training", args.compile, rivals, args.seconds)
            print(row, flush=True)
            rows.append(row)
    columns = ["row", *rivals, "vs best", "distance"]
    table = [
        [r["row"], *(f"{r['milliseconds'][k]:.3f}" for k in rivals), f"{r['vs_best']:.2f}", f"{r['distance']:.1e}"]
        for r in rows
    ]
    print_table("Index maps, milliseconds", columns, table)
    summary = {"geomean_vs_best": geometric_mean(r["vs_best"] for r in rows), "rows": len(rows)}
    write_results(args.json, {"subject": args.compile, "summary": summary, "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
