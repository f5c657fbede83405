"""Which steps must keep their order while they are grouped, and which nests cannot be one kernel."""

from __future__ import annotations

import pytest

from lamina.ir.index import Axis, Expr, as_expr
from lamina.ir.loops import Load, Nest, Store
from lamina.schedule.dependence_graph import DependenceGraph
from lamina.schedule.group import illegal

AXIS = Axis("i", as_expr(8))
HERE, ELSEWHERE = as_expr(AXIS), 7 - as_expr(AXIS)


def copying(name: str, source: str, target: str, read: Expr = HERE, written: Expr = HERE) -> Nest:
    """A nest that copies elements of one buffer to another."""
    return Nest(name, (AXIS,), (Load("x", source, (read,), "float32"), Store(target, (written,), "x")))


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        (("a", "b"), ("b", "c"), True),
        (("a", "b"), ("c", "a"), True),
        (("a", "b"), ("c", "b"), True),
        (("a", "b"), ("a", "c"), False),
    ],
    ids=["read after write", "write after read", "write after write", "read after read"],
)
def test_what_touches_a_buffer_keeps_its_order(first: tuple[str, str], second: tuple[str, str], waits: bool) -> None:
    graph = DependenceGraph()
    graph.enter(graph.group_of(0, copying("first", *first)))
    assert graph.group_of(1, copying("second", *second)).deps == ({0} if waits else set())


@pytest.mark.parametrize("written", [HERE, ELSEWHERE])
def test_a_nest_reads_what_it_writes_at_one_point_only(written: Expr) -> None:
    why = illegal(copying("nest", "a", "a", HERE, written), {}, fresh=False)
    assert why == (None if written == HERE else "a buffer is read and written at different points")


ROW = Axis("r", as_expr(5))


@pytest.mark.parametrize(("more", "refused"), [((), False), ((as_expr(ROW),), True)], ids=["once", "in each row"])
def test_what_is_read_in_each_row_is_not_written_by_the_first(more: tuple[Expr, ...], refused: bool) -> None:
    body = (Load("x", "a", (HERE,), "float32"), Store("b", (*more, HERE), "x"), Store("a", (HERE,), "x"))
    why = illegal(Nest("nest", (ROW, AXIS), body), {}, fresh=False)
    assert why == ("an element is written at one of the points that read it" if refused else None)
