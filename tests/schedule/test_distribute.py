"""Costly functions of what rows are reduced to are computed for many rows at once, and are what they were."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina
from lamina.ir.loops import Reduce
from lamina.testing import mismatch, tensors

_Function = Callable[..., Any]


def _windows(x: Tensor) -> Tensor:
    return torch.log1p((x.unfold(-1, 64, 16) * 0.5).pow(2).mean(-1))


def _several(x: Tensor) -> tuple[Tensor, ...]:
    mean = x.mean(-1)
    return torch.tanh(mean), torch.exp(mean) * torch.sin(x.amax(-1)), mean


def _wanted_in_the_row(x: Tensor) -> tuple[Tensor, Tensor]:
    gate = torch.tanh(x.mean(-1))
    return torch.erf(gate), x * gate[..., None]


def _scaled(x: Tensor) -> Tensor:
    return torch.logsumexp(x, -1) * torch.arange(x.shape[-2], dtype=x.dtype).sqrt()


def _narrow(x: Tensor) -> Tensor:
    return torch.sigmoid(x.bfloat16().sum(-1)).float()


def _transposed(x: Tensor) -> Tensor:
    return torch.atan(x.sum(-1)).T.contiguous()


def _decided(compiled: Any) -> list[Any]:
    return [d for s in compiled.record.stages for d in s.decisions if d.kind == "distribute"]


def _judged(function: _Function, x: Tensor, training: bool = False, **options: Any) -> Any:
    options = {"compare_eager": "off", "verify": True, "strict": True, **options}
    compiled = lamina.compile(function, dynamic=False, options=options)
    found: list[list[Tensor]] = []
    for run, given in ((compiled, x), (function, x), (function, x.double())):
        leaf = given.detach().clone().requires_grad_(training)
        results = tensors(run(leaf))
        if training:
            weights = [torch.linspace(-1, 1, t.numel(), dtype=t.dtype).view_as(t) for t in results]
            results = [*results, *torch.autograd.grad(results, [leaf], weights)]
        found.append([t.detach() for t in results])
    assert [t.stride() for t in tensors(compiled(x))] == [t.stride() for t in tensors(function(x))]
    for ours, eager, exact in zip(*found, strict=True):
        assert not mismatch(ours, eager, exact.to(torch.float64))
    return compiled


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("function", [_windows, _several, _wanted_in_the_row, _scaled, _narrow, _transposed])
def test_functions_of_row_results_are_computed_for_many_rows(function: _Function, training: bool) -> None:
    g = torch.Generator().manual_seed(0)
    compiled = _judged(function, torch.randn(67, 91, 131, generator=g), training)
    assert _decided(compiled)


@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_odd_strides_and_numbers_that_are_none(numerics: str) -> None:
    x = torch.randn(70, 141, 86, generator=torch.Generator().manual_seed(0))[3:, ::2, :-3]
    x[1, 2, 3], x[2, 0, 4], x[5, 6, 7] = torch.nan, torch.inf, -torch.inf
    assert _decided(_judged(_several, x, numerics=numerics))


def test_few_rows_and_rows_with_another_vector_axis_stay_one_kernel() -> None:
    assert not _decided(_judged(_several, torch.randn(20, 300)))
    assert not _decided(_judged(lambda x: torch.tanh(x.sum(0)), torch.randn(300, 4000)))
    assert not _decided(_judged(lambda x: torch.tanh(x.sum(-1)), torch.randn(9000, 4)))


def test_what_the_row_itself_needs_is_computed_with_it() -> None:
    """Softmax: the exponentials and their sum are of one loop, and nothing is left for later."""
    assert not _decided(_judged(lambda x: F.softmax(x, -1), torch.randn(3000, 70)))


def _statistics(x: Tensor) -> tuple[Tensor, ...]:
    return torch.native_layer_norm(x, x.shape[-1:], None, None, 1e-5)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.mean((2, 3)), (8, 64, 14, 14)),
        (lambda x: x.sum(-1), (32, 64, 128)),
        (lambda x: x.amax((2, 3), keepdim=True), (4, 32, 16, 16)),
        (_statistics, (8, 128, 64)),
    ],
)
def test_results_of_several_axes_of_rows_are_no_stores_across(function: _Function, shape: tuple[int, ...]) -> None:
    """Such a result goes on along rows since it does not vary along them: another order of memory gains nothing."""
    assert not _decided(_judged(function, torch.randn(shape, generator=torch.Generator().manual_seed(0))))


def test_sizes_that_are_not_known() -> None:
    compiled = lamina.compile(_several, dynamic=True, options={"compare_eager": "off"})
    for rows in (2000, 3001, 5):
        x = torch.randn(rows, 37, generator=torch.Generator().manual_seed(rows))
        for ours, eager in zip(compiled(x), _several(x), strict=True):
            torch.testing.assert_close(ours, eager)
    assert not _decided(compiled), "nests over sizes that are not known are left whole"


_LAST = torch.channels_last


def _group_norm(x: Tensor) -> Tensor:
    return F.silu(F.group_norm(x.to(memory_format=_LAST), 1) * 1.5)


def _layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],))


def _softmax(x: Tensor) -> Tensor:
    return F.softmax(x.flatten(2), -1).transpose(1, 2).contiguous()


def _log_softmax(x: Tensor) -> Tensor:
    return F.log_softmax(x, -1).transpose(1, 2).contiguous()


def test_what_is_parted_for_one_reason_is_not_parted_for_another() -> None:
    """Two kernels, not a third for the logarithms: each is one more trip through memory."""
    compiled = _judged(_log_softmax, torch.randn(50, 64, 32, generator=torch.Generator().manual_seed(0)))
    (decision,) = _decided(compiled)
    assert "stored in" in decision.reason


def _softmax_of_channels(x: Tensor) -> Tensor:
    return F.softmax(x, 1).permute(0, 2, 3, 1).contiguous()


def _both(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sum((0, 2, 3)), x.tanh().contiguous(memory_format=_LAST)


def _kept_in_both_orders(x: Tensor) -> tuple[Tensor, Tensor]:
    centred = x - x.mean((2, 3), keepdim=True)
    return centred, centred.contiguous(memory_format=_LAST)


@pytest.mark.sampled(one_in=8)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("channels", [18, 34])
@pytest.mark.parametrize(
    "function", [_group_norm, _layer_norm, _softmax, _softmax_of_channels, _both, _kept_in_both_orders]
)
def test_what_is_reduced_along_memory_and_stored_across_is_two_kernels(
    function: _Function, channels: int, training: bool
) -> None:
    x = torch.randn(3, channels, 17, 23, generator=torch.Generator().manual_seed(0))
    assert _decided(_judged(function, x, training))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_stores_across_other_types_strides_and_numbers_that_are_none(dtype: torch.dtype) -> None:
    x = torch.randn(4, 20, 34, 26, generator=torch.Generator().manual_seed(0)).to(dtype)[1:, :, ::2, 1:]
    x[1, 2, 3, 4], x[2, 0, 4, 5] = torch.nan, torch.inf
    for function in (_group_norm, _layer_norm, _softmax, _both):
        compiled = lamina.compile(function, dynamic=False, options={"compare_eager": "off"})
        for ours, eager in zip(tensors(compiled(x)), tensors(function(x)), strict=True):
            assert ours.stride() == eager.stride()
            assert torch.equal(ours.isnan(), eager.isnan())
            torch.testing.assert_close(ours, eager, equal_nan=True, rtol=0.02, atol=0.02)


def test_stores_across_with_sizes_that_are_not_known() -> None:
    compiled = lamina.compile(_group_norm, dynamic=True, options={"compare_eager": "off"})
    for height in (20, 33, 5):
        x = torch.randn(2, 24, height, 19, generator=torch.Generator().manual_seed(height))
        torch.testing.assert_close(compiled(x), _group_norm(x))
        assert compiled(x).stride() == _group_norm(x).stride()
    assert not _decided(compiled), "nests over sizes that are not known are left whole"


def _unit_vectors(x: Tensor) -> Tensor:
    return F.normalize(x, dim=1).flatten(2).transpose(1, 2).contiguous()


@pytest.mark.parametrize("channels", [18, 64])
def test_operands_of_a_reduction_in_another_order_are_copied(channels: int) -> None:
    """Against gradients of eager in double: eager in bfloat16 rounds what is in between."""
    x = torch.randn(3, channels, 17, 23, generator=torch.Generator().manual_seed(0)).bfloat16()
    compiled = lamina.compile(_unit_vectors, dynamic=False, options={"compare_eager": "off"})
    gradients = []
    for run, given in ((compiled, x), (_unit_vectors, x.double())):
        leaf = given.clone().requires_grad_()
        result = run(leaf)
        weights = torch.linspace(-1, 1, result.numel()).bfloat16().to(result.dtype).view_as(result)
        gradients.append(torch.autograd.grad(result, leaf, weights)[0])
    ours, exact = gradients
    assert any("two orders" in d.reason for d in _decided(compiled))
    torch.testing.assert_close(ours.double(), exact, rtol=0.03, atol=0.03 * float(exact.abs().max()))


def test_copied_operands_keep_numbers_that_are_none() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return (x.flatten(1) * y.permute(0, 3, 1, 2).flatten(1)).float().unflatten(1, x.shape[1:]).sum((0, 2, 3))

    g = torch.Generator().manual_seed(0)
    x, y = (torch.randn(s, generator=g).bfloat16() for s in ((3, 32, 18, 21), (3, 18, 21, 32)))
    y[0, 1, 2, 3], x[1, 5, 6, 7] = torch.nan, torch.inf
    compiled = lamina.compile(function, dynamic=False, options={"compare_eager": "off"})
    torch.testing.assert_close(compiled(x, y), function(x, y), equal_nan=True, rtol=0.01, atol=0.1)
    assert _decided(compiled)


def test_operands_at_places_that_are_loaded_are_not_copied() -> None:
    """A copy in a nest of its own would have to compute the places again."""

    def function(table: Tensor, rows: Tensor, z: Tensor) -> Tensor:
        return (table[rows].float() * z.transpose(1, 2)).sum((1, 2))

    g = torch.Generator().manual_seed(0)
    table, z = torch.randn(50, 256, 256, generator=g).bfloat16(), torch.randn(8, 256, 256, generator=g)
    rows = torch.randint(0, 50, (8,), generator=g)
    compiled = lamina.compile(function, dynamic=False, options={"compare_eager": "off"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = compiled(table, rows, z)
    torch.testing.assert_close(ours, function(table, rows, z), rtol=1e-4, atol=0.02)


def _squared(x: Tensor, y: Tensor) -> Tensor:
    return ((x[..., :, None, :] - y[..., None, :, :]) ** 2).sum(-1)


def _near(x: Tensor, y: Tensor) -> Tensor:
    return torch.exp(-(x[..., :, None, :] - y[..., None, :, :]).abs().sum(-1))


def _joined(x: Tensor, y: Tensor) -> Tensor:
    """As a kernel's mean over two samples has it: both operands are one."""
    both = torch.cat((x, y), -2)
    return _squared(both, both)[..., : x.shape[-2], 3:]


