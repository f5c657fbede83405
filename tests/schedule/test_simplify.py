"""Equal loads are one only where nothing is stored between them, and conversions that round stay."""

from __future__ import annotations

import pytest

from lamina.ir.index import Axis, as_expr
from lamina.ir.loops import Compute, Equation, Load, Store
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
