"""Norms, softmax and losses with their gradients: few nests, exact statistics, symbolic sizes."""

from __future__ import annotations

import math
import operator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx import Graph, GraphModule

import lamina
from lamina.ir.loops import Nest, Reduce
from lamina.ir.loops_interp import run_program
from lamina.lower.to_loops import lower
from lamina.testing import judge

from .harness import check, outcome
from .torch_private import traced

aten = torch.ops.aten
DTYPES = [torch.float32, torch.bfloat16, torch.float64]


def _random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * 2 + 1).to(dtype)


def _nests(fn: Any, *args: torch.Tensor) -> list[Nest]:
    return [s for s in lower(traced(fn, args), "test").steps if isinstance(s, Nest)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm(dtype: torch.dtype, symbolic: bool, affine: bool) -> None:
    x, w, b, g = (_random(*s, dtype=dtype, seed=k) for k, s in enumerate([(3, 4, 6), (6,), (6,), (3, 4, 6)]))

    def both(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, g: torch.Tensor) -> Any:
        scale, shift = (w, b) if affine else (None, None)
        y, mean, rstd = aten.native_layer_norm(x, x.shape[2:], scale, shift, 1e-5)
        mask = [True, affine, affine]
        grads = aten.native_layer_norm_backward(g, x, x.shape[2:], mean, rstd, scale, shift, mask)
        return y, mean, rstd, *[v for v in grads if v is not None]

    check(both, x, w, b, g, symbolic=symbolic)
    if not symbolic:
        assert len(_nests(both, x, w, b, g)) == 2


NORMS: dict[str, Any] = {
    "layer": lambda x: F.layer_norm(x, x.shape[-1:]),
    "group": lambda x: F.group_norm(x.reshape(1, -1), 2),
    "batch": lambda x: F.batch_norm(x[None], None, None, training=True),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("backend", ["lamina", "interp"])
@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_of_equal_values_is_exact_and_of_nearly_equal_ones_as_eagers(norm: str, backend: str) -> None:
    compiled = lamina.compile(NORMS[norm], dynamic=False, backend=backend)
    for value, shape in ((1.6487213, (4, 7)), (3300.1, (6, 13))):
        assert compiled(torch.full(shape, value)).abs().max() < 1e-9
    x = torch.randn(8, 100, generator=torch.Generator().manual_seed(0)) + 1000
    exact = NORMS[norm](x.double())
    assert not judge(compiled(x), NORMS[norm](x), exact)


@pytest.mark.parametrize("backend", ["lamina", "interp"])
def test_the_mean_of_values_whose_sum_or_distance_is_infinite_is_kept(backend: str) -> None:
    compiled = lamina.compile(lambda x: torch.var_mean(x, -1)[1], dynamic=False, backend=backend)
    x = torch.tensor([[3e38, 3e38, 3e38], [1.0, math.inf, 2.0], [1.0, math.nan, 2.0], [1.0, 2.0, 6.0]])
    found = compiled(x)
    assert found[:2].isinf().all()
    assert found[2].isnan()
    assert found[3] == 3


def test_layer_norm_backward_holds_row_and_column_sums_in_one_nest() -> None:
    def backward(g: torch.Tensor, x: torch.Tensor, m: torch.Tensor, r: torch.Tensor, w: torch.Tensor) -> Any:
        return aten.native_layer_norm_backward(g, x, [5], m, r, w, w, [True, True, True])

    x = _random(4, 5)
    (nest,) = _nests(backward, x, x, _random(4, 1), _random(4, 1), _random(5))
    assert {e.axes for e in nest.body if isinstance(e, Reduce)} == {("i0",), ("i1",)}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "groups"), [((2, 6, 3, 5), 1), ((2, 6, 3, 5), 3), ((2, 6, 3, 5), 6), ((2, 6), 2), ((3, 6, 4), 2)]
)
def test_group_norm(dtype: torch.dtype, shape: tuple[int, ...], groups: int) -> None:
    x, g, w, b = (_random(*s, dtype=dtype, seed=k) for k, s in enumerate([shape, shape, (6,), (6,)]))
    area = 1
    for n in shape[2:]:
        area *= n

    def both(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        y, mean, rstd = aten.native_group_norm(x, w, b, shape[0], 6, area, groups, 1e-5)
        back = aten.native_group_norm_backward(g, x, mean, rstd, w, shape[0], 6, area, groups, [True, True, True])
        return y, mean, rstd, *back

    check(both, x, g, w, b)


@pytest.mark.parametrize("symbolic", [False, True])
def test_group_norm_with_channels_last_and_symbolic_sizes(symbolic: bool) -> None:
    x = _random(2, 6, 3, 5).to(memory_format=torch.channels_last)
    check(lambda x: F.group_norm(x, 2), x, symbolic=symbolic)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("groups", [2, 3, 6])
def test_group_norm_adds_up_each_innermost_channel_first(dtype: torch.dtype, affine: bool, groups: int) -> None:
    last = torch.channels_last
    x, g = (_random(3, 6, 5, 4, dtype=dtype, seed=k).to(memory_format=last) for k in (0, 1))
    w, b = (_random(6, dtype=dtype, seed=k) for k in (2, 3))

    def both(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Any:
        scale, shift = (w, b) if affine else (None, None)
        y, mean, rstd = aten.native_group_norm(x, scale, shift, 3, 6, 20, groups, 1e-5)
        mask = [True, affine, affine]
        grads = aten.native_group_norm_backward(g, x, mean, rstd, scale, 3, 6, 20, groups, mask)
        return y, mean, rstd, *[v for v in grads if v is not None]

    check(both, x, g, w, b)
    assert len(_nests(both, x, g, w, b)) == (9 if affine else 7)


def test_group_norm_of_innermost_channels_whose_means_differ_more_than_they_do() -> None:
    """The channels of a group have means a thousand apart, and one pixel is far from the others."""
    x = _random(2, 8, 16, 16) + 1000 * torch.arange(8).view(1, 8, 1, 1)
    x[:, :, 0, 0] += 1e4
    x = x.to(memory_format=torch.channels_last)
    compiled = lamina.compile(lambda x: F.group_norm(x, 4), dynamic=False, options={"compare_eager": "off"})
    assert not judge(compiled(x), F.group_norm(x, 4), F.group_norm(x.double(), 4))
    for value in (1.6487213, 3300.1):
        assert compiled(torch.full_like(x, value)).abs().max() < 1e-9


@pytest.mark.parametrize("training", [False, True])
def test_statistics_of_few_innermost_channels_stay_apart_from_what_reads_long_rows(training: bool) -> None:
    x = _random(2, 32, 16, 16).to(memory_format=torch.channels_last).requires_grad_(training)
    compiled = lamina.compile(lambda x: F.group_norm(x, 8), dynamic=False, options={"compare_eager": "off"})
    compiled(x)
    decided = [d for s in compiled.record.stages for d in s.decisions if d.code == "LM5026"]
    assert decided


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(4, 3, 5, 2), (7, 3), (2, 3, 6)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(dtype: torch.dtype, shape: tuple[int, ...], training: bool) -> None:
    x, g, w, b, mean = (_random(*s, dtype=dtype, seed=k) for k, s in enumerate([shape, shape, (3,), (3,), (3,)]))
    variance = _random(3, seed=9).abs().to(dtype) + 1

    def both(x: Any, g: Any, w: Any, b: Any, m: Any, v: Any) -> Any:
        y, *saved, mean, variance = aten._native_batch_norm_legit_functional(x, w, b, m, v, training, 0.1, 1e-5)
        back = aten.native_batch_norm_backward(g, x, w, m, v, *saved, training, 1e-5, [True, True, True])
        return y, mean.to(m.dtype), variance.to(m.dtype), *back

    check(both, x, g, w, b, mean, variance)


@pytest.mark.parametrize("shape", [(17, 5), (16, 8), (9, 2)])
def test_batch_norm_of_few_transposed_columns_has_a_kernel(shape: tuple[int, int]) -> None:
    x = _random(*shape[::-1], dtype=torch.float64).t()
    compiled = lamina.compile(lambda x: F.batch_norm(x, None, None, training=True), options={"strict": True})
    torch.testing.assert_close(compiled(x), F.batch_norm(x, None, None, training=True))


def test_batch_norm_of_half_precision_keeps_its_statistics_in_full_precision() -> None:
    x, w, b = _random(64, 3, 8, 8).bfloat16() + 100, _random(3), _random(3)

    def forward(x: Any, w: Any, b: Any, m: Any, v: Any) -> Any:
        return aten._native_batch_norm_legit_functional(x, w, b, m, v, True, 0.1, 1e-5)[0]

    check(forward, x, w, b, torch.zeros(3), torch.ones(3))


def test_batch_norm_updates_buffers_in_place_through_copies_into_inputs() -> None:
    x, mean, variance = _random(4, 3, 5), torch.zeros(3), torch.ones(3)

    def forward(x: Any, m: Any, v: Any) -> Any:
        return aten._native_batch_norm_legit(x, None, None, m, v, True, 0.1, 1e-5)[0], m, v

    check(forward, x, mean, variance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_rms_norm(dtype: torch.dtype, weighted: bool) -> None:
    """Eager has no kernel of this operation on CPUs; what it means is written out here."""
    x, g, w = (_random(*s, dtype=dtype, seed=k) for k, s in enumerate([(3, 4, 6), (3, 4, 6), (6,)]))

    rstd = (x.float() if dtype is torch.bfloat16 else x).square().mean(-1, keepdim=True).add(1e-6).rsqrt()
    scale = w if weighted else None
    forward = _graph(aten._fused_rms_norm.default, (x, [6], scale, 1e-6), (x, rstd))
    backward = _graph(aten._fused_rms_norm_backward.default, (g, x, [6], rstd, scale, [True, weighted]), (x, w))

    def plain(x: Any, g: Any, w: Any) -> Any:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = F.rms_norm(x, [6], w if weighted else None, 1e-6)
        return y.detach(), *torch.autograd.grad(y, [x, w] if weighted else [x], g)

    ours = []
    for graph, args in ((forward, (x, scale)), (backward, (g, x, rstd, scale))):
        program = lower(graph, "test")
        assert [type(s) for s in program.steps] == [Nest]
        ours.append(run_program(program, [a for a in args if a is not None]))
    results = [ours[0][0], *ours[1][: 1 + weighted]]
    for mine, theirs, exact in zip(results, plain(x, g, w), plain(x.double(), g.double(), w.double()), strict=True):
        assert judge(mine, theirs, exact, floor=1e4 if dtype is torch.float64 else 4) == ""


def _graph(op: Any, args: tuple[Any, ...], results: tuple[torch.Tensor, ...]) -> GraphModule:
    """A graph of one call, for an operation that tracing takes apart on a CPU."""
    graph = Graph()
    nodes = []
    for arg in args:
        if isinstance(arg, torch.Tensor):
            nodes.append(graph.placeholder(f"x{len(nodes)}"))
            nodes[-1].meta["val"] = arg
        else:
            nodes.append(arg)
    call = graph.call_function(op, tuple(nodes))
    call.meta["val"] = results
    parts = [graph.call_function(operator.getitem, (call, k)) for k in range(len(results))]
    for part, result in zip(parts, results, strict=True):
        part.meta["val"] = result
    graph.output(parts)
    return GraphModule(torch.nn.Module(), graph)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("symbolic", [False, True])
def test_softmax(dtype: torch.dtype, dim: int, symbolic: bool) -> None:
    x, g = _random(3, 4, 5, dtype=dtype), _random(3, 4, 5, dtype=dtype, seed=1)

    def both(x: torch.Tensor, g: torch.Tensor) -> Any:
        y, z = F.softmax(x, dim), F.log_softmax(x, dim)
        back = aten._softmax_backward_data(g, y, dim, dtype)
        return y, z, back, aten._log_softmax_backward_data(g, z, dim, dtype), x.logsumexp((dim,))

    check(both, x, g, symbolic=symbolic)
    if not symbolic:
        assert len(_nests(both, x, g)) == 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("shape", [(5, 4), (4,), (2, 4, 3, 3)])
@pytest.mark.parametrize("weighted", [False, True])
def test_nll_loss(dtype: torch.dtype, reduction: int, shape: tuple[int, ...], weighted: bool) -> None:
    x, w = _random(*shape, dtype=dtype), _random(4, dtype=dtype, seed=1).abs()
    size = () if len(shape) == 1 else (shape[0], *shape[2:])
    target = torch.randint(0, 4, size, generator=torch.Generator().manual_seed(0))
    if target.numel() > 3:
        target.view(-1)[2] = -100
    name = "nll_loss2d" if len(shape) == 4 else "nll_loss"
    forward, backward = getattr(aten, f"{name}_forward"), getattr(aten, f"{name}_backward")

    def both(x: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> Any:
        scale = w if weighted else None
        loss, total = forward(x, t, scale, reduction, -100)
        return loss, total, backward(loss * 0.7, x, t, scale, reduction, -100, total)

    check(both, x, target, w)


@pytest.mark.parametrize("symbolic", [False, True])
def test_cross_entropy(symbolic: bool) -> None:
    target = torch.tensor([1, 0, 6, 2])
    check(lambda x, t: F.cross_entropy(x, t), _random(4, 7), target, symbolic=symbolic)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(
    "loss",
    [
        *(F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss, F.binary_cross_entropy_with_logits, F.kl_div),
        F.l1_loss,
    ],
)
def test_losses_with_gradients(loss: Any, reduction: str, dtype: torch.dtype) -> None:
    x = _random(4, 5, dtype=dtype).requires_grad_()
    target = _random(4, 5, dtype=dtype, seed=1).abs().clamp(max=0.9)

    def both(x: torch.Tensor, t: torch.Tensor) -> Any:
        value = loss(x, t, reduction=reduction)
        weight = torch.linspace(0.5, 1.5, value.numel(), dtype=value.dtype).reshape(value.shape)
        return value.detach(), *torch.autograd.grad(value, [x], weight)

    found = outcome(both, [x, target])
    assert not found.complaints
    assert found.nests
    assert {op for op, _ in found.library} <= {"aten.detach.default", "aten.expand.default"}


def test_binary_cross_entropy_backward() -> None:
    x, t, g = torch.rand(3, 4), torch.rand(3, 4), _random(3, 4)
    check(lambda g, x, t: aten.binary_cross_entropy_backward(g, x, t, None, 0), g, x, t)
    check(lambda g, x, t: aten.binary_cross_entropy_backward(g.sum(), x, t, x, 1), g, x, t)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_binary_cross_entropy(reduction: str, dtype: torch.dtype) -> None:
    x, t = torch.linspace(0, 1, 12, dtype=dtype).reshape(3, 4), torch.rand(3, 4, dtype=dtype)
    check(lambda x, t, w: F.binary_cross_entropy(x, t, w, reduction=reduction), x, t, x[0] + 0.5)
    check(lambda x, t: F.binary_cross_entropy(x, t, reduction=reduction), x, t)


def test_binary_cross_entropy_checks_its_range() -> None:
    x, t = torch.linspace(0, 1, 12), torch.linspace(1, 0, 12)
    for wrong in (-0.5, 0.5, math.nan):
        for given in ([x + wrong, t], [x, t + wrong]):
            with pytest.raises(RuntimeError, match="should be between 0 and 1") as eager:
                F.binary_cross_entropy(*given)
            program = lower(traced(F.binary_cross_entropy, given), "test")
            with pytest.raises(RuntimeError, match=str(eager.value)):
                run_program(program, given)


def test_batch_norm_in_evaluation_on_a_gpu_reports_the_running_statistics() -> None:
    """Eager's CUDA kernel does, its CPU kernel reports none: that made a library call of every one on a GPU."""
    x, w, b, m, v = (torch.randn(s) for s in ((2, 6, 3, 3), (6,), (6,), (6,), (6,)))
    v = v.abs() + 0.1

    def evaluate(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return aten._native_batch_norm_legit_no_training(*given, 0.1, 1e-5)

    program = lower(traced(evaluate, [t.to("meta") for t in (x, w, b, m, v)]), "test")
    assert all(isinstance(s, Nest) for s in program.steps)
    here = replace(program, buffers=tuple(replace(k, device="cpu") for k in program.buffers))
    out, mean, scale = run_program(here, [x, w, b, m, v])
    torch.testing.assert_close(out, evaluate(x, w, b, m, v)[0])
    torch.testing.assert_close(mean, m)
    torch.testing.assert_close(scale, (v + 1e-5).rsqrt())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("order", "dim"), [(2, 0), (1, -1), (math.inf, 1), (1.5, 1), (0.5, 2)])
def test_renorm(dtype: torch.dtype, order: float, dim: int) -> None:
    """One nest: the norm of each slice and its product. Slices below the largest norm, of zeros and of NaN stay."""
    x = _random(6, 5, 4, dtype=dtype)
    x[0] *= 0.01
    x[1] = 0
    x[2, 0, 0] = math.nan
    x[3, 1, 1] = math.inf
    check(lambda x: torch.renorm(x, order, dim, 3), x)
    assert len(_nests(lambda x: torch.renorm(x, order, dim, 3), x)) == 1
