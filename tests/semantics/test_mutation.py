"""In-place operations: on inputs, views, buffers and caches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.compilers import CompileFunction
from tests.semantics.program import agree


def _slice_assign(x: Tensor, y: Tensor) -> Tensor:
    x[:, 1:3] = y[:, :2] * 2
    return x.sum(1)


def _view_chain(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    z.view(-1)[::2].add_(1)
    z[0].mul_(y[0])
    z.t().sub_(1)
    return z


def _row_of_input(x: Tensor, y: Tensor) -> Tensor:
    x[0].mul_(2)
    x.t()[1].add_(y[:, 0])
    return x + y


def _masked(x: Tensor, y: Tensor) -> Tensor:
    x[x > 0] = 0.5
    x.masked_fill_(y > 1, -1)
    return x * y


def _index_put(x: Tensor, y: Tensor) -> Tensor:
    rows = torch.tensor([0, 2, 2])
    x.index_put_((rows,), y[:3], accumulate=True)
    x.index_add_(0, torch.tensor([1, 1]), y[:2])
    return x


def _scatter(x: Tensor, y: Tensor) -> Tensor:
    where = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    x.scatter_(0, where, y[:2])
    x.scatter_add_(1, where, y[2:4])
    return x.relu()


def _copy(x: Tensor, y: Tensor) -> Tensor:
    before = x + 1
    x.copy_(y)
    x.fill_diagonal_(3)
    return before * x


def _out_argument(x: Tensor, y: Tensor) -> Tensor:
    torch.add(x, 1, out=y)
    return y * 2


def _used_before_and_after(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    early = x.exp()
    x.zero_()
    late = x + y
    return early, late


def _detached_alias(x: Tensor, y: Tensor) -> Tensor:
    x.detach().mul_(2)
    return x + y


def _swap(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    t = x.clone()
    x.copy_(y)
    y.copy_(t)
    return x, y


def _returned_itself(x: Tensor, y: Tensor) -> Tensor:
    return x.add_(y)


def _returned_view(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x.mul_(2)
    return x[1:], x.t()


def _relu_family(x: Tensor, y: Tensor) -> Tensor:
    return F.relu(x, inplace=True) + F.leaky_relu(y * 1, 0.1, inplace=True).mul(2).clamp_(max=1)


PROGRAMS = [
    _slice_assign,
    _view_chain,
    _row_of_input,
    _masked,
    _index_put,
    _scatter,
    _copy,
    _out_argument,
    _used_before_and_after,
    _detached_alias,
    _swap,
    _returned_itself,
    _returned_view,
    _relu_family,
]


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_in_place_on_inputs(compile: CompileFunction, program: Any) -> None:
    agree(compile, lambda: (program, (torch.randn(4, 4), torch.randn(4, 4))), calls=3)


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__.strip("_"))
def test_in_place_on_intermediates_with_gradients(compile: CompileFunction, program: Any) -> None:
    if program in (_out_argument, _detached_alias):
        pytest.skip("eager refuses out= of a tensor that requires a gradient; the alias hides the change from autograd")

    def differentiable(x: Tensor, y: Tensor) -> Any:
        return program(x * 1.5, y + 0.25)

    agree(
        compile,
        lambda: (differentiable, (torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True))),
        calls=2,
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.bfloat16, torch.float64])
def test_in_place_keeps_the_type_of_its_target(compile: CompileFunction, dtype: torch.dtype) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        x.copy_(y * 3)
        x[0] = 1
        return x

    agree(compile, lambda: (program, (torch.zeros(3, 5, dtype=dtype), torch.rand(3, 5))), exact=False)


def test_same_tensor_twice(compile: CompileFunction) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x * y

    def build() -> Any:
        x = torch.randn(5)
        return program, (x, x)

    agree(compile, build, exact=False, calls=2)


def test_views_of_one_base_as_arguments(compile: CompileFunction) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        y.add_(1)
        return x.sum() + y

    def build() -> Any:
        base = torch.randn(12)
        return program, (base[:8], base[4:])

    agree(compile, build, exact=False, calls=2)


def test_arguments_first_distinct_then_aliased(compile: CompileFunction) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x + y

    compiled = compile(program, dynamic=False)
    for aliased in (False, True, False):
        x, y = torch.arange(4.0), torch.ones(4)
        mine, theirs = (x, x if aliased else y), (x.clone(), y.clone())
        expected = program(theirs[0], theirs[0] if aliased else theirs[1])
        torch.testing.assert_close(compiled(*mine), expected, rtol=0, atol=0)
        torch.testing.assert_close(x, theirs[0], rtol=0, atol=0)


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, momentum=0.3)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_statistics(compile: CompileFunction, training: bool) -> None:
    def build() -> Any:
        model = Normalised()
        model.norm.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
        return model.train(training), (torch.randn(4, 3, 9, 9),)

    agree(compile, build, calls=3, floor=16)


def test_batch_norm_follows_train_and_eval(compile: CompileFunction) -> None:
    model = Normalised()
    eager = Normalised()
    eager.load_state_dict(model.state_dict())
    compiled = compile(model, dynamic=False)
    x = torch.randn(4, 3, 9, 9)
    for training in (True, False, True, False):
        model.train(training)
        eager.train(training)
        torch.testing.assert_close(compiled(x), eager(x))
    assert model.norm.num_batches_tracked == 2
    torch.testing.assert_close(model.norm.running_var, eager.norm.running_var)


class Cached(nn.Module):
    """One attention head that appends keys and values to buffers."""

    keys: Tensor
    values: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.register_buffer("keys", torch.zeros(2, 16, 8))
        self.register_buffer("values", torch.zeros(2, 16, 8))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        self.keys[:, position] = k
        self.values.index_copy_(1, position, v)
        scores = q @ self.keys.transpose(1, 2)
        ahead = torch.arange(16) > position[-1]
        return scores.masked_fill(ahead, float("-inf")).softmax(-1) @ self.values


def test_key_value_cache(compile: CompileFunction) -> None:
    torch.manual_seed(0)
    model, eager = Cached(), Cached()
    eager.load_state_dict(model.state_dict())
    compiled = compile(model, dynamic=False)
    with torch.no_grad():
        for step in range(6):
            x, position = torch.randn(2, 1, 8), torch.tensor([step])
            torch.testing.assert_close(compiled(x, position), eager(x, position))
            torch.testing.assert_close(model.keys, eager.keys)
            torch.testing.assert_close(model.values, eager.values)


def test_attribute_rebound_each_call(compile: CompileFunction) -> None:
    class Averaged(nn.Module):
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0)
            self.calls += 1
            return x - self.mean

    agree(compile, lambda: (Averaged(), (torch.randn(4, 3),)), calls=4)


def test_change_made_under_no_grad_is_seen_by_the_gradient(compile: CompileFunction) -> None:
    def program(x: Tensor, weight: Tensor) -> Tensor:
        with torch.no_grad():
            weight.mul_(0.5)
        return (x * weight).sin()

    agree(compile, lambda: (program, (torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True))), calls=2)


def test_saved_tensor_changed_afterwards_is_an_error(compile: CompileFunction) -> None:
    def program(x: Tensor) -> Tensor:
        return x.exp()

    compiled = compile(program, dynamic=False)
    for function in (program, compiled):
        out = function(torch.randn(4, requires_grad=True))
        with torch.no_grad():
            out.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_optimizer_steps_between_calls(compile: CompileFunction) -> None:
    torch.manual_seed(0)
    model, eager = nn.Linear(6, 4), nn.Linear(6, 4)
    eager.load_state_dict(model.state_dict())
    compiled = compile(model, dynamic=False)
    optimizers = [torch.optim.Adam(m.parameters(), 0.1) for m in (model, eager)]
    for _ in range(5):
        x = torch.randn(8, 6)
        for function, optimizer in zip((compiled, eager), optimizers, strict=True):
            optimizer.zero_grad()
            function(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(model.weight, eager.weight)
