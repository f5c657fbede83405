"""Random numbers: distribution, seeds, and the same mask in forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.compilers import CompileFunction
from tests.semantics.program import agree


def _dropped(x: Tensor) -> Tensor:
    return F.dropout(x, 0.25) * 2


def test_dropout_keeps_the_mean_and_the_share(compile: CompileFunction) -> None:
    out = compile(_dropped, dynamic=False)(torch.ones(512, 1024))
    kept = out != 0
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 2 / 0.75))
    sigma = (0.25 * 0.75 / out.numel()) ** 0.5
    assert abs(float(kept.double().mean()) - 0.75) < 6 * sigma
    for axis in (0, 1):
        share = kept.double().mean(axis)
        deviation = (0.25 * 0.75 / out.shape[axis]) ** 0.5
        assert 0.9 * deviation < float(share.std()) < 1.1 * deviation, "masks of rows or columns are correlated"


def test_neighbouring_draws_are_independent(compile: CompileFunction) -> None:
    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return F.dropout(x, 0.5), F.dropout(x, 0.5)

    first, second = compile(program, dynamic=False)(torch.ones(400, 400))
    bound = 6 / first.numel() ** 0.5
    assert abs(_correlation(first, second)) < bound, "two dropouts share a mask"
    for shift in (1, 2, 4, 8, 400):
        flat = first.flatten()
        assert abs(_correlation(flat[shift:], flat[:-shift])) < bound, f"elements {shift} apart are correlated"


def _correlation(a: Tensor, b: Tensor) -> float:
    pair = torch.stack([a.flatten(), b.flatten()]).double()
    return float(torch.corrcoef(pair)[0, 1])


def test_seed_decides_and_calls_differ(compile: CompileFunction) -> None:
    compiled, x = compile(_dropped, dynamic=False), torch.ones(64, 64)
    compiled(x)
    torch.manual_seed(5)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(5)
    again = compiled(x), compiled(x)
    assert not torch.equal(first, second), "two calls drew the same mask"
    assert torch.equal(first, again[0])
    assert torch.equal(second, again[1])
    torch.manual_seed(6)
    assert not torch.equal(first, compiled(x)), "the seed has no influence"


def test_global_generator_advances(compile: CompileFunction) -> None:
    compiled, x = compile(_dropped, dynamic=False), torch.ones(64, 64)
    compiled(x)
    torch.manual_seed(5)
    untouched = torch.rand(4)
    torch.manual_seed(5)
    compiled(x)
    assert not torch.equal(torch.rand(4), untouched), "a compiled call draws without advancing the generator"


def test_generator_state_can_be_saved_and_restored(compile: CompileFunction) -> None:
    compiled, x = compile(_dropped, dynamic=False), torch.ones(64, 64)
    compiled(x)
    state = torch.get_rng_state()
    first = compiled(x)
    torch.set_rng_state(state)
    assert torch.equal(first, compiled(x))


@pytest.mark.parametrize("shape", [(7, 9), (64, 64), (3, 1025)], ids=str)
def test_backward_uses_the_mask_of_the_forward(compile: CompileFunction, shape: tuple[int, int]) -> None:
    compiled = compile(_dropped, dynamic=False)
    for _ in range(3):
        x = torch.ones(shape, requires_grad=True)
        out = compiled(x)
        out.sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad, out.detach(), rtol=1e-6, atol=0)


def test_backward_of_several_masks_after_other_draws(compile: CompileFunction) -> None:
    def program(x: Tensor) -> Tensor:
        return F.dropout(F.dropout(x, 0.3).sum(0, keepdim=True) * x, 0.5)

    compiled = compile(program, dynamic=False)
    x = torch.ones(16, 32, requires_grad=True)
    outs = [compiled(x) for _ in range(3)]
    torch.rand(10)
    for out in reversed(outs):
        (gradient,) = torch.autograd.grad(out.sum(), x)
        # out is homogeneous of degree 2 in x, whatever the masks are: the gradient along x is twice the value.
        torch.testing.assert_close((gradient * x).sum(), 2 * out.sum(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_dropout_of_nothing_and_of_everything(compile: CompileFunction, p: float) -> None:
    agree(compile, lambda: (lambda x: F.dropout(x, p) + 1, (torch.randn(5, 6, requires_grad=True),)))


def test_dropout_in_eval_mode_does_nothing(compile: CompileFunction) -> None:
    agree(compile, lambda: (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9)).eval(), (torch.randn(3, 4),)))


DISTRIBUTIONS: dict[str, tuple[Any, float, float, float, float]] = {
    "rand": (lambda x: torch.rand(400, 400) + x * 0, 0.5, 1 / 12**0.5, 0, 1),
    "rand_like": (lambda x: torch.rand_like(x), 0.5, 1 / 12**0.5, 0, 1),
    "randn": (lambda x: torch.randn(400, 400) + x * 0, 0, 1, -9, 9),
    "randn_like": (lambda x: torch.randn_like(x), 0, 1, -9, 9),
    "randint": (lambda x: torch.randint(-3, 5, (400, 400)) + x * 0, 0.5, (63 / 12) ** 0.5, -3, 4),
    "uniform": (lambda x: torch.empty(400, 400).uniform_(-2, 4) + x * 0, 1, 3**0.5, -2, 4),
    "normal": (lambda x: torch.empty(400, 400).normal_(2, 3) + x * 0, 2, 3, -25, 29),
    "bernoulli": (lambda x: torch.bernoulli(x * 0 + 0.2), 0.2, 0.4, 0, 1),
    "exponential": (lambda x: torch.empty(400, 400).exponential_(2.0) + x * 0, 0.5, 0.5, 0, 40),
}


@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
def test_distributions(compile: CompileFunction, name: str) -> None:
    program, mean, deviation, low, high = DISTRIBUTIONS[name]
    out = compile(program, dynamic=False)(torch.zeros(400, 400)).double()
    assert abs(float(out.mean()) - mean) < 6 * deviation / 400
    assert abs(float(out.std()) / deviation - 1) < 0.02
    assert low <= float(out.min())
    assert float(out.max()) <= high
    if name == "rand":
        assert float(out.max()) < 1, "torch.rand excludes 1"


def test_random_numbers_in_half_precision_exclude_one(compile: CompileFunction) -> None:
    out = compile(lambda x: torch.rand_like(x), dynamic=False)(torch.zeros(1000, 300, dtype=torch.bfloat16))
    assert out.dtype == torch.bfloat16
    assert float(out.float().max()) <= 1
    assert abs(float(out.double().mean()) - 0.5) < 0.01


STREAMS = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "rand": lambda x: x + torch.rand(3, 5),
    "randn": lambda x: x + torch.randn_like(x),
    "bernoulli": lambda x: torch.bernoulli(x.abs().clamp(max=1)),
    "randint": lambda x: x + torch.randint(0, 100, (5,)),
    "several": lambda x: F.dropout(torch.rand_like(x) + F.dropout(x, 0.5), 0.1),
    "permutation": lambda x: x[torch.randperm(33)],
}


@pytest.mark.parametrize("program", list(STREAMS.values()), ids=list(STREAMS))
def test_eager_numerics_draw_what_eager_draws(compile: CompileFunction, program: Any) -> None:
    shape = (33, 5) if program is STREAMS["permutation"] else (3, 5)
    agree(
        compile,
        lambda: (program, (torch.randn(shape, requires_grad=True),)),
        calls=2,
        options={"numerics": "eager"},
    )


@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_dropout_of_everything_draws_no_numbers(numerics: str, compile: CompileFunction) -> None:
    x = torch.tensor([-1.0, 2.0, float("nan"), 0.0])
    state = torch.get_rng_state()
    dropped = compile(lambda x: torch.nn.functional.dropout(x, 1.0), options={"numerics": numerics})(x)
    torch.testing.assert_close(dropped, torch.nn.functional.dropout(x, 1.0), equal_nan=True)
    assert dropped[0].signbit()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_dropout_of_no_elements_is_its_operand(numerics: str, compile: CompileFunction) -> None:
    """Also where only a run tells that there are none."""

    def function(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        v = x[: k // 2 + 2] * 2
        return v, F.dropout(v, 0.5)

    compiled = compile(function, dynamic=True, options={"numerics": numerics})
    for k in (-3, 0, -4, 1):
        one, other = compiled(torch.ones(4, 4), k)
        assert (one is other) == (k < -2)
