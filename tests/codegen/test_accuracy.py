"""Long sums lose no more digits than eager's, along rows, down columns and over everything."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lamina.runtime.toolchain import host_isa
from lamina.schedule.target import Target
from tests.codegen.harness import build, call, case, dense
from tests.codegen.writer import Body

SHAPES = {"row": (64, 20000, (1,)), "column": (20000, 64, (0,)), "wide": (4096, 512, (0,)), "middle": (4097, 33, (0,))}


@pytest.mark.parametrize("signs", ["positive", "mixed"])
@pytest.mark.parametrize("name", SHAPES)
def test_long_sums(name: str, signs: str, tmp_path: Path) -> None:
    rows, width, dims = SHAPES[name]
    torch.manual_seed(0)
    b = Body(rows, width)
    kept = [k for k in (0, 1) if k not in dims]
    b.store("Y", [b.at[k] for k in kept], b.reduce("sum", b.load("X", *b.at), *dims))
    out = [(rows, width)[k] for k in kept]
    target = Target.of("plain" if host_isa() == "plain" else "avx2", 2)
    made = case("sums", [b.nest()], [dense("X", "float32", (rows, width)), dense("Y", "float32", out)], target)
    x = torch.rand(rows, width) if signs == "positive" else torch.randn(rows, width)
    y = torch.zeros(out)
    assert call(made, build([made], target, tmp_path), {"X": x, "Y": y}, {}) == 0
    want = x.double().sum(dims)

    def error(got: torch.Tensor) -> float:
        return float((got.double() - want).square().mean().sqrt())

    assert error(y) <= 2 * error(x.sum(dims))
