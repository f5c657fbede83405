"""Speed and error of products with weights that are kept as bytes, which the program turns into bf16 on a GPU.

``python -m benchmarks.gpu_quantised --rows int8_16 --rivals eager torch``

A few rows of activations, as in serving: the time is that of reading the weights. "of copy" counts them as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu_driver import run
from benchmarks.gpu_programs import GpuData, GpuProgram, Program
from benchmarks.report import RESULTS

__all__ = ["QUANTISED", "main"]

INNER, COLUMNS, GROUP = 4096, 14336, 128


def _codes(data: GpuData, dtype: torch.dtype) -> Tensor:
    drawn = data.randn(COLUMNS, INNER, scale=40.0, exact=True)
    return drawn.clamp(-127, 127).to(dtype)


def by_row(rows: int, dtype: torch.dtype) -> Callable[[GpuData], Program]:
    """A linear layer whose weights have a factor for each row."""

    def build(data: GpuData) -> Program:
        x, codes, scales = data.randn(rows, INNER), _codes(data, dtype), data.randn(COLUMNS, 1, scale=0.01)
        return Program(lambda x, codes, scales: F.linear(x, codes.to(x.dtype) * scales), (x, codes, scales))

    return build


def by_group(rows: int, dtype: torch.dtype) -> Callable[[GpuData], Program]:
    """The same with a factor for each 128 columns of a row."""

    def function(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
        groups = codes.view(COLUMNS, INNER // GROUP, GROUP).to(x.dtype) * scales
        return F.linear(x, groups.view(COLUMNS, INNER))

    def build(data: GpuData) -> Program:
        scales = data.randn(COLUMNS, INNER // GROUP, 1, scale=0.01)
        return Program(function, (data.randn(rows, INNER), _codes(data, dtype), scales))

    return build


QUANTISED: list[GpuProgram] = [
    *(GpuProgram(f"int8_{rows}", by_row(rows, torch.int8), ("forward",)) for rows in (1, 4, 16, 64)),
    GpuProgram("fp8_16", by_row(16, torch.float8_e4m3fn), ("forward",)),
    GpuProgram("int8_groups_16", by_group(16, torch.int8), ("forward",)),
]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON; 1 if a result is wrong."""
    return run("Weights as bytes", QUANTISED, RESULTS / "gpu_quantised.json", __doc__, argv, "benchmarks.gpu_quantised")


if __name__ == "__main__":
    raise SystemExit(main())
