"""Saved tensors and gradients on their way from AOTAutograd to a compiled backward."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina
from lamina.aot.saved_tensors import with_planned_strides


def test_a_tensor_that_the_backward_lets_go_is_freed() -> None:
    freed = []

    def compiled(args):
        saved = weakref.ref(args[-1])
        args.clear()
        freed.append(saved() is None)
        return ()

    run = with_planned_strides(compiled, [torch.empty(2, 3), torch.empty(4, 5)])
    run([torch.ones(2, 3), torch.ones(4, 5)])
    assert freed == [True]


def test_a_tensor_laid_out_otherwise_is_copied() -> None:
    seen = []

    def compiled(args):
        seen.extend(args)
        return ()

    given = torch.arange(6.0).view(2, 3)
    with_planned_strides(compiled, [torch.empty(3, 2).t()])([given])
    assert seen[0].stride() == (1, 2)
    assert torch.equal(seen[0], given)


PACKS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    "in another type": (lambda t: t.double(), lambda t: t.float()),
    "contiguous": (lambda t: t, lambda t: t.contiguous()),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dynamic", [None, False, True])
@pytest.mark.parametrize("kept", PACKS)
def test_hooks_may_give_back_what_was_saved_with_gaps_without_them(kept: str, dynamic: bool | None) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * y).sin() * x, (x * y)[:, ::2].exp()

    torch.compiler.reset()
    compiled = lamina.compile(function, dynamic=dynamic)
    for size in (4, 5):
        memory = torch.arange(6.0 * size).view(size, 6) / 20
        for wanted in ((0, 1), (1,)):
            found = []
            for each in (compiled, function):
                x = memory[:, ::2].detach().requires_grad_()
                y = (1 - memory).t()[::2].t().requires_grad_()
                with torch.autograd.graph.saved_tensors_hooks(*PACKS[kept]):
                    results = each(x, y)
                sum(results[k].sum() for k in wanted).backward()
                found.append((x.grad, y.grad))
            torch.testing.assert_close(*found)


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "columns": lambda: torch.linspace(0, 1, 12).view(4, 3).t(),
    "columns of a larger tensor": lambda: torch.linspace(0, 1, 24).view(4, 6).t()[:3],
    "every other element": lambda: torch.linspace(0, 1, 48).view(6, 8)[::2, ::2],
    "elements that overlap": lambda: torch.linspace(0, 1, 20).as_strided((3, 4), (1, 2)),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "order",
    [
        ("columns of a larger tensor", "columns", "columns of a larger tensor"),
        ("every other element", "columns", "columns of a larger tensor"),
        ("every other element", "columns", "elements that overlap"),
    ],
)
def test_what_is_saved_lies_as_the_call_has_it_where_strides_vary(order: tuple[str, ...], dynamic: bool | None) -> None:
    """A graph for strides that vary was made for an input without gaps, and serves those with gaps too."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y).cumsum(0).sin()

    torch.compiler.reset()
    compiled = lamina.compile(function, dynamic=dynamic)
    for layout in order:
        found = []
        for each in (compiled, function):
            x, y = LAYOUTS[layout]().requires_grad_(), torch.linspace(0, 1, 12).view(3, 4).requires_grad_()
            each(x, y).sum().backward()
            found.append((x.grad, y.grad))
        torch.testing.assert_close(*found)


def test_kernels_are_given_what_a_negative_view_shows() -> None:
    seen = []

    def compiled(args):
        seen.extend(args)
        return ()

    gradient = torch.complex(torch.ones(3), torch.ones(3)).conj().imag
    assert gradient.is_neg()
    with_planned_strides(compiled, [None])([gradient])
    assert not seen[0].is_neg()
    assert torch.equal(seen[0], -torch.ones(3))


