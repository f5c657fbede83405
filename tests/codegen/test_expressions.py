"""What C++ is written for expressions: rounding of half precision, signs of numbers, constants in an index."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import lamina
from lamina.codegen.cpp.expressions import compute


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize(("dtype", "rounding"), [("bfloat16", "round_bf16("), ("float16", "round_f16(")])
def test_half_precision_rounds_after_each_operation(dtype: str, rounding: str, vector: bool) -> None:
    for op in ("add", "sub", "mul", "div", "maximum"):
        assert compute(op, ["a", "b"], [dtype, dtype], dtype, vector).startswith(rounding)
    assert rounding not in compute("neg", ["a"], [dtype], dtype, vector)
    assert rounding not in compute("lt", ["a", "b"], [dtype, dtype], "bool", vector)


def test_the_negative_of_a_negative_number_is_no_decrement() -> None:
    assert compute("neg", ["-0.75f"], ["float32"], "float32", False) == "-(-0.75f)"
    assert compute("neg", ["x"], ["float32"], "float32", False) == "-x"


def test_a_constant_place_that_is_added_to() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        twice = torch.cat([x, x])
        return twice, x.reshape(x.shape[-1], -1), twice.gather(1, torch.zeros_like(twice).long())[:, 0]

    torch._dynamo.reset()
    compiled = lamina.compile(function, dynamic=True, options={"strict": True})
    for columns in (2, 33):
        x = torch.linspace(-1, 1, 5 * columns, dtype=torch.float16).view(5, columns).requires_grad_()
        (wanted,) = torch.autograd.grad(torch.stack([result.float().sum() for result in function(x)]).sum(), x)
        (found,) = torch.autograd.grad(torch.stack([result.float().sum() for result in compiled(x)]).sum(), x)
        assert torch.equal(found, wanted)
