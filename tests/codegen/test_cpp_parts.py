"""Parts of the C++ writer, each without the others that it does not ask."""

from __future__ import annotations

import pytest

from lamina.codegen.cpp.addresses import Addresses
from lamina.codegen.cpp.arrays import Array, Arrays
from lamina.codegen.cpp.bounds import Bounds
from lamina.codegen.cpp.column_totals import ColumnTotals
from lamina.codegen.cpp.loads import Loads
from lamina.codegen.cpp.needs import Needs
from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.codegen.cpp.operands import Operands
from lamina.codegen.cpp.phases import Phases
from lamina.codegen.cpp.skips import condition
from lamina.codegen.cpp.text import Goal, LoopBody, Memory, Scope, Text
from lamina.ir.index import Axis, Size, as_expr
from lamina.ir.loops import Compute, Constant, Load, Nest, Reduce, Store
from lamina.ir.plan import Schedule

ROW, COLUMN = Axis("i", as_expr(6)), Axis("j", as_expr(100))
PLACE = as_expr(ROW) * 100 + as_expr(COLUMN)
DTYPES = {"b0": "float32", "b1": "float32"}
SOFTMAX = Nest(
    "softmax",
    (ROW, COLUMN),
    (
        Load("x", "b0", (PLACE,), "float32"),
        Reduce(("s",), "sum", "x", ("j",), "float32"),
        Compute("y", "div", ("x", "s"), "float32"),
        Store("b1", (PLACE,), "y"),
    ),
)
FACTS = NestAnalysis(SOFTMAX, Schedule("rows", ("i",), ("j",), vector="j", width=32))
STORE = Goal(3)


def arrays_of(facts: NestAnalysis, bounds: Bounds) -> Arrays:
    return Arrays(facts, bounds, Operands(facts))


def scope() -> Scope:
    return Scope(Text(), Memory("memory"), "return")


def test_a_decided_condition_is_a_constant_until_the_end() -> None:
    body = (Constant("c", True, "bool"), Compute("n", "not", ("c",), "bool"))
    operands = Operands(NestAnalysis(Nest("n", (), body), Schedule("pointwise", (), ())))
    assert operands.value("n", vector=False) == "n"
    with operands.deciding({"n": True}):
        assert operands.value("n", vector=False) == "true"
    assert operands.value("n", vector=False) == "n"


def test_bounds_are_those_of_a_block_inside_it() -> None:
    bounds = Bounds(FACTS)
    assert (bounds.of("j"), bounds.is_short("j")) == (("0", "100"), True)
    with bounds.within({"j": ("first", "last")}):
        assert (bounds.of("j"), bounds.is_block("j"), bounds.is_short("j")) == (("first", "last"), True, False)
    assert bounds.of("j") == ("0", "100")


def test_arrays_go_out_of_scope() -> None:
    arrays = arrays_of(FACTS, Bounds(FACTS))
    arrays["x"] = arrays.allocate(scope(), "x_row", ("j",), "f32")
    later = Array("other", ("j",), ("100",), "f32")
    with arrays.inside():
        arrays["x"], arrays["y"] = later, later
    assert (arrays["x"].pointer, "y" in arrays) == ("other", False)
    with arrays.apart():
        arrays["x"] = Array("mine", ("j",), ("100",), "f32")
    assert arrays.load("x") == "const vf32 x = load_f32(other + j, n);  // kept"


def test_large_arrays_are_scratch_memory() -> None:
    place = scope()
    arrays = arrays_of(FACTS, Bounds(FACTS))
    arrays.allocate(place, "small", ("j",), "f32")
    arrays.allocate(place, "large", ("j", "j"), "f32")
    assert place.text.lines == ["alignas(64) f32 small[100];", "f32* const large = (f32*)(memory + 0);"]
    assert place.memory.total() == str(100 * 100 * 4 + 64)


def test_a_column_total_is_the_value_once_it_is_settled() -> None:
    place, arrays = scope(), arrays_of(FACTS, Bounds(FACTS))
    arrays["s"] = Array("s_sum", ("j",), ("100",), "f32")
    totals = ColumnTotals(FACTS, arrays)
    totals.begin(place, "s", {"i": 32})
    before = len(place.text.lines)
    totals.drain_now_and_then(place.text, "j")  # another loop
    assert len(place.text.lines) == before
    totals.drain_now_and_then(place.text, "i")
    totals.finish(place.text, "s")
    totals.finish(place.text, "s")
    assert place.text.lines[before:] == [
        "if ((i & 31) == 31) drain(s_total, s_sum, s_sum_lost, 100);",
        "settle(s_total, s_sum, s_sum_lost, 100);",
    ]
    assert arrays["s"].pointer == "s_total"


