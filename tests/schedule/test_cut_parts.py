"""Parts of what cuts nests for a GPU, each without the others that it does not ask."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.gpu_idle import H100
from lamina.base.decision import Decision
from lamina.ir.index import Axis, as_expr
from lamina.ir.loops import Buffer, Compute, Load, Nest, Reduce, Store
from lamina.schedule.axis_to_cut import AxisToCut
from lamina.schedule.gpu_cut_accesses import Accesses
from lamina.schedule.gpu_cut_choice import CutChoice
from lamina.schedule.gpu_cut_nests import NewNests
from lamina.schedule.gpu_cutting import NestToCut, needed
from lamina.schedule.gpu_partials import Cut, Partials
from lamina.schedule.gpu_passes import Passes
from lamina.schedule.gpu_steps import Steps

ROWS, COLUMNS = 8, 1 << 20
ROW, J = Axis("i", as_expr(ROWS)), Axis("j", as_expr(COLUMNS))
AT = (as_expr(ROW), as_expr(J))
NEST = Nest(
    "centred",
    (ROW, J),
    (
        Load("x", "x", AT, "float32"),
        Reduce(("s",), "sum", "x", ("j",), "float32"),
        Compute("y", "sub", ("x", "s"), "float32"),
        Store("y", AT, "y"),
    ),
)
FACTS = NestToCut(NEST)


def buffers() -> dict[str, Buffer]:
    shape, strides = (as_expr(ROWS), as_expr(COLUMNS)), (as_expr(COLUMNS), as_expr(1))
    kinds = {"x": "input", "y": "output"}
    return {n: Buffer(n, "float32", shape, strides, "cuda:0", kind) for n, kind in kinds.items()}


def new_nests(decisions: list[Decision] | None = None) -> NewNests:
    table = buffers()
    return NewNests(FACTS, Accesses(FACTS, table), H100, table, [] if decisions is None else decisions)


def test_what_depends_on_a_reduction_and_what_it_needs() -> None:
    assert (FACTS.reduces, FACTS.first(), FACTS.goals()) == ([1], [1], [3])
    assert FACTS.depending({1}) == {2, 3}
    assert FACTS.slice([1], {}) == list(NEST.body[:2])
    assert FACTS.slice([3], {"s": None}) == [NEST.body[0], *NEST.body[2:]]
    assert needed(list(NEST.body[2:]), ["s", "z"]) == ["s"]


def test_memory_is_contiguous_along_the_last_axis() -> None:
    accesses = Accesses(FACTS, buffers())
    assert (accesses.fast(), accesses.contiguous(["i"]), accesses.contiguous(["i", "j"])) == ("j", None, "j")
    assert accesses.moved([NEST.body[0]]) == ROWS * COLUMNS * 4
    assert not accesses.stuck(J)


def test_new_nests_have_the_axes_they_use_and_their_buffers_are_known() -> None:
    decisions: list[Decision] = []
    new = new_nests(decisions)
    stores, loads = new.saved(["s"])
    made = new.nest_of("sums", NEST.axes, [*FACTS.slice([1], {}), *stores])
    assert (made.name, made.axes) == ("centred_sums", (ROW, J))
    assert loads["s"].buffer == "centred_s"
    assert new.buffers["centred_s"].device == "cuda:0"
    new.decide("in parts", "because")
    assert [d.subject for d in decisions] == [("centred", "in parts")]


def test_an_axis_is_cut_into_equal_parts() -> None:
    found = AxisToCut(FACTS, Accesses(FACTS, buffers())).axis_to_cut(frozenset("j"), 64, [1])
    assert found == Cut(J, 64, as_expr(COLUMNS // 64))


def test_few_rows_are_cut_and_many_are_not() -> None:
    def choice(rows: int) -> Cut | None:
        axis = Axis("i", as_expr(rows))
        body = tuple(replace(e, index=(as_expr(axis), as_expr(J))) if hasattr(e, "index") else e for e in NEST.body)
        facts, table = NestToCut(Nest("n", (axis, J), body)), buffers()
        accesses = Accesses(facts, table)
        chosen = CutChoice(facts, accesses, AxisToCut(facts, accesses), H100, table)
        return chosen.cut(frozenset("j"), frozenset(), [1])

    few = choice(ROWS)
    assert few is not None
    assert few.axis == J
    assert choice(100 * H100.processors) is None


def test_parts_are_stored_and_joined_in_order() -> None:
    new = new_nests()
    part, cut = Axis("j_part", as_expr(64)), Cut(J, 64, as_expr(COLUMNS // 64))
    parts = Partials(FACTS, new.accesses, new)
    stores, loads = parts.partials([1], part, cut)
    assert [e.buffer for e in stores if isinstance(e, Store)] == ["centred_s_parts"]
    assert new.buffers["centred_s_parts"].shape == (as_expr(64), as_expr(ROWS))
    last = parts.join(FACTS.reduce(1), loads[1], part, cut)[-1]
    assert last == Reduce(("s",), "sum", "s_part", ("j_part",), "float32")


def test_what_a_store_left_is_read_again_only_if_that_is_less() -> None:
    new = new_nests()
    passes = Passes(FACTS, new.accesses, new, new.buffers)
    assert passes.rereading([3], {"s": None}, []) == [NEST.body[0], *NEST.body[2:]]
    assert passes.holding([1]) is None


def test_one_set_of_axes_has_no_steps() -> None:
    new = new_nests()
    steps = Steps(FACTS, new.accesses, new)
    assert steps.shared(frozenset("j")) is None
    assert steps.factors(FACTS.reduce(1), frozenset("j")) == (("x",), ())
