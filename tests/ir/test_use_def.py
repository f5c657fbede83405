"""The use-def view of a nest's body."""

from __future__ import annotations

import pytest

from lamina.ir.index import Axis, as_expr
from lamina.ir.loops import Compute, Constant, Load, Reduce, Store
from lamina.ir.use_def import UseDef

R = Axis("r", as_expr(8))
BODY = (
    Load("x", "b0", (as_expr(R),), "float16"),
    Constant("one", 1.0, "float32"),
    Compute("wide", "cast", ("x",), "float32"),
    Compute("square", "mul", ("wide", "wide"), "float32"),
    Reduce(("mean", "squares"), "welford", "square", ("r",), "float32"),
    Compute("more", "add", ("mean", "one"), "float32"),
    Compute("unused", "neg", ("wide",), "float32"),
    Store("b1", (), "more"),
)


def test_values_are_found_at_their_definitions() -> None:
    """Each result of a reduction too; stores define nothing."""
    view = UseDef(BODY)
    assert view.positions == {
        "x": 0,
        "one": 1,
        "wide": 2,
        "square": 3,
        "mean": 4,
        "squares": 4,
        "more": 5,
        "unused": 6,
    }
    assert view.dtypes == {n: "float16" if n == "x" else "float32" for n in view.positions}
    assert view.definition("squares") is BODY[4]
    assert "x" in view
    assert "b1" not in view
    with pytest.raises(KeyError):
        view.definition("b1")


def test_what_a_value_is() -> None:
    """An operation, or one of those asked for, or a literal; neither is anything that the body does not define."""
    view = UseDef(BODY)
    assert view.compute("wide") is BODY[2]
    assert view.compute("wide", "mul", "cast") is BODY[2]
    assert view.compute("wide", "mul") is view.compute("x") is view.compute("elsewhere") is None
    assert view.constant("one") is BODY[1]
    assert view.constant("x") is view.constant("elsewhere") is None


def test_users_are_told_once_in_order() -> None:
    """Both operands of a square are one use."""
    view = UseDef(BODY)
    assert list(view.users("wide")) == [3, 6]
    assert (view.last_use("wide"), view.last_use("unused")) == (6, -1)
    assert view.user_equations("wide") == [BODY[3], BODY[6]]
    assert list(view.users("unused")) == list(view.users("elsewhere")) == []


def test_a_backward_slice_ends_at_what_is_known() -> None:
    """In the order of the body, with its goals."""
    view = UseDef(BODY)
    assert view.backward_slice([7]) == [0, 1, 2, 3, 4, 5, 7]
    assert view.backward_slice([7, 6], ("square",)) == [0, 1, 2, 4, 5, 6, 7]
    assert view.backward_slice([7], ("more",)) == [7]
