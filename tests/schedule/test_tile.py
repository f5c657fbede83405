"""Which schedule a nest gets, and that it names every axis once."""

from __future__ import annotations

import pytest

from lamina.base.target import Target, cpu
from lamina.ir.loops import Buffer
from lamina.ir.plan import Schedule
from lamina.schedule.cpu_space import candidates, choose
from lamina.schedule.flatten import flatten
from tests.codegen.harness import dense
from tests.codegen.writer import Body

TARGET = cpu("avx2", 2)


def chosen(body: Body, *buffers: Buffer, target: Target = TARGET) -> Schedule:
    """The schedule of a nest, checked for what every schedule must have."""
    flat = flatten([body.nest()], {b.name: b for b in buffers})
    nest = flat.nests[0]
    dtypes = {f"b{k}": d for k, d in enumerate(flat.dtypes)}
    schedule = choose(nest, dtypes, target)
    assert candidates(nest, dtypes, target)[0].schedule == schedule
    assert sorted((*schedule.outer, *schedule.inner)) == sorted(a.name for a in nest.axes)
    assert (schedule.width > 0) == (schedule.vector is not None)
    if schedule.vector is not None and schedule.inner:
        assert schedule.inner[-1] == schedule.vector
    return schedule


def reduction(shape: tuple[int, ...], dims: tuple[int, ...], target: Target = TARGET) -> Schedule:
    b = Body(*shape)
    kept = [k for k in range(len(shape)) if k not in dims]
    b.store("Y", [b.at[k] for k in kept], b.reduce("sum", b.load("X", *b.at), *dims))
    return chosen(b, dense("X", "float32", shape), dense("Y", "float32", [shape[k] for k in kept]), target=target)


def softmax(rows: int, width: int, dim: int) -> Schedule:
    b = Body(rows, width)
    x = b.load("X", *b.at)
    e = b.op("exp", b.op("sub", x, b.reduce("max", x, dim)))
    b.store("Y", b.at, b.op("div", e, b.reduce("sum", e, dim)))
    return chosen(b, dense("X", "float32", (rows, width)), dense("Y", "float32", (rows, width)))


def test_pointwise_is_one_flat_loop() -> None:
    b = Body(6, 7)
    b.store("Y", b.at, b.load("X", *b.at))
    schedule = chosen(b, dense("X", "float32", (6, 7)), dense("Y", "float32", (6, 7)))
    assert (schedule.kind, schedule.outer, schedule.inner, schedule.vector) == ("pointwise", ("i0",), (), "i0")


def test_rows_are_shared_and_reduced_inside() -> None:
    schedule = reduction((64, 500), (1,))
    assert (schedule.kind, schedule.outer, schedule.inner) == ("rows", ("i0",), ("i1",))


def test_a_full_sum_is_shared_too() -> None:
    schedule = reduction((64, 500), (0, 1))
    assert (schedule.kind, schedule.outer) == ("mixed", ("i0",))


def test_column_sums_stream_rows() -> None:
    schedule = reduction((640, 500), (0,))
    assert (schedule.kind, schedule.outer, schedule.vector) == ("mixed", ("i0",), "i1")


def test_middle_sums_keep_the_contiguous_axis() -> None:
    schedule = reduction((64, 50, 40), (1,))
    assert (schedule.kind, schedule.outer, schedule.vector) == ("columns", ("i0",), "i2")
    assert dict(schedule.tile)["i2"] >= 40


def test_softmax_keeps_its_exponentials() -> None:
    schedule = softmax(64, 500, 1)
    assert schedule.kind == "rows"
    assert len(schedule.kept) == 1


def test_a_row_beyond_the_cache_is_computed_again() -> None:
    assert softmax(64, 4_000_000, 1).kept == ()


def test_softmax_down_the_columns_shares_blocks_of_columns() -> None:
    schedule = softmax(500, 640, 0)
    assert (schedule.kind, schedule.vector) == ("columns", "i1")
    assert dict(schedule.tile)["i1"] * TARGET.processors <= 640 + 64


def test_transposed_operands_are_tiled() -> None:
    b = Body(200, 300)
    b.store("Y", b.at, b.op("add", b.load("X", *b.at), b.load("Z", b.at[1], b.at[0])))
    shapes = (("X", (200, 300)), ("Z", (300, 200)), ("Y", (200, 300)))
    schedule = chosen(b, *(dense(n, "float32", s) for n, s in shapes))
    assert [a for a, _ in schedule.tile] == ["i0", "i1"]


@pytest.mark.parametrize(("width", "kind"), [(64, "columns"), (1, "serial")])
def test_scatter_runs_in_order_where_it_may_collide(width: int, kind: str) -> None:
    b = Body(50, width)
    i = b.load("I", b.at[0], dtype="int64")
    b.store("Y", (b.loaded(i, 9), b.at[1]), b.load("G", *b.at), mode="add")
    buffers = (dense("I", "int64", (50,)), dense("G", "float32", (50, width)), dense("Y", "float32", (9, width)))
    assert chosen(b, *buffers).kind == kind


@pytest.mark.parametrize(("costly", "vector"), [(False, None), (True, "i1")])
def test_a_scatter_that_computes_little_takes_no_vectors_apart(costly: bool, vector: str | None) -> None:
    b = Body(50, 64)
    g = b.op("mul", b.load("G", *b.at), 0.5)
    value = b.op("tanh", g) if costly else g
    b.store("Y", (b.at[0], b.loaded(b.load("I", *b.at, dtype="int64"), 9)), value, mode="add")
    buffers = (dense("I", "int64", (50, 64)), dense("G", "float32", (50, 64)), dense("Y", "float32", (50, 9)))
    schedule = chosen(b, *buffers)
    assert (schedule.kind, schedule.outer, schedule.vector) == ("pointwise", ("i0",), vector)


def test_overlapping_windows_are_not_shared() -> None:
    b = Body(50, 30)
    b.store("Y", (b.at[0] + b.at[1],), b.load("G", *b.at), mode="add")
    assert chosen(b, dense("G", "float32", (50, 30)), dense("Y", "float32", (80,))).kind == "serial"


def test_no_vectors_without_registers() -> None:
    assert reduction((64, 500), (1,), cpu("plain", 2)).vector is None


def test_unsigned_words_are_computed_one_by_one() -> None:
    b = Body(64)
    b.store("Y", b.at, b.load("X", *b.at, dtype="uint32"))
    assert chosen(b, dense("X", "uint32", (64,)), dense("Y", "uint32", (64,))).vector is None


def costly_softmax(shape: tuple[int, int], dim: int, op: str) -> Schedule:
    b = Body(*shape)
    x = b.op(op, b.load("X", *b.at))
    b.store("Y", b.at, b.op("sub", x, b.reduce("max", x, dim)))
    x, y = (dense(name, "float32", shape) for name in "XY")
    return chosen(b, x, y, target=cpu("avx2", 1))


@pytest.mark.parametrize(
    ("shape", "dim", "op", "kept"),
    [
        ((1, 500_000), 1, "erf", 1),  # 2 MB: read from the last-level cache sooner than computed again
        ((1, 500_000), 1, "sqrt", 0),
        ((1, 4_000_000), 1, "erf", 0),  # more than is kept
        ((17, 14_280), 0, "erf", 1),  # columns are gone over in tiles, which fit where whole rows would not
    ],
)
def test_costly_values_of_long_rows_are_kept(shape: tuple[int, int], dim: int, op: str, kept: int) -> None:
    assert len(costly_softmax(shape, dim, op).kept) == kept
