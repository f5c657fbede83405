"""Elements that take turns along a short last axis are accessed together, as wide as others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.codegen.triton.emit import emit
from lamina.codegen.triton.turns import accesses_in_turns
from lamina.ir.index import Axis, as_expr
from lamina.ir.loops import Load, Store
from tests.codegen.triton.compiling import compiled
from tests.codegen.triton.harness import Interpreter
from tests.codegen.triton.test_plans import SMALL, planned, run


def _rotary(x: Tensor, y: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    cos, sin = y[..., ::2].cos(), y[..., 1::2].sin()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "two": lambda x, y: torch.stack([x, -x], -1) + y.repeat_interleave(2).view(*x.shape, 2),
    "four": lambda x, y: torch.stack([x, y, x * y, x + 1], -1).exp(),
    "three": lambda x, y: torch.stack([x, y, x * y], -1) * 2,
    "beside an operand of its size": lambda x, y: torch.stack([x[:, 0::2], -y[:, 0::2]], -1).lerp(
        x.view(x.shape[0], -1, 2), 0.25
    ),
    "rotary": _rotary,
    "a constant": lambda x, y: torch.stack([x, torch.full_like(x, 3.0)], -1),
    "a row's number": lambda x, y: torch.stack([x, y[:, :1].expand_as(x)], -1),
    "two tiles": lambda x, y: torch.stack([x.t(), y.t().sin()], -1),
    "bytes": lambda x, y: torch.stack([(x > 0.5).to(torch.uint8) * 3, (y > 0.5).to(torch.uint8)], -1),
}
TOGETHER = ("two", "four", "beside an operand of its size", "rotary")


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize(
    ("shape", "dtype"), [((37, 46), torch.float32), ((64, 128), torch.bfloat16), ((3, 2), torch.float32)]
)
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_values(interpreter: Interpreter, name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y = torch.rand(shape).to(dtype), torch.rand(shape).to(dtype)
    (ours,) = run(planned(PROGRAMS[name], x, y), interpreter, (x, y))
    # Eager rounds to bfloat16 on the way.
    precision = {"rtol": 0.02, "atol": 0.02} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(ours, PROGRAMS[name](x.clone(), y), **precision)


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_which_are_put_together(name: str) -> None:
    x = torch.rand(256, 512)
    (kernel,) = planned(PROGRAMS[name], x, x).kernels
    assert ("tl.join(" in emit(kernel, SMALL).text) == (name in TOGETHER)


def test_stores_are_wide(tmp_path: Path) -> None:
    x = torch.rand(256, 512)
    (kernel,) = planned(PROGRAMS["beside an operand of its size"], x, x).kernels
    text = compiled(emit(kernel, SMALL), tmp_path).asm["ptx"]
    assert "st.global.v4.b32" in text
    assert "st.global.b32" not in text


def test_what_has_an_order_is_left_alone() -> None:
    line = Axis("i", as_expr(64))
    at = [(as_expr(line) * 2 + k,) for k in (0, 1)]
    stores = [Store("b", place, "v", "set", None) for place in at]

    def found(*body: Load | Store) -> int:
        return len(accesses_in_turns(body, {"a": "float32", "b": "float32"}, lambda e: e, line))

    def load(buffer: str, k: int) -> Load:
        return Load(f"{buffer}{k}", buffer, at[k], "float32", None)

    assert found(*stores) == 2
    assert found(load("a", 0), load("a", 1), *stores) == 4
    assert found(load("a", 0), load("a", 1)) == 0
    assert found(load("b", 0), *stores) == 0
    assert found(stores[0]) == 0
    assert found(stores[0], stores[0], stores[1]) == 0
    assert found(stores[0], Store("b", at[1], "v", "sum", None)) == 0
    assert found(stores[0], Store("b", at[1], "v", "set", "m")) == 0
