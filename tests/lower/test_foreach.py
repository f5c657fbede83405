"""Operations on lists of tensors: one nest per tensor, each overload as eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from .harness import check, outcome

aten = torch.ops.aten


def _lists() -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    shapes = [(3,), (2, 4), ()]
    made = [[torch.rand(s, generator=torch.Generator().manual_seed(k)) + 0.5 for s in shapes] for k in range(3)]
    return made[0], made[1], made[2]


CASES: dict[str, Callable[[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]], Any]] = {
    "add_scalar": lambda a, b, c: torch._foreach_add(a, 2.5),
    "add_list": lambda a, b, c: torch._foreach_add(a, b, alpha=0.3),
    "add_scalars": lambda a, b, c: torch._foreach_add(a, [1.0, 2.0, 3.0]),
    "add_tensor": lambda a, b, c: torch._foreach_add(a, c[2], alpha=2),
    "sub_list": lambda a, b, c: torch._foreach_sub(a, b, alpha=0.3),
    "sub_scalar": lambda a, b, c: torch._foreach_sub(a, 1.5),
    "mul_list": lambda a, b, c: torch._foreach_mul(a, b),
    "mul_tensor": lambda a, b, c: torch._foreach_mul(a, c[2]),
    "mul_scalars": lambda a, b, c: torch._foreach_mul(a, [1.0, 2.0, 3.0]),
    "div_list": lambda a, b, c: torch._foreach_div(a, b),
    "div_tensor": lambda a, b, c: torch._foreach_div(a, c[2]),
    "div_scalars": lambda a, b, c: torch._foreach_div(a, [1.0, 2.0, 3.0]),
    "pow_scalar": lambda a, b, c: torch._foreach_pow(a, 2),
    "pow_list": lambda a, b, c: torch._foreach_pow(a, b),
    "pow_base": lambda a, b, c: torch._foreach_pow(2.0, a),
    "maximum": lambda a, b, c: torch._foreach_maximum(a, b),
    "minimum_scalar": lambda a, b, c: torch._foreach_minimum(a, 0.75),
    "clamp_min": lambda a, b, c: torch._foreach_clamp_min(a, 0.75),
    "clamp_max": lambda a, b, c: torch._foreach_clamp_max(a, b),
    "addcmul": lambda a, b, c: torch._foreach_addcmul(a, b, c, 0.7),
    "addcmul_scalars": lambda a, b, c: torch._foreach_addcmul(a, b, c, [0.1, 0.2, 0.3]),
    "addcdiv": lambda a, b, c: torch._foreach_addcdiv(a, b, c, -0.7),
    "lerp": lambda a, b, c: torch._foreach_lerp(a, b, 0.9),
    "lerp_list": lambda a, b, c: torch._foreach_lerp(a, b, c),
    "sqrt": lambda a, b, c: torch._foreach_sqrt(a),
    "neg": lambda a, b, c: torch._foreach_neg(a),
    "reciprocal": lambda a, b, c: torch._foreach_reciprocal(a),
    "exp": lambda a, b, c: torch._foreach_exp(a),
    "abs": lambda a, b, c: torch._foreach_abs(a),
    "sign": lambda a, b, c: torch._foreach_sign(a),
    "norm": lambda a, b, c: torch._foreach_norm(a),
    "norm_one": lambda a, b, c: torch._foreach_norm(a, 1),
    "max": lambda a, b, c: torch._foreach_max(a),
    "copy": lambda a, b, c: aten._foreach_copy(a, b),
    "zero": lambda a, b, c: aten._foreach_zero(a),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_lists(name: str, dtype: torch.dtype) -> None:
    lists = _lists()
    flat = [t.to(dtype) for tensors in lists for t in tensors]
    found = outcome(lambda *t: CASES[name](list(t[:3]), list(t[3:6]), list(t[6:])), flat)
    assert not found.complaints
    assert not found.library
    assert found.nests == 3


def test_adamw_step_in_place() -> None:
    """A whole optimizer step over two parameters, as the multi-tensor implementation writes it."""

    def step(*t: torch.Tensor) -> Any:
        p, g, m, v = list(t[0:2]), list(t[2:4]), list(t[4:6]), list(t[6:8])
        torch._foreach_mul_(p, 1 - 1e-3 * 0.01)
        torch._foreach_lerp_(m, g, 0.1)
        torch._foreach_mul_(v, 0.999)
        torch._foreach_addcmul_(v, g, g, 0.001)
        bottom = torch._foreach_sqrt(v)
        torch._foreach_div_(bottom, 0.7)
        torch._foreach_add_(bottom, 1e-8)
        torch._foreach_addcdiv_(p, m, bottom, -1e-3)
        return p + m + v

    shapes = [(3, 4), (5,)]
    check(step, *[torch.rand(s) for _ in range(4) for s in shapes])