@pytest.mark.parametrize("function", [_squared, _near, _joined])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_points_whose_distances_are_summed_are_copied_side_by_side(function: _Function, batch: tuple[int, ...]) -> None:
    """What is read for each of the other points again lies next to each other: no gathers, no sums over lanes."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(*batch, 45, 24, generator=g), torch.randn(*batch, 71, 24, generator=g)
    y[..., 7, 3], x[..., 8, 23] = torch.nan, torch.inf
    compiled = lamina.compile(function, dynamic=False, options={"compare_eager": "off", "verify": True})
    ours, eager, exact = compiled(x, y), function(x, y), function(x.double(), y.double())
    assert _decided(compiled)
    assert any("side by side" in d.reason for d in _decided(compiled))
    assert torch.equal(ours.isnan(), eager.isnan())
    assert not mismatch(ours, eager, exact)


@pytest.mark.parametrize(("points", "others", "numbers"), [(45, 71, 300), (4, 2000, 24), (1000, 20, 24)])
def test_points_that_are_read_rarely_or_along_many_numbers_are_not_copied(
    points: int, others: int, numbers: int
) -> None:
    """A copy takes as long as a few reads, long sums have few sums over lanes, and 20 are hardly a vector."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(points, numbers, generator=g), torch.randn(others, numbers, generator=g)
    compiled = lamina.compile(_squared, dynamic=False, options={"compare_eager": "off"})
    torch.testing.assert_close(compiled(x, y), _squared(x, y))
    assert not any("side by side" in d.reason for d in _decided(compiled))


