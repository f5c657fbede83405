"""Elementwise kernels of lengths that are no multiples of sixteen: wide accesses, and every element once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.codegen.triton.emit import emit
from lamina.codegen.triton.source import TritonSource
from tests.codegen.triton.compiling import compiled
from tests.codegen.triton.harness import Interpreter
from tests.codegen.triton.test_plans import SMALL, planned, run

BF16 = torch.bfloat16


def _both(x: Tensor, y: Tensor) -> Any:
    return x * y + 1, x != y


PROGRAMS: dict[str, Callable[..., Any]] = {
    "two results": _both,
    "a column": lambda x, y: x.view(-1, 7) * y.view(-1, 7)[:, :1] + 0.5,
    "rows": lambda x, y: (x.view(-1, 7) + y[:7]).exp(),
    "from the end": lambda x, y: x.flip(0) + y,
    "to bytes": lambda x, y: (x * 100).clamp(-127, 127).to(torch.int8) + y.to(torch.int8),
}


def source(function: Callable[..., Any], length: int, dtype: torch.dtype = BF16) -> TritonSource:
    (kernel,) = planned(function, torch.ones(length, dtype=dtype), torch.ones(length, dtype=dtype)).kernels
    return emit(kernel, SMALL)


@pytest.mark.parametrize("length", [7 * 7 * 47, 4096 * 7 + 14, 2048 * 7, 15 * 7, 7])
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_values(interpreter: Interpreter, name: str, length: int) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(length), torch.randn(length)
    ours = run(planned(PROGRAMS[name], x, y), interpreter, (x, y))
    wanted = PROGRAMS[name](x.clone(), y)
    for mine, true in zip(ours, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        torch.testing.assert_close(mine, true, equal_nan=True)


def test_accesses_are_wide_at_any_length(tmp_path: Path) -> None:
    made = source(_both, 200_007)
    assert made.uneven is not None
    assert made.lengths == ("s0",)
    for one in (made, made.uneven):
        text = compiled(one, tmp_path).asm["ptx"] if one is made else _without(one, tmp_path)
        assert text.count("ld.global.v4.b32") == 4
        assert text.count("ld.global.b16") == (0 if one is made else 2)


def _without(made: TritonSource, folder: Path) -> str:
    """The kernel as it is where no size is known to be a multiple of sixteen."""
    return str(compiled(replace(made, aligned=("b0", "b1", "b2", "b3")), folder).asm["ptx"])


def test_known_lengths_have_one_kernel(tmp_path: Path) -> None:
    rows = source(lambda x, y: x.view(-1, 37) * y[:37], 37 * 1111)
    assert rows.uneven is None
    assert "_rest(" in rows.text
    assert "ld.global.v4.b32" in compiled(rows, tmp_path).asm["ptx"]
    assert "_rest(" not in source(lambda x, y: x.view(-1, 32) * y[:32], 32 * 1111).text


@pytest.mark.parametrize(("length", "points"), [(100, 128), (4100, 256), (50_000, 2048), (100_000, 2048)])
def test_few_points_are_shared_by_enough_programs(interpreter: Interpreter, length: int, points: int) -> None:
    x = torch.randn(length)
    plan = planned(lambda x: x * 2 + 1, x)
    (kernel,) = plan.kernels
    (block,) = kernel.schedules[0].blocks  # type: ignore[union-attr]
    assert block.size <= points
    assert length / block.size >= min(8, length / 128)
    torch.testing.assert_close(run(plan, interpreter, (x,))[0], x * 2 + 1)