@pytest.mark.parametrize("dynamic", [None, True])
def test_hooks_may_give_back_a_negative_view(dynamic: bool | None) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x.exp()).sum()

    def negative_view(saved: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._neg_view(-saved)

    def gradient(called: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        x = torch.linspace(0.1, 1, 5, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.clone, negative_view):
            result = called(x)
        return torch.autograd.grad(result, x)[0]

    torch.testing.assert_close(gradient(lamina.compile(function, dynamic=dynamic)), gradient(function))


def _saved_whole(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y.erf(), y[:-1]


def _saved_part(x: Tensor) -> tuple[Tensor, Tensor]:
    y = (x * 2)[:-1]
    return y.erf(), y


def _saved_turned(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y.erf(), y.t()


def _saved_for_a_library(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x @ x
    return (y @ y).sum(), y.narrow(0, 1, 2)


def _saved_after_a_write(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.repeat(2, 1)[:-1]
    y.reciprocal_()
    return y.erf(), y


def _saved_beside_two(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x * 2
    return y[1:3].erf(), y[:-1], y[1:]


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "program",
    [_saved_whole, _saved_part, _saved_turned, _saved_for_a_library, _saved_after_a_write, _saved_beside_two],
)
def test_a_write_to_a_result_in_the_memory_of_what_is_saved_is_seen(program: Any, dynamic: bool | None) -> None:
    """Eager refuses the backward then, whichever view of the memory is returned."""
    torch.compiler.reset()
    compiled = lamina.compile(program, dynamic=dynamic, options={"strict": True})
    for write in (False, True):
        x = torch.linspace(0.5, 2.0, 16).reshape(4, 4).requires_grad_()
        results = compiled(x)
        if write:
            results[1].detach().diagonal().add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(results[0].sum(), x)
        else:
            (mine,) = torch.autograd.grad(results[0].sum(), x)
            y = x.detach().clone().requires_grad_()
            torch.testing.assert_close(mine, *torch.autograd.grad(program(y)[0].sum(), y))


def _three(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    h = x.exp()
    return h * 2, h.tanh(), x.sigmoid()


@pytest.mark.sampled(one_in=8)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("written", [0, 1, 2])
@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_a_write_to_what_another_result_saves_is_no_error(wanted: int, written: int, dynamic: bool | None) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(_three, dynamic=dynamic, options={"strict": True})
    for again in (False, True):
        x = torch.linspace(-1, 1, 20).view(4, 5).requires_grad_()
        results = compiled(x)
        results[written].detach().mul_(2)
        if wanted == written != 0:  # eager saves those two results
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                results[wanted].sum().backward()
            continue
        results[wanted].sum().backward(retain_graph=again)
        y = x.detach().clone().requires_grad_()
        torch.testing.assert_close(x.grad, *torch.autograd.grad(_three(y)[wanted].sum(), y))


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_later_backward_sees_a_write_to_a_result_in_the_memory_of_what_it_reads(dynamic: bool | None) -> None:
    torch.compiler.reset()

    def two(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x * 2
        return y.erf(), y[:-1], x * 3

    for write in (False, True):
        x = torch.linspace(0.5, 2.0, 16).reshape(4, 4).requires_grad_()
        results = lamina.compile(two, dynamic=dynamic, options={"strict": True})(x)
        results[2].sum().backward()
        if not write:
            results[0].sum().backward()
            continue
        results[1].detach().add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            results[0].sum().backward()


def _nothing_left(x: Tensor) -> Tensor:
    return F.dropout(F.dropout(x, 1.0).sigmoid(), 1.0)


def _fills_alike(x: Tensor) -> Tensor:
    return _Alike.apply(x)


class _Alike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.like = torch.ones_like(x)
        return x * 3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.like * 3


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("numerics", ["fast", "eager"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [_nothing_left, _fills_alike])
def test_what_is_asked_for_its_size_alone_may_be_written_to(program: Any, dynamic: bool | None, numerics: str) -> None:
    torch.compiler.reset()
    x = torch.linspace(0.5, 2.0, 16).reshape(4, 4).requires_grad_()
    result = lamina.compile(program, dynamic=dynamic, options={"strict": True, "numerics": numerics})(x)
    x.detach().zero_()
    result.sum().backward()
    y = torch.ones(4, 4, requires_grad=True)
    torch.testing.assert_close(x.grad, *torch.autograd.grad(program(y).sum(), y))