def _density(x: Tensor, y: Tensor) -> Tensor:
    return torch.logsumexp(-_squared(x, y) / 32, -1)


def test_gradients_of_distances_are_vectors_along_the_numbers_of_a_point() -> None:
    """Weights of pairs hold more memory than points, but points are read for each pair: not one by one, then."""
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(200, 24, generator=g), torch.randn(300, 24, generator=g)
    compiled = lamina.compile(_density, dynamic=False, options={"compare_eager": "off", "verify": True})
    found = []
    for run, given in ((compiled, (x, y)), (_density, (x, y)), (_density, (x.double(), y.double()))):
        leaves = [t.clone().requires_grad_() for t in given]
        found.append(torch.autograd.grad(run(*leaves).sin().sum(), leaves))
    for ours, eager, exact in zip(*found, strict=True):
        assert not mismatch(ours, eager, exact)
    plans = [s.value for s in compiled.record.stages if s.name == "plan" and "backward" in s.region]
    summing = [k for plan in plans for k in plan.kernels if any(isinstance(e, Reduce) for n in k.nests for e in n.body)]
    assert summing
    for kernel in summing:
        [nest], schedule = kernel.nests, kernel.schedules[0]
        assert next(a for a in nest.axes if a.name == schedule.vector).extent.const == 24
