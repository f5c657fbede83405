"""GELU's tangents as sigmoids: where they are replaced, what is left, and that values stay within sixteen bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.codegen.triton.sigmoids import with_sigmoids
from lamina.ir.index import as_expr
from lamina.ir.loops import Buffer, Compute, Nest, defined
from lamina.lower.builder import NestBuilder, Value
from lamina.lower.formulas import formula_of
from lamina.lower.values import whole
from tests.codegen.triton.harness import TARGET, Interpreter, both, case

ROWS, COLUMNS = 9, 130


def gelu(v: Value) -> Value:
    return formula_of("aten.gelu.default")(v, approximate="tanh")


def backward(v: Value) -> Value:
    return formula_of("aten.gelu_backward.default")(v.op("abs") + 1.0, v, approximate="tanh")


def by_hand(v: Value) -> Value:
    """The factors in another order."""
    return (v.op("tanh") + 1.0) * (v * 0.5) + v


def of_a_double(v: Value) -> Value:
    """A half is doubled again."""
    return ((v.op("tanh") + 1.0) * 0.5) * (v + v)


def of_two_tangents(v: Value) -> Value:
    return ((v.op("tanh") + 1.0) * 0.5) * ((v * v).op("tanh") + 1.0)


def twice_from_one(v: Value) -> Value:
    """A slope computed twice, as before equal equations are joined."""
    tangent = v.op("tanh")
    return (tangent + 1.0) * (1.0 - tangent * tangent) + (1.0 - tangent * tangent)


def used_otherwise(v: Value) -> Value:
    tangent = v.op("tanh")
    return (tangent + 1.0) * tangent


def of_two(v: Value) -> Value:
    """Another number than 1 beside it."""
    return v * (v.op("tanh") + 2.0)


def nest_of(function: Callable[[Value], Value], dtype: str = "bfloat16") -> tuple[Nest, list[Buffer]]:
    shape = (as_expr(ROWS), as_expr(COLUMNS))
    buffers = [
        Buffer(name, dtype, shape, (as_expr(COLUMNS), as_expr(1)), "cpu", kind)
        for name, kind in (("x", "input"), ("y", "output"))
    ]
    b = NestBuilder("n", list(shape), ("y",))
    value = function(b.load(whole(buffers[0])).to("float32"))
    b.store(whole(buffers[1]), value)
    return b.nest(), buffers


def operations(nest: Nest) -> list[str]:
    return [e.op for e in nest.body if isinstance(e, Compute)]


def exact_backward(x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(F.gelu(x, approximate="tanh").sum(), x)
    return (x.detach().abs() + 1) * slope


EXACT: dict[Callable[[Value], Value], Callable[[Tensor], Tensor]] = {
    gelu: lambda x: F.gelu(x, approximate="tanh"),
    backward: exact_backward,
    by_hand: lambda x: (x.tanh() + 1) * x / 2 + x,
    of_a_double: lambda x: (x.tanh() + 1) * x,
    of_two_tangents: lambda x: (x.tanh() + 1) / 2 * ((x * x).tanh() + 1),
    twice_from_one: lambda x: (x.tanh() + 2) * (1 - x.tanh() ** 2),
}


@pytest.mark.parametrize("function", EXACT)
def test_tangents_beside_one_are_sigmoids(function: Callable[[Value], Value], interpreter: Interpreter) -> None:
    nest, buffers = nest_of(function)
    found = operations(with_sigmoids(nest))
    assert "tanh" not in found
    assert found.count("sigmoid") == (2 if function is of_two_tangents else 1)
    names = [name for e in with_sigmoids(nest).body for name in defined(e)]
    assert len(names) == len(set(names))
    made = case("k", [nest], buffers, replace(TARGET, approximate=True))
    assert "fast_sigmoid" in made.source.text
    assert "tanh" not in made.source.text
    given = torch.cat([torch.linspace(-12, 12, ROWS * COLUMNS - 4), torch.tensor([-90.0, 90.0, 1e-4, -1e-4])])
    given = given.reshape(ROWS, COLUMNS).to(torch.bfloat16)
    ours, _ = both(made, interpreter, {"x": given}, {})
    exact = EXACT[function](given.double())
    far = (ours["y"].double() - exact).abs()
    assert (far <= exact.abs() * 2**-6.9 + 1e-6).all()  # the interpreter cuts to bfloat16 where the hardware rounds


def test_what_is_not_finite_stays_so(interpreter: Interpreter) -> None:
    nest, buffers = nest_of(gelu)
    given = torch.full((ROWS, COLUMNS), float("nan"), dtype=torch.bfloat16)
    given[0], given[1], given[2] = float("inf"), float("-inf"), 0.0
    made = case("k", [nest], buffers, replace(TARGET, approximate=True))
    ours, exact = both(made, interpreter, {"x": given}, {})
    assert torch.equal(ours["y"].isnan(), exact["y"].isnan())
    assert torch.equal(ours["y"].nan_to_num(), exact["y"].nan_to_num())


def test_the_forward_is_one_product_of_the_sigmoid() -> None:
    nest, _ = nest_of(gelu)
    before, after = operations(nest), operations(with_sigmoids(nest))
    assert len(after) < len(before)
    assert after[-2:] == ["mul", "cast"]


@pytest.mark.parametrize("function", [used_otherwise, of_two, lambda v: v.op("tanh")])
def test_other_tangents_stay(function: Callable[[Value], Value]) -> None:
    nest, _ = nest_of(function)
    assert operations(with_sigmoids(nest)) == operations(nest)


def test_in_float32_nothing_changes() -> None:
    nest, buffers = nest_of(gelu, "float32")
    made = case("k", [nest], buffers, replace(TARGET, approximate=True))
    assert "sigmoid" not in made.source.text