@pytest.mark.parametrize(
    ("images", "pixels", "blocks"),
    [
        (4, 8, {}),
        (4, 256, {"p": 32}),
        (100, 256, {"p": 32, "n": 32}),
        (32, 5, {"n": 4}),
        (2, 32, {"n": 1}),
        (4, Size("s"), {"p": 32}),
        (100, Size("s"), {"p": 32, "n": 32}),
    ],
)
def test_the_innermost_long_loop_fills_blocks(images: int, pixels: int | Size, blocks: dict[str, int]) -> None:
    n, p, c = Axis("n", as_expr(images)), Axis("p", as_expr(pixels)), Axis("c", as_expr(16))
    place = (as_expr(n) * as_expr(pixels) + as_expr(p)) * 16 + as_expr(c)
    load = Load("x", "b0", (place,), "float32")
    body = (load, Reduce(("s",), "sum", "x", ("n", "p"), "float32"), Store("b1", (as_expr(c),), "s"))
    facts = NestAnalysis(Nest("sums", (n, p, c), body), Schedule("columns", ("c",), ("n", "p"), vector="c", width=32))
    totals = ColumnTotals(facts, arrays_of(facts, Bounds(facts)))
    assert totals.blocks(("n", "p"), 32) == blocks


def test_needs_stop_at_what_is_known_or_kept() -> None:
    operands = Operands(FACTS)
    arrays = Arrays(FACTS, Bounds(FACTS), operands)
    needs = Needs(FACTS, operands, arrays)
    assert needs.of(frozenset(), [STORE]) == {0, 1, 2}
    assert needs.of(frozenset({"s"}), [STORE]) == {0, 2}
    arrays["y"] = Array("y_row", ("j",), ("100",), "f32")
    assert needs.of(frozenset(), [STORE]) == {2}


def test_what_uses_a_sum_is_a_phase_later() -> None:
    operands = Operands(FACTS)
    arrays = Arrays(FACTS, Bounds(FACTS), operands)
    phases = Phases(FACTS, Needs(FACTS, operands, arrays), arrays)
    found = phases.of(LoopBody(frozenset({"i"}), frozenset(), [STORE]))
    assert {position: phase for position, (phase, _) in found.items()} == {0: 0, 1: 0, 2: 1, 3: 1}
    assert found[1][1] == Goal(1)


def test_loads_follow_the_step_of_their_place() -> None:
    operands = Operands(FACTS)
    loads = Loads(FACTS, DTYPES, operands, Addresses(FACTS, operands))
    steps = {1: "load_f32(b0 + j, n)", 2: "stepped_f32<2>(b0 + j*2, n)", 0: "splat_f32(load_f32(b0))"}
    steps[31] = "picked_f32(b0 + j*31, 31, lane_count(n))"
    for step, text in steps.items():
        assert loads.load(Load("x", "b0", (as_expr(COLUMN) * step,), "float32"), vector=True) == text, step


def test_loops_that_would_add_up_zeros_only_are_left_out() -> None:
    def skipped(zero: float, op: str, axis: str) -> str:
        body = (
            Load("x", "b0", (PLACE,), "float32"),
            Load("row", "b1", (as_expr(ROW),), "float32"),
            Constant("z", zero, "float32"),
            Compute("c", "lt", ("row" if axis == "i" else "x", "z"), "bool"),
            Compute("v", "where", ("c", "x", "z"), "float32"),
            Reduce(("s",), op, "v", ("j",), "float32"),
            Store("b1", (as_expr(ROW),), "s"),
        )
        facts = NestAnalysis(Nest("n", (ROW, COLUMN), body), FACTS.schedule)
        return condition(facts, LoopBody(frozenset({"i"}), frozenset({"row", "z", "c"}), [Goal(5)]))

    assert skipped(0.0, "sum", "i") == "c"
    assert skipped(1.0, "sum", "i") == skipped(0.0, "max", "i") == skipped(0.0, "sum", "j") == ""
