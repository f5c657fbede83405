"""Edges that a wrong compiler gets past random values: identities of reductions, ends of intervals, equal draws."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.compilers import CompileFunction
from lamina.testing import judge

INFINITE = torch.tensor(
    [[-math.inf] * 19, [math.inf] * 19, [-math.inf] * 9 + [math.inf] + [-math.inf] * 9, [-3.5e38] * 19]
)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(4, 19), (19, 4)])
def test_extremes_of_infinities(compile: CompileFunction, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    def function(x: Tensor) -> list[Tensor]:
        dim = 1 if shape[0] == 4 else 0
        found = [x.amax(dim), x.amin(dim), x.max(dim).values, x.min(dim).indices, x.argmax(dim)]
        return [*found, x.logsumexp(dim), x.cummax(dim).values, x.amax(), x.amin()]

    x = (INFINITE if shape[0] == 4 else INFINITE.t()).to(dtype).contiguous()
    for ours, eager in zip(compile(function)(x), function(x), strict=True):
        assert torch.equal(ours.nan_to_num(nan=123.0), eager.nan_to_num(nan=123.0))


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("correction", [0, 1, 5, 7, 20])
@pytest.mark.parametrize("count", [1, 5])
def test_variances_with_more_taken_off_than_there_are(compile: CompileFunction, correction: int, count: int) -> None:
    def function(x: Tensor) -> list[Tensor]:
        rows = [x.var(1, correction=correction), x.std(1, correction=correction)]
        return [*rows, x.var(correction=correction), x.t().var(0, correction=correction)]

    x = torch.randn(3, count)
    for ours, eager, exact in zip(compile(function)(x), function(x), function(x.double()), strict=True):
        assert not judge(ours, eager, exact)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_dropouts_of_one_graph_draw_apart(compile: CompileFunction, dynamic: bool | None, numerics: str) -> None:
    def function(x: Tensor) -> list[Tensor]:
        return [F.dropout(x, 0.5) for _ in range(4)] + [torch.rand_like(x), torch.rand_like(x)]

    found = compile(function, dynamic=dynamic, options={"numerics": numerics})(torch.ones(4096))
    masks = [(t != 0) if n < 4 else t > 0.5 for n, t in enumerate(found)]
    for i, a in enumerate(masks):
        for b in masks[:i]:
            assert 0.4 < (a == b).float().mean() < 0.6


@pytest.mark.sampled(one_in=8)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.softshrink(x, 0.5),
        lambda x: F.hardshrink(x, 0.5),
        lambda x: F.hardtanh(x, -0.5, 0.5),
        lambda x: F.relu6(x * 12),
        lambda x: F.hardsigmoid(x * 6),
        lambda x: F.hardswish(x * 6),
        lambda x: F.leaky_relu(x, 0.1),
        lambda x: F.threshold(x, 0.5, 7.0),
        lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none", beta=0.5),
        lambda x: F.huber_loss(x, torch.zeros_like(x), reduction="none", delta=0.5),
        lambda x: x.clamp(-0.5, 0.5),
        lambda x: x.abs() + x.sign(),
        lambda x: torch.maximum(x, torch.full_like(x, 0.5)),
        lambda x: torch.minimum(x, torch.full_like(x, -0.5)),
        lambda x: F.celu(x) + F.elu(x),
        lambda x: x.amax(0) * 2,
        lambda x: F.margin_ranking_loss(x, -x, torch.ones_like(x), margin=1.0, reduction="none"),
    ],
)
def test_gradients_at_the_ends_of_intervals(compile: CompileFunction, function: Callable[[Tensor], Tensor]) -> None:
    edges = torch.tensor([-1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 0.25, -0.25])
    ours, eager = edges.clone().requires_grad_(), edges.clone().requires_grad_()
    compile(function)(ours).sum().backward()
    function(eager).sum().backward()
    torch.testing.assert_close(ours.grad, eager.grad, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_exponentials_in_half_precision(compile: CompileFunction, dtype: torch.dtype) -> None:
    def function(x: Tensor) -> Tensor:
        return x.exp().sum(-1).log()

    x = torch.linspace(-20, 12, 64).view(4, 16).to(dtype)
    ours, eager = compile(function)(x), function(x)
    assert not judge(ours, eager, function(x.double()))
    rounded = compile(function, options={"numerics": "eager"})(x)
    assert torch.equal(rounded.isinf(), eager.isinf())


@pytest.mark.parametrize("eps", [1e-5, 0.5, 3.0])
def test_a_folded_batch_norm_keeps_its_eps(compile: CompileFunction, eps: float) -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5, eps=eps)).eval()
    model[1].running_var.uniform_(0.1, 2)
    model[1].running_mean.normal_()
    x = torch.randn(2, 3, 7, 7)
    with torch.no_grad():
        ours, eager, exact = compile(model, options={"freeze": True})(x), model(x), model.double()(x.double())
    assert not judge(ours, eager, exact, floor=16.0)


SHIFTS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.copy_(x.flip(0) * 2),
    lambda x: x.copy_(torch.roll(x, 1, 0) + x),
    lambda x: x.copy_(x.clone().t().contiguous() + 1),
    lambda x: x.add_(x.cumsum(0)),
    lambda x: x[1:].add_(x[:-1].clone()),
    lambda x: x.mul_(x.sum(0, keepdim=True)),
]


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("number", range(len(SHIFTS)))
def test_what_is_written_is_read_first(compile: CompileFunction, number: int) -> None:
    def function(x: Tensor) -> Tensor:
        y = x + 1
        SHIFTS[number](y)
        SHIFTS[number](x)
        return y * 2

    ours, eager = (torch.arange(81.0).view(9, 9) for _ in range(2))
    assert torch.equal(compile(function)(ours), function(eager))
    assert torch.equal(ours, eager)
