"""Which captured graphs may draw random numbers, whatever their values are called; and what is not run twice then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

import lamina
from lamina.aot.draws import draws_numbers
from lamina.base.overloads import overloads_named
from lamina.base.torch_private import OpOverload

Function = Callable[..., Any]


def _named(x: Tensor) -> Tensor:
    mask = torch.rand_like(x)  # Dynamo calls the node "mask"
    return (x * mask).tanh()


def _dropped(x: Tensor) -> Tensor:
    y = F.dropout(x)
    return (y * y).tanh()


def _held(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda t: t * torch.rand_like(t), lambda t: t + 1, (x,))


def _attention(dropout: float) -> Function:
    return lambda x: F.scaled_dot_product_attention(x, x, x, None, dropout).tanh()


def _heads(training: bool) -> Function:
    heads = torch.nn.MultiheadAttention(4, 2, dropout=0.5).train(training).requires_grad_(False)
    return lambda x: heads(x, x, x)[0].tanh()


DRAW: dict[str, tuple[Function, Tensor]] = {
    "of a variable's name": (_named, torch.ones(8)),
    "dropout of a variable's name": (_dropped, torch.ones(8)),
    "attention": (_attention(0.5), torch.ones(1, 2, 4, 4)),
    "several heads": (_heads(True), torch.ones(3, 2, 4)),
    "gamma": (lambda x: torch._standard_gamma(x) * 2, torch.full((8,), 9.0)),
    "binomial": (lambda x: torch.binomial(x, x / 9) * x, torch.full((8,), 4.0)),
    "pooling": (lambda x: F.fractional_max_pool2d(x, 2, output_size=3).exp(), torch.ones(1, 2, 9, 9)),
    "a method": (lambda x: x * torch.empty_like(x).bernoulli_(), torch.ones(8)),
    "low rank": (lambda x: torch.svd_lowrank(x, 2)[1] * 2, torch.ones(6, 5)),
}
DO_NOT: dict[str, tuple[Function, Tensor]] = {
    "attention": (_attention(0.0), torch.ones(1, 2, 4, 4)),
    "several heads": (_heads(False), torch.ones(3, 2, 4)),
    "dropout in evaluation": (lambda x: F.dropout(x, 0.5, False) * 2, torch.ones(8)),
    "a unit vector": (lambda x: F.normalize(x, dim=0) * 2, torch.ones(8)),
    "functions of gamma functions": (lambda x: torch.polygamma(1, x) + torch.lgamma(x) + x.digamma(), torch.ones(8)),
    "a product": (lambda dropped: (dropped @ dropped).mean(-1).T, torch.ones(4, 4)),
    "comparisons": (lambda x: torch.where((x == 1) & (x <= 2) | (x != 3), x, -x).tanh(), torch.ones(8)),
}


def _graph(function: Function, x: Tensor) -> GraphModule:
    captured: list[GraphModule] = []

    def keep(gm: GraphModule, example_inputs: Any) -> Function:
        captured.append(gm)
        return gm.forward

    torch.compiler.reset()
    torch.compile(function, backend=keep, dynamic=False)(x)
    return captured[0]


@pytest.mark.parametrize("name", DRAW)
def test_draws_are_found(name: str) -> None:
    assert draws_numbers(_graph(*DRAW[name]))


def test_draws_of_held_graphs_are_found() -> None:
    assert draws_numbers(_graph(_held, torch.ones(8)))


@pytest.mark.parametrize("name", DO_NOT)
def test_what_draws_nothing_is_told_from_it(name: str) -> None:
    assert not draws_numbers(_graph(*DO_NOT[name]))


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("name", ["of a variable's name", "dropout of a variable's name", "attention", "gamma"])
def test_gradients_that_may_be_differentiated_again_are_of_the_same_numbers(name: str) -> None:
    function, x = DRAW[name]
    x = x.clone().requires_grad_()
    torch.compiler.reset()
    y = lamina.compile(function, dynamic=False)(x).sum()
    (expected,) = torch.autograd.grad(y, x, retain_graph=True)
    (found,) = torch.autograd.grad(y, x, create_graph=True)
    assert torch.equal(found, expected)


def test_a_draw_of_any_name_is_not_compared_with_eager() -> None:
    torch.compiler.reset()
    compiled = lamina.compile(_named, dynamic=False, options={"compare_eager": "cpu"})
    compiled(torch.randn(8))
    assert "random" in compiled.record.decisions("turns")[-1].reason


@pytest.mark.parametrize("name", ["__eq__", "__ne__", "__lt__", "__init__", "__and__", "__class__", "name", "no_such"])
def test_any_name_of_a_call_is_looked_up(name: str) -> None:
    """Torch 2.11 captures ``x == y`` as a call named ``__eq__``, which is a method of ATen's namespace as well."""
    assert all(isinstance(overload, OpOverload) for overload in overloads_named(name))
    assert bool(overloads_named(name)) == (name == "__and__")
