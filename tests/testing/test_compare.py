from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lamina.base.accuracy import judge
from lamina.testing import DRAWS, Comparison, compare, compare_draws, doubled, error


class Norm(nn.Module):
    """Batch norm in front of a nonlinearity, behind a bias whose gradient is zero in exact arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 32)
        self.norm = nn.BatchNorm1d(32)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(self.linear(x)))


def soft(x: Tensor) -> Tensor:
    return torch.softmax(x * 3, dim=-1)


def check(eager: Callable[..., Any], compiled: Callable[..., Any], *args: Any, **kwargs: Any) -> Comparison:
    return compare(eager, compiled, args, **kwargs)


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(24, 16, requires_grad=True)


def test_the_same_program_agrees_with_itself(x: Tensor) -> None:
    result = check(soft, soft, x)
    assert result.ok, result
    assert [t.name for t in result.tensors] == ["output 0", "gradient of argument 0"]
    assert 0 < result.max_error_eager < 1e-6
    assert result.max_error_compiled == result.max_error_eager
    assert x.grad is None


def test_a_correct_program_with_other_rounding_agrees(x: Tensor) -> None:
    def other(x: Tensor) -> Tensor:
        powers = (x * 3 - (x * 3).amax(-1, keepdim=True)).exp()
        return powers / powers.sum(-1, keepdim=True)

    assert check(soft, other, x).ok


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: soft(x) * (1 + 1e-5),
        lambda x: soft(x).double(),
        lambda x: soft(x).t().contiguous().t(),
        lambda x: soft(x)[:-1],
        lambda x: soft(x).detach(),
        lambda x: torch.where(torch.arange(16) == 3, math.nan, soft(x)),
        lambda x: (soft(x), x),
        lambda x: soft(x.to(torch.bfloat16)).float(),
    ],
    ids=["value", "dtype", "strides", "shape", "gradient flag", "nan", "one more", "precision"],
)
def test_a_wrong_result_is_found(x: Tensor, wrong: Callable[[Tensor], Tensor]) -> None:
    result = check(soft, wrong, x)
    assert not result.ok
    assert result.where


def test_a_wrong_gradient_is_found(x: Tensor) -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.exp()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad

    result = check(torch.exp, Wrong.apply, x)
    assert result.where == "gradient of argument 0"
    assert check(torch.exp, Wrong.apply, x, grads=False).ok


def test_integers_must_be_equal() -> None:
    x = torch.arange(12)
    assert check(lambda x: x // 5, lambda x: torch.div(x, 5, rounding_mode="floor"), x).ok
    assert not check(lambda x: x // 5, lambda x: (x + 1) // 5, x).ok


def test_a_lost_mutation_is_found() -> None:
    x = torch.ones(4)
    result = check(lambda x: x.add_(1), lambda x: x + 1, x)
    assert "argument 0 afterwards" in str(result)
    assert x.sum() == 4


def test_buffers_are_compared_and_put_back(x: Tensor) -> None:
    model = Norm().train()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    result = check(model, model, x)
    assert result.ok, result
    assert "buffer norm.running_mean" in [t.name for t in result.tensors]
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())

    frozen = doubled(model).float().eval()
    assert "running_mean" in str(check(model, frozen, x))


def test_a_gradient_of_rounding_noise_neither_fails_nor_counts(x: Tensor) -> None:
    model = Norm().train()
    result = check(model, lambda x: torch.tanh(model.norm(model.linear(x.flip(0)).flip(0))), x)
    noise = next(t for t in result.tensors if t.name == "gradient of linear.bias")
    assert noise.eager.is_noise
    assert result.ok, result
    assert result.max_error_eager < 1e-4


def inputs(count: int = 4 * DRAWS) -> Iterator[tuple[tuple[Tensor], dict[str, Any]]]:
    for seed in range(count):
        generator = torch.Generator().manual_seed(seed)
        yield (torch.randn(24, 16, generator=generator, requires_grad=True),), {}


def counted(draws: Iterator[Any], seen: list[Any]) -> Iterator[Any]:
    for draw in draws:
        seen.append(draw)
        yield draw


def test_over_several_draws_a_few_units_in_the_last_place_count() -> None:
    def rough(x: Tensor) -> Tensor:
        return soft(x) * (1 + 3e-7)

    def other(x: Tensor) -> Tensor:
        powers = (x * 3 - (x * 3).amax(-1, keepdim=True)).exp()
        return powers / powers.sum(-1, keepdim=True)

    assert all(compare(soft, rough, *draw).ok for draw in inputs(2))
    assert [t.name for t in compare_draws(soft, rough, inputs()).tensors if t.complaint]
    result = compare_draws(soft, other, inputs())
    assert result.ok, result
    assert 0 < result.max_error_compiled < 1e-6


def test_the_number_of_draws_follows_the_doubt() -> None:
    def doubtful(x: Tensor) -> Tensor:
        return soft(x) * (1 + 2e-7)

    for program, expected in ((soft, DRAWS), (lambda x: soft(x) * 1.001, DRAWS), (doubtful, 4 * DRAWS)):
        seen: list[Any] = []
        compare_draws(soft, program, counted(inputs(), seen))
        assert len(seen) == expected


def test_one_wrong_draw_of_many_is_found() -> None:
    calls: list[Tensor] = []

    def sometimes(x: Tensor) -> Tensor:
        calls.append(x)
        return soft(x) if len(calls) != 3 else soft(x) * 1.001

    assert not compare_draws(soft, sometimes, inputs(DRAWS)).ok


def test_gradients_of_rounding_noise_are_judged_like_others() -> None:
    model = Norm().train()

    def flipped(x: Tensor) -> Tensor:
        return torch.tanh(model.norm(model.linear(x.flip(0)).flip(0)))

    def noisy(x: Tensor) -> Tensor:
        linear = nn.functional.linear(x, model.linear.weight) + model.linear.bias.expand(24, -1)
        torch.manual_seed(0)
        linear.register_hook(lambda grad: grad + torch.randn_like(grad) * 1e-6)
        return torch.tanh(model.norm(linear))

    result = compare_draws(model, flipped, inputs())
    assert result.ok, result
    assert next(t for t in result.tensors if t.name == "gradient of linear.bias").eager.is_noise
    assert "gradient of linear.bias" in str(compare_draws(model, noisy, inputs()))


def test_a_different_kind_of_result_in_one_draw_is_found() -> None:
    def late(x: Tensor) -> Tensor:
        return soft(x) if float(x.detach()[0, 0]) > -1 else soft(x).t().contiguous().t()

    assert any(float(args[0].detach()[0, 0]) < -1 for args, _ in inputs(DRAWS))
    assert "strides" in str(compare_draws(soft, late, inputs(DRAWS)))


def test_exceptions_must_be_of_one_class(x: Tensor) -> None:
    def index(x: Tensor) -> Tensor:
        raise IndexError

    def value(x: Tensor) -> Tensor:
        raise ValueError

    assert check(index, index, x).ok
    assert "ValueError" in str(check(index, value, x))
    assert "IndexError" in str(check(soft, index, x))


def test_arguments_keep_their_strides_and_their_aliasing() -> None:
    seen = []

    def program(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        seen.append((x.stride(), y.data_ptr() == x[1].data_ptr(), x is z))
        return x * y

    base = torch.randn(6, 8)
    x = base[:, ::2]
    check(program, program, x, x[1], x)
    assert seen == [((8, 2), True, True)] * 3


def test_the_reference_is_in_double_even_where_the_program_names_float() -> None:
    def rms(x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)

    x = torch.randn(8, 64)
    assert 0 < check(rms, rms, x).max_error_eager < 1e-6
    exact = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)
    assert check(rms, rms, x).max_error_eager == error(rms(x), exact).largest


def test_a_finite_result_where_eager_overflows_is_right() -> None:
    x = torch.full((4,), 300.0, dtype=torch.float16)

    def program(x: Tensor) -> Tensor:
        return (x * x).sqrt()

    def better(x: Tensor) -> Tensor:
        return (x.float() * x.float()).sqrt().half()

    assert check(program, better, x).ok
    assert not check(better, program, x).ok


def test_infinities_that_rounding_makes_need_eager_to_be_off_as_well() -> None:
    exact = torch.tensor([1e39], dtype=torch.float64)
    finite, infinite, nan = (torch.tensor([v]) for v in (3e38, -torch.inf, torch.nan))
    assert judge(nan, finite, exact)
    assert judge(infinite, finite, exact)
    assert not judge(infinite, nan, exact)
