"""Saved tensors and gradients on their way from AOTAutograd to a compiled backward."""

import weakref
from collections.abc import Callable

import pytest
import torch

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
