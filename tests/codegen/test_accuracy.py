"""Long sums lose no more digits than eager's, along rows, down columns and over everything."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lamina.base.target import cpu
from lamina.runtime.toolchain import host_isa
from tests.codegen.harness import build, call, case, dense
from tests.codegen.writer import Body

SHAPES = {
    "row": (64, 20000, (1,)),
    "column": (20000, 64, (0,)),
    "wide": (4096, 512, (0,)),
    "middle": (4097, 33, (0,)),
    "few": (256, 512, (0,)),
}


def excess(sums: list[tuple[int, ...]], rows: int, width: int, signs: str, folder: Path) -> list[float]:
    """For each sum of a (rows, width) array over the named dimensions, all in one nest: our rms error over eager's."""
    torch.manual_seed(0)
    b = Body(rows, width)
    loaded = b.load("X", *b.at)
    buffers, results = [dense("X", "float32", (rows, width))], {}
    for number, dims in enumerate(sums):
        kept = [k for k in (0, 1) if k not in dims]
        shape = [(rows, width)[k] for k in kept]
        b.store(f"Y{number}", [b.at[k] for k in kept], b.reduce("sum", loaded, *dims))
        buffers.append(dense(f"Y{number}", "float32", shape))
        results[f"Y{number}"] = torch.zeros(shape)
    target = cpu("plain" if host_isa() == "plain" else "avx2", 2)
    made = case("sums", [b.nest()], buffers, target)
    x = torch.rand(rows, width) if signs == "positive" else torch.randn(rows, width)
    assert call(made, build([made], target, folder), {"X": x, **results}, {}) == 0

    def error(got: torch.Tensor, dims: tuple[int, ...]) -> float:
        return float((got.double() - x.double().sum(dims)).square().mean().sqrt())

    return [error(y, dims) / error(x.sum(dims), dims) for dims, y in zip(sums, results.values(), strict=True)]


@pytest.mark.parametrize("signs", ["positive", "mixed"])
@pytest.mark.parametrize("name", SHAPES)
def test_long_sums(name: str, signs: str, tmp_path: Path) -> None:
    rows, width, dims = SHAPES[name]
    assert max(excess([dims], rows, width, signs, tmp_path)) <= 2


@pytest.mark.parametrize("signs", ["positive", "mixed"])
@pytest.mark.parametrize("rows", [32, 64, 256, 1000])
def test_column_sums_beside_row_sums(rows: int, signs: str, tmp_path: Path) -> None:
    """These meet memory in every row, instead of four rows at a time in registers."""
    assert max(excess([(1,), (0,)], rows, 96, signs, tmp_path)) <= 2


@pytest.mark.parametrize(("images", "pixels"), [(4, 256), (33, 1000), (32, 32)])
def test_column_sums_over_two_loops(images: int, pixels: int, tmp_path: Path) -> None:
    """The columns of the operand are apart, so that images and pixels are no single loop."""
    torch.manual_seed(0)
    b = Body(images, pixels, 16)
    image, pixel, column = b.at
    loaded = b.load("X", image, column, pixel)
    total = b.reduce("sum", loaded, 0, 1)
    b.store("Y", [column], total)
    b.store("Z", [image, pixel, column], b.op("sub", loaded, total))
    buffers = [
        dense("X", "float32", (images, 16, pixels)),
        dense("Y", "float32", (16,)),
        dense("Z", "float32", (images, pixels, 16)),
    ]
    target = cpu("plain" if host_isa() == "plain" else "avx2", 2)
    made = case("sums", [b.nest()], buffers, target)
    x, y, z = torch.rand(images, 16, pixels), torch.zeros(16), torch.zeros(images, pixels, 16)
    assert call(made, build([made], target, tmp_path), {"X": x, "Y": y, "Z": z}, {}) == 0
    exact = x.double().sum((0, 2))
    assert (y - exact).abs().max() <= 1.2e-7 * exact.max()
