"""Which values are stored, how much of them, and in which loops: what is equal along an axis is stored once.

Gathered rows are computed where they are scattered, and reductions go through memory as it lies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina


def _graphs(compiled: Any, kind: str) -> list[Any]:
    """Decisions of that kind that were taken."""
    stages = [s for s in compiled.record.stages if s.name == "fuse"]
    return [d for s in stages for d in s.decisions if d.kind == kind and d.taken]


def _temporaries(compiled: Any, region: str) -> int:
    """Elements of all temporaries of the region whose name ends so."""
    for stage in compiled.record.stages:
        if stage.name == "fuse" and stage.value.program.name.endswith(region):
            sizes = [b.shape for b in stage.value.program.buffers if b.kind == "temp" and b.dtype != "bool"]
            return sum(int(torch.Size([int(n.const) for n in shape]).numel()) for shape in sizes)
    raise AssertionError(region)


def _checked(function: Callable[..., Tensor], *args: Tensor) -> Any:
    """The compiled function, whose value and gradients are at most twice as far from float64 as eager's."""
    compiled = lamina.compile(function, options={"strict": True})
    leaves = [a for a in args if a.requires_grad]
    wide = [a.detach().double().requires_grad_() if a.requires_grad else a for a in args]
    exact = function(*wide)
    cotangent = torch.randn(exact.shape, generator=torch.Generator().manual_seed(1))
    found = [(y := compiled(*args)), *torch.autograd.grad(y, leaves, cotangent)]
    eager = [(y := function(*args)), *torch.autograd.grad(y, leaves, cotangent)]
    best = [exact, *torch.autograd.grad(exact, [w for w in wide if w.requires_grad], cotangent.double())]
    for ours, theirs, truth in zip(found, eager, best, strict=True):
        allowed = 2 * (theirs.double() - truth).abs().max() + 4e-7 * truth.abs().max()
        assert (ours.double() - truth).abs().max() <= allowed
    return compiled


def _energies(x: Tensor) -> Tensor:
    return torch.log(x.unfold(-1, 40, 16).pow(2).mean(-1) + 1e-6)


def test_the_gradient_of_a_mean_over_windows_is_stored_once_for_each() -> None:
    x = torch.randn(8, 1600, generator=torch.Generator().manual_seed(0), requires_grad=True)
    compiled = _checked(_energies, x)
    assert [d.subject[1] for d in _graphs(compiled, "narrow")]
    assert _temporaries(compiled, "backward") == 8 * 98


def test_what_a_call_reads_is_stored_whole() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        rows = torch.exp(torch.sin(x) / torch.cos(x) + 3.0)[:, None].expand(200, 300)
        return rows @ w

    g = torch.Generator().manual_seed(0)
    x, w = (torch.rand(s, generator=g).requires_grad_() for s in ((200,), (300, 50)))
    compiled = _checked(function, x, w)
    assert not any("expand" in d.subject[1] for d in _graphs(compiled, "narrow"))


def _messages(x: Tensor, source: Tensor, target: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, target, torch.relu(x[source] - x[target]))


def _edges() -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(300, 33, generator=g, requires_grad=True)
    return x, torch.randint(-300, 300, (1200,), generator=g), torch.randint(0, 300, (1200,), generator=g)


def test_gathered_rows_join_the_scatter_that_reads_them() -> None:
    compiled = _checked(_messages, *_edges())
    assert _temporaries(compiled, "forward") < 1200 * 33


def test_checks_of_places_hardly_count_where_rows_are_scattered() -> None:
    """Ends of an edge and its weight, a mask by another number: a check a row each, few instructions an element."""

    def weighted(x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        weight = (source * target % 5 - 1) * 0.25
        values = torch.relu(x[source] + x[target] - x[source - target.clamp(max=3)]) * weight[:, None]
        return torch.zeros_like(x).scatter_add(0, target[:, None].expand(-1, x.shape[1]), values)

    x, source, target = _edges()
    compiled = _checked(weighted, x, source % 300, target)
    assert _temporaries(compiled, "forward") < 1200 * 33
    broken = x.detach().clone()
    broken[7], broken[8] = torch.nan, torch.inf
    torch.testing.assert_close(
        compiled(broken, source % 300, target), weighted(broken, source % 300, target), equal_nan=True
    )


def test_errors_of_joined_gathers_are_eagers() -> None:
    compiled = lamina.compile(_messages)
    x, source, target = _edges()
    compiled(x, source, target)
    for where, bad in ((source, 300), (source, -301), (target, 300), (target, -301), (source, 2**32)):
        broken = where.clone()
        broken[1199] = bad
        args = (x, broken if where is source else source, broken if where is target else target)
        raised = []
        for function in (_messages, compiled):
            try:
                function(*args)
            except (IndexError, RuntimeError) as problem:
                raised.append(type(problem))
        assert len(raised) == 2
        assert raised[0] is raised[1]


def test_a_reduction_along_memory_is_not_turned() -> None:
    """Sums of channels read images as they lie; what stores them with channels innermost is a kernel of its own."""

    def centred(x: Tensor) -> Tensor:
        last = x.to(memory_format=torch.channels_last)
        return torch.tanh(last - last.mean((0, 2, 3), keepdim=True))

    x = torch.randn(4, 24, 20, 20, generator=torch.Generator().manual_seed(0), requires_grad=True)
    compiled = _checked(centred, x)
    assert compiled(x).stride() == centred(x).stride()
    refused = [d for s in compiled.record.stages if s.name == "fuse" for d in s.decisions if not d.taken]
    assert any("another order" in d.reason for d in refused)


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("backend", ["interp", "lamina"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.new_zeros(5).index_put((torch.zeros(4, dtype=torch.long),), x.sum() * 0.5, accumulate=True),
        lambda x: x.new_zeros(5).index_add(0, torch.zeros(4, dtype=torch.long), torch.ones(4)),
        lambda x: x.new_zeros(5).scatter_add(0, torch.full((4,), 2), x.new_ones(4) * 3),
        lambda x: x.new_zeros(5).index_add(0, x.exp().sum().long().clamp(0, 4).expand(4) * 1, x.sum().expand(4)),
        lambda x: x.new_zeros(5, 3).index_add(0, torch.zeros(4, dtype=torch.long), x.tanh().expand(4, 3)),
    ],
)
def test_what_adds_at_one_place_adds_as_often_as_before(function: Callable[[Tensor], Tensor], backend: str) -> None:
    x = torch.tensor([0.5, 0.25, 1.0])
    compiled = lamina.compile(function, backend=backend, options={"compare_eager": "off"})
    torch.testing.assert_close(compiled(x), function(x))


def test_gradients_of_one_place_that_is_read_often_add_up() -> None:
    w = torch.randn(5, requires_grad=True)
    compiled = lamina.compile(
        lambda w: w[torch.zeros(4, dtype=torch.long)].sum() * 0.5, options={"compare_eager": "off"}
    )
    compiled(w).backward()
    assert w.grad is not None
    assert torch.equal(w.grad, torch.tensor([2.0, 0, 0, 0, 0]))
