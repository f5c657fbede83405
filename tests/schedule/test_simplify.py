"""Equal loads are one only where nothing is stored between them, and conversions that round stay."""

from __future__ import annotations

import pytest

from lamina.ir.index import Axis, as_expr
from lamina.ir.loops import Compute, Constant, Equation, Load, Reduce, Store, defined
from lamina.schedule.simplify import simplify

AT = (as_expr(Axis("i", as_expr(8))),)


@pytest.mark.parametrize(("stored", "loads"), [("b", 2), ("other", 1)])
def test_a_load_after_a_store_to_its_buffer_is_another(stored: str, loads: int) -> None:
    body: list[Equation] = [
        Load("x", "b", AT, "float32"),
        Compute("y", "neg", ("x",), "float32"),
        Store(stored, AT, "y"),
        Load("z", "b", AT, "float32"),
        Store("out", AT, "z"),
    ]
    assert sum(isinstance(e, Load) for e in simplify(body, "fast")) == loads


@pytest.mark.parametrize(("numerics", "casts"), [("fast", 0), ("eager", 2)])
def test_a_rounding_to_half_precision_stays_with_eager_numerics(numerics: str, casts: int) -> None:
    body: list[Equation] = [
        Load("x", "b", AT, "float32"),
        Compute("y", "cast", ("x",), "bfloat16"),
        Compute("z", "cast", ("y",), "float32"),
        Store("out", AT, "z"),
    ]
    assert sum(isinstance(e, Compute) for e in simplify(body, numerics)) == casts


@pytest.mark.parametrize(("op", "casts"), [("eq", 2), ("lt", 2), ("add", 0)])
def test_two_values_that_are_compared_are_rounded_as_in_memory(op: str, casts: int) -> None:
    body: list[Equation] = [
        Load("x", "b", AT, "float32"),
        Load("other", "c", AT, "float32"),
        Compute("y", "cast", ("x",), "bfloat16"),
        Compute("z", "cast", ("y",), "float32"),
        Compute("found", op, ("z", "other"), "bool" if op != "add" else "float32"),
        Compute("sum", "add", ("z", "z"), "float32"),
        Store("out", AT, "found"),
        Store("sums", AT, "sum"),
    ]
    once = simplify(body, "fast")
    assert simplify(once, "fast") == once
    assert sum(isinstance(e, Compute) and e.op == "cast" for e in once) == casts
    assert next(e for e in once if isinstance(e, Compute) and e.out == "sum").ins == ("x", "x")


def test_values_are_rounded_of_which_one_that_is_compared_was_chosen() -> None:
    """The greatest so far equals an element only where both are the numbers that were stored."""
    body: list[Equation] = [
        Load("x", "b", AT, "float32"),
        Compute("y", "cast", ("x",), "bfloat16"),
        Compute("z", "cast", ("y",), "float32"),
        Load("left", "c", AT, "bool"),
        Constant("least", -1e30, "float32"),
        Compute("there", "where", ("left", "z", "least"), "float32"),
        Reduce(("best",), "max", "there", ("i",), "float32"),
        Compute("found", "eq", ("z", "best"), "bool"),
        Reduce(("top",), "max", "z", ("i",), "float32"),
        Compute("none", "eq", ("top", "least"), "bool"),
        Store("out", AT, "found"),
        Store("other", AT, "none"),
    ]
    made = {name: e for e in simplify(body, "fast") for name in defined(e)}
    assert made["there"].ins[1] == made["found"].ins[0] == "z"  # type: ignore[union-attr]
    assert made["top"].value == "x"  # type: ignore[union-attr]


def test_a_value_that_is_compared_with_a_number_is_not_rounded() -> None:
    body: list[Equation] = [
        Load("x", "b", AT, "float32"),
        Compute("y", "cast", ("x",), "bfloat16"),
        Compute("z", "cast", ("y",), "float32"),
        Constant("bound", 0.5, "float32"),
        Compute("found", "lt", ("z", "bound"), "bool"),
        Store("out", AT, "found"),
    ]
    assert not any(isinstance(e, Compute) and e.op == "cast" for e in simplify(body, "fast"))
