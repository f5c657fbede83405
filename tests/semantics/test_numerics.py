"""With ``numerics="eager"`` arithmetic rounds where eager rounds: results are equal to the last bit.

Not judged are exp, log, sin, square roots and their like in float32, for which eager calls a vendor's vector library,
and the last elements of a sigmoid's chunk, which eager computes without vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.compilers import CompileFunction

PROGRAMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "products_and_sums": lambda x, y, z: ((x * y + z) * x - y * z).relu() * x + 0.5 * y,
    "polynomial": lambda x, y, z: ((x * 0.1 + 0.2) * x + 0.3) * x + 0.4 - y * z,
    "quotients": lambda x, y, z: x / y + z / 3 - 1 / (x * x + 1),
    "gate": lambda x, y, z: torch.sigmoid(x) * y + z,
    "selection": lambda x, y, z: torch.where(x > y, x * y, z * z) + torch.maximum(x, y) * z,
    "bounds": lambda x, y, z: F.leaky_relu(x * y + z, 0.1) + x.clamp(-1, 1) * y - F.relu6(z * 3 + x),
    "rows_and_columns": lambda x, y, z: x * y[:1] + z[:, :1] * x.sub(y),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_pointwise_programs_are_equal_to_the_last_bit(compile: CompileFunction, name: str, dtype: torch.dtype) -> None:
    # 31 rows of 41 are full vectors and a rest.
    shape = (32, 48) if name == "gate" else (31, 41)
    inputs = [(torch.randn(shape) * 2).to(dtype) for _ in range(3)]
    compiled = compile(PROGRAMS[name], dynamic=False, options={"numerics": "eager"})
    assert torch.equal(compiled(*inputs), PROGRAMS[name](*inputs))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(24, 48), nn.Linear(24, 48)
        self.down = nn.Linear(48, 24, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).relu() * torch.sigmoid(self.gate(x))) * 0.3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_small_model_is_equal_to_the_last_bit(compile: CompileFunction, dtype: torch.dtype) -> None:
    model = nn.Sequential(Block(), Block()).to(dtype)
    compiled = compile(model, dynamic=False, options={"numerics": "eager"})

    def run(function: Any) -> tuple[Tensor, ...]:
        x = torch.randn(32, 24, generator=torch.Generator().manual_seed(3)).to(dtype).requires_grad_()
        y = function(x)
        weights = [p for p in model.parameters() if p.dim() == 2]
        return y, *torch.autograd.grad(y, [x, *weights], y.detach() * 0.5)

    for mine, theirs in zip(run(compiled), run(model), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("extreme", ["amax", "amin", "max", "vector_norm", "aminmax"])
def test_the_gradient_of_a_maximum_finds_its_elements(compile: CompileFunction, extreme: str) -> None:
    """Values inside a kernel are not rounded, what was saved is: none equalled the maximum, gradients were NaN."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        made = x * y + 0.3 * x
        if extreme == "max":
            return made.max()
        if extreme == "vector_norm":
            return torch.linalg.vector_norm(made, math.inf, dim=-1)
        found = getattr(made, extreme)(dim=-1)
        return torch.stack(found) if extreme == "aminmax" else found

    torch.manual_seed(0)
    inputs = [torch.randn(37, 129).bfloat16().requires_grad_() for _ in range(2)]
    try:
        function(*inputs).float().sum().backward()
    except RuntimeError as refusal:  # torch 2.11 has no gradient of aminmax
        pytest.skip(str(refusal))
    gradients = torch.autograd.grad(compile(function, dynamic=False)(*inputs).float().sum(), inputs)
    assert all(g.isfinite().all() for g in gradients)
    assert all(g.count_nonzero() > 0 for g in gradients)


@pytest.mark.sampled(one_in=8)
@pytest.mark.parametrize("numerics", ["fast", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1e-37, 1e-30, 1e-20, 1e-13, 1.0, 1e13, 1e19, 1e30])
def test_deviations_beyond_the_range_of_squares(
    compile: CompileFunction, scale: float, dtype: torch.dtype, numerics: str
) -> None:
    """Eager adds up in double precision: a deviation of small numbers is not zero, nor infinite that of large ones."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return x.std(-1), x.std(0, correction=0, keepdim=True), x.std(), torch.std_mean(x, 1)[0]

    x = (torch.randn(37, 45, generator=torch.Generator().manual_seed(0)) * scale).to(dtype)
    x[1] = x[1, 0]
    compiled = compile(function, dynamic=False, options={"numerics": numerics})
    for mine, theirs in zip(compiled(x), function(x), strict=True):
        torch.testing.assert_close(
            mine / scale, theirs / scale, rtol=1e-4 if dtype is torch.float32 else 2e-2, atol=1e-6
        )
    assert function(x)[0].count_nonzero() == 36


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_deviations_of_the_largest_numbers(compile: CompileFunction, dtype: torch.dtype, dim: int) -> None:
    """Distances whose scaled squares are finite only where the scale is for the largest; the sum of values is."""
    half = torch.linspace(7.5e37, 8.2e37, 48 * 4).reshape((4, 48) if dim == 0 else (48, 4))
    x = torch.cat([half, -half], dim).to(dtype)
    found, eager = compile(lambda x: x.std(dim), dynamic=False)(x), x.std(dim)
    assert eager.isfinite().all()
    torch.testing.assert_close(found / 1e37, eager / 1e37, rtol=1e-4 if dtype is torch.float32 else 2e-2, atol=0)


@pytest.mark.parametrize("numerics", ["fast", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_deviations_of_nearly_equal_values(compile: CompileFunction, dtype: torch.dtype, numerics: str) -> None:
    """A mean that is a rounding error off is a deviation of that error; of equal values there is none at all."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        deviation, mean = torch.std_mean(x, -1)
        return deviation, mean, x.std(-1, correction=0), x.std(0)

    compiled = compile(function, dynamic=False, options={"numerics": numerics})
    equal = torch.full((64, 1000), 0.1).to(dtype)
    for mine, theirs in zip(compiled(equal), function(equal), strict=True):
        assert torch.equal(mine, theirs)
    near = (10 + 1e-5 * torch.randn(64, 1000, generator=torch.Generator().manual_seed(0))).to(dtype)
    exact = function(near.double())
    for mine, theirs, true in zip(compiled(near), function(near), exact, strict=True):
        error, allowed = ((t.double() - true).abs().max() for t in (mine, theirs))
        rounding = 3e-8 if dtype is torch.float32 else 0.0  # of the mean, whose square the deviation has
        assert error <= 2 * allowed + rounding
