"""A load under a mask is the load without it where both are made, and nothing sees it where the mask is false."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import lamina
from lamina.ir.index import Axis, as_expr
from lamina.ir.loops import Compute, Constant, Equation, Index, Load, Nest, Store
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.simplify import simplify

ALONG = Axis("i", as_expr(8))
AT = (as_expr(ALONG),)


def _body(*used: Equation, dtype: str = "float32") -> list[Equation]:
    """A masked and a plain load of ``b``, the first with ``used``, the second stored."""
    return [
        Index("i", as_expr(ALONG), "int64"),
        Constant("four", 4, "int64"),
        Compute("m", "lt", ("i", "four"), "bool"),
        Load("x", "b", AT, dtype, "m"),
        *used,
        Load("y", "b", AT, dtype),
        Store("second", AT, "y"),
    ]


def _loads(body: list[Equation]) -> int:
    return sum(isinstance(e, Load) for e in simplify(body, "fast"))


ZERO = Constant("zero", 0.0, "float32")
NEG = Compute("n", "neg", ("x",), "float32")


def _chosen(condition: str, one: str, other: str, dtype: str = "float32") -> list[Equation]:
    return [Compute("w", "where", (condition, one, other), dtype), Store("first", AT, "w")]


def test_what_only_a_choice_by_the_mask_needs_is_loaded_once() -> None:
    assert _loads(_body(ZERO, NEG, *_chosen("m", "n", "zero"))) == 1


def test_a_choice_by_the_mask_and_more_hides_it_too() -> None:
    more = [Load("c", "conditions", AT, "bool"), Compute("both", "and", ("c", "m"), "bool")]
    assert _loads(_body(ZERO, NEG, *more, *_chosen("both", "n", "zero"))) == 2
    either = [more[0], Compute("both", "or", ("c", "m"), "bool")]
    assert _loads(_body(ZERO, NEG, *either, *_chosen("both", "n", "zero"))) == 3


@pytest.mark.parametrize(
    "used",
    [
        [NEG, Store("first", AT, "n")],
        [ZERO, NEG, *_chosen("m", "zero", "n")],
        [NEG, *_chosen("m", "n", "x")],
        [ZERO, NEG, *_chosen("m", "n", "zero"), Store("third", AT, "n")],
        [ZERO, NEG, *_chosen("m", "n", "zero"), Store("b", AT, "w")],
    ],
    ids=["stored", "the other branch", "both branches", "stored as well", "another value later"],
)
def test_a_mask_that_is_seen_stays(used: list[Equation]) -> None:
    assert _loads(_body(*used)) == 2


def test_integers_are_not_divided_by_what_a_mask_kept_away() -> None:
    used = [Constant("ten", 10, "int64"), Compute("n", "floor_div", ("ten", "x"), "int64")]
    assert _loads(_body(*used, *_chosen("m", "n", "ten", "int64"), dtype="int64")) == 2


def _two_slices(x: torch.Tensor) -> torch.Tensor:
    y = torch.sqrt(x.abs() + 0.1)
    return F.gelu(y[:, :5]) + y[:, 6:]


def test_a_gradient_of_slices_computes_what_they_have_in_common_once() -> None:
    def gradient(x: Any, g: Any) -> Any:
        y = torch.sqrt(x.abs() + 0.1)
        return (F.pad(g * y[:, :5].exp(), (0, 6)) + F.pad(g, (6, 0))) / y

    program = lower(make_fx(gradient)(torch.randn(300, 11), torch.randn(300, 5)), "p")
    buffers = tuple(replace(b, device="cuda:0") for b in program.buffers)
    (nest,) = [s for s in fuse(replace(program, buffers=buffers)).program.steps if isinstance(s, Nest)]
    assert sum(isinstance(e, Compute) and e.op == "sqrt" for e in nest.body) == 1


@pytest.mark.parametrize("function", [_two_slices, lambda x: F.gelu(x[:, :5].exp()) * x[:, 5:10].tanh()])
def test_gradients_of_slices_are_those_of_float64(function: Callable[[Any], Any]) -> None:
    x = torch.randn(40, 11, requires_grad=True)
    g = torch.randn(40, 5)
    exact = x.detach().double().requires_grad_()
    (want,) = torch.autograd.grad(function(exact), [exact], g.double())
    (got,) = torch.autograd.grad(lamina.compile(function)(x), [x], g)
    torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-5)


def test_long_chains_are_followed() -> None:
    chain: list[Equation] = [Compute("n0", "neg", ("x",), "float32")]
    chain += [Compute(f"n{k}", "sin", (f"n{k - 1}",), "float32") for k in range(1, 3000)]
    assert _loads(_body(ZERO, *chain, *_chosen("m", "n2999", "zero"))) == 1
    assert _loads(_body(ZERO, *chain, *_chosen("m", "n2999", "n2998"))) == 2
