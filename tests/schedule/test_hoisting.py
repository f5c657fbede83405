"""What varies over few of a kernel's axes is computed once, ahead of the kernel: indices, values and stores."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import lamina


def taken(compiled: Callable[..., Tensor]) -> int:
    decisions = [d for stage in compiled.record.stages if stage.name == "fuse" for d in stage.decisions]
    return sum(d.kind == "hoist" and d.taken for d in decisions)


def bias(scores: Tensor, table: Tensor, index: Tensor) -> Tensor:
    return torch.softmax(scores + table[index].permute(2, 0, 1), -1)


def pixels(x: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return x[:, :, i, j] * 3


def drawn(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    if function is bias:
        scores, table = torch.randn(8, 61, 67, generator=g), torch.randn(97, 8, generator=g)
        return scores, table, torch.randint(-97, 97, (61, 67), generator=g)
    places = [torch.randint(-40, 40, (700,), generator=g) for _ in range(2)]
    return torch.randn(3, 9, 40, 40, generator=g), *places


@pytest.mark.parametrize(("function", "count"), [(bias, 1), (pixels, 2)])
def test_values_and_gradients(function: Callable[..., Tensor], count: int) -> None:
    args = drawn(function)
    compiled = lamina.compile(function, options={"strict": True})
    leaves = [a.requires_grad_() for a in args if a.is_floating_point()]
    got, want = compiled(*args), function(*args)
    assert taken(compiled) >= count
    torch.testing.assert_close(got, want, rtol=2e-6, atol=1e-7)
    cotangent = torch.randn_like(want)
    for a, b in zip(*(torch.autograd.grad(y, leaves, cotangent) for y in (got, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_an_index_outside_is_refused() -> None:
    """Also one whose low 32 bits would be inside."""
    scores, table, index = drawn(bias)
    compiled = lamina.compile(bias)
    compiled(scores, table, index)
    for bad in (97, -98, 2**31, -(2**31), 2**32, 2**40 + 3):
        other = index.clone()
        other[60, 66] = bad
        with pytest.raises(IndexError):
            compiled(scores, table, other)


def test_the_first_error_is_reported() -> None:
    x, i, j = drawn(pixels)
    compiled = lamina.compile(pixels)
    compiled(x, i, j)
    for which, size in ((i, 40), (j, 40)):
        kept = which[650].item()
        which[650] = size
        with pytest.raises(IndexError):
            compiled(x, i, j)
        which[650] = kept
    torch.testing.assert_close(compiled(x, i, j), pixels(x, i, j))


def test_an_index_for_each_point_is_left_where_it_is() -> None:
    compiled = lamina.compile(lambda x, k: torch.gather(x * 2, 1, k) * 3)
    x, k = torch.randn(512, 64), torch.randint(0, 64, (512, 64))
    torch.testing.assert_close(compiled(x, k), torch.gather(x * 2, 1, k) * 3)
    assert taken(compiled) == 0


def kernels(compiled: Callable[..., Tensor], region: str) -> list[str]:
    """The equations of each kernel of a region, as text."""
    plan = next(s.value for s in compiled.record.stages if s.name == "plan" and region in s.region)
    return [repr([nest.body for nest in kernel.nests]) for kernel in plan.kernels]


def scaled_bias(scores: Tensor, table: Tensor, index: Tensor) -> Tensor:
    """A bias whose function is costly, over fewer axes than the scores."""
    return torch.softmax(scores + 16 * torch.sigmoid(table[index].permute(2, 0, 1)), -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_costly_value_is_computed_once(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    scores, table = torch.randn(16, 4, 24, 24, generator=g).to(dtype), torch.randn(50, 4, generator=g).to(dtype)
    index = torch.randint(-50, 50, (24, 24), generator=g)
    compiled = lamina.compile(scaled_bias, options={"strict": True})
    leaves = [t.requires_grad_() for t in (scores, table)]
    got, want = compiled(scores, table, index), scaled_bias(scores, table, index)
    close = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(got, want, **close)
    cotangent = torch.randn(want.shape, generator=g).to(dtype)
    for a, b in zip(*(torch.autograd.grad(y, leaves, cotangent) for y in (got, want)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=0.5 if dtype == torch.bfloat16 else 1e-4)
    forward = kernels(compiled, "forward")
    assert not any("'sigmoid'" in text and "Reduce" in text for text in forward), "sigmoids of few values, not of all"


def test_what_is_saved_of_few_values_is_stored_once() -> None:
    """The backward wants the exponential, whose store varies over few axes as its value does."""

    def function(scores: Tensor, table: Tensor, index: Tensor) -> Tensor:
        return torch.softmax(scores + table[index].permute(2, 0, 1).exp(), -1)

    scores = torch.randn(16, 4, 24, 24, requires_grad=True)
    table, index = torch.randn(50, 4, requires_grad=True), torch.randint(0, 50, (24, 24))
    compiled = lamina.compile(function, options={"strict": True})
    compiled(scores, table, index).sum().backward()
    (softmax,) = [text for text in kernels(compiled, "forward") if "Reduce" in text]
    assert softmax.count("Store(") == 1


def test_a_cheap_value_is_computed_where_it_is_used() -> None:
    compiled = lamina.compile(lambda x, w, b: (x * w + b).softmax(-1), options={"strict": True})
    x, w, b = torch.randn(64, 16, 64), torch.randn(16, 64), torch.randn(16, 64)
    torch.testing.assert_close(compiled(x, w, b), (x * w + b).softmax(-1))
    assert taken(compiled) == 0


def test_what_is_read_again_while_it_is_written_stays() -> None:
    """The value depends on what the nest writes to."""

    def update(x: Tensor, w: Tensor) -> Tensor:
        w.copy_(w.tanh())
        return x * w.exp()

    x, w = torch.randn(64, 512), torch.randn(512)
    expected = w.clone()
    want = update(x, expected)
    got = lamina.compile(update, options={"strict": True})(x, w)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(w, expected)


def test_sums_at_places_take_whole_rows() -> None:
    """A table's gradient from a transposed one: rows of the table are the vectors."""

    def function(scores: Tensor, table: Tensor, index: Tensor) -> Tensor:
        return scores + table[index].permute(2, 0, 1)

    scores, table = torch.randn(3, 12, 30, 30), torch.randn(32, 12, requires_grad=True)
    index = torch.randint(0, 32, (30, 30))
    compiled = lamina.compile(function, options={"strict": True})
    cotangent = torch.randn(3, 12, 30, 30)
    got, want = (torch.autograd.grad(f(scores, table, index), table, cotangent) for f in (compiled, function))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    plan = next(s.value for s in compiled.record.stages if s.name == "plan" and "backward" in s.region)
    (scatter,) = [k for k in plan.kernels if "'add'," in repr(k.nests) or "mode='add'" in repr(k.nests)]
    ((nest,), (schedule,)) = scatter.nests, scatter.schedules
    lengths = {a.name: a.extent.const for a in nest.axes}
    assert schedule.vector is not None
    assert lengths[schedule.vector] == 12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_columns_at_places_that_are_data_are_checked_once(dtype: torch.dtype) -> None:
    """Two comparisons of 64 bits for each element of each row take longer than a place of 32 bits takes to read."""

    def columns(x: Tensor, index: Tensor) -> Tensor:
        return x.index_select(1, index) * 2 + 1

    g = torch.Generator().manual_seed(0)
    x, index = torch.randn(65, 400, generator=g).to(dtype), torch.randint(0, 400, (307,), generator=g)
    compiled = lamina.compile(columns, options={"strict": True})
    torch.testing.assert_close(compiled(x, index), columns(x, index))
    assert taken(compiled) == 1
    index[306] = 400
    with pytest.raises((IndexError, RuntimeError)):
        compiled(x, index)
