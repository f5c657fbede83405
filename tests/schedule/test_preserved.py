"""Scheduling that would add more or less often, or set other numbers of places, is an internal failure."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import lamina
from benchmarks.gpu_idle import planned
from benchmarks.sweeping.grammar import cases
from lamina.errors import InvalidIR, StageFailed
from lamina.ir.index import Axis, Expr, Loaded, Size, as_expr
from lamina.ir.loops import Buffer, Compute, Constant, Equation, Index, LibraryCall, Load, LoopProgram, Nest, Store
from lamina.schedule import join_groups, narrow
from lamina.schedule.preserved import verify_kernel, verify_same_stores

_N, _M = as_expr(Size("n")), as_expr(6)


def _buffer(name: str, *shape: Expr, kind: str = "output") -> Buffer:
    strides = [as_expr(1)]
    for n in reversed(shape[1:]):
        strides.insert(0, strides[0] * n)
    return Buffer(name, "float32", shape, tuple(strides) if shape else (), "cpu", kind)


def _program(buffers: Sequence[Buffer], *nests: Nest) -> LoopProgram:
    return LoopProgram("graph", (), tuple(buffers), nests, ())


def _copy(rows: Expr, columns: Expr, name: str = "copy", target: str = "out") -> Nest:
    i, j = Axis("i", rows), Axis("j", columns)
    place = (as_expr(i), as_expr(j))
    return Nest(name, (i, j), (Load("v", "x", place, "float32"), Store(target, place, "v", origin=("copy",))))


def _adding(value_at: str, rows: Expr = _N, origin: tuple[str, ...] = ("index_put",)) -> Nest:
    """A nest that adds to one place: for each row, or as its value does not vary, once."""
    i = Axis("i", rows)
    place = {"row": (as_expr(i), as_expr(0)), "one": (as_expr(0), as_expr(0))}[value_at]
    body = (Load("v", "x", place, "float32"), Store("out", (as_expr(0), as_expr(0)), "v", "add", origin=origin))
    return Nest("adding", (i,), body)


_BUFFERS = (_buffer("x", _N, _M, kind="input"), _buffer("out", _N, _M))


def test_equal_programs_pass() -> None:
    for nest in (_copy(_N, _M), _adding("row"), _adding("one")):
        verify_same_stores(_program(_BUFFERS, nest), _program(_BUFFERS, nest))


def test_an_axis_in_two_parts_is_the_same() -> None:
    halves = [_copy(_N, as_expr(2), "one"), _copy(_N, as_expr(4), "two")]
    verify_same_stores(_program(_BUFFERS, _copy(_N, _M)), _program(_BUFFERS, *halves))


@pytest.mark.parametrize(
    "after", [[_copy(_N, as_expr(5))], [_copy(_N, _M), _copy(_N, _M, "again")], [], [_copy(_N - 1, _M)]]
)
def test_places_that_are_lost_or_set_twice_are_found(after: list[Nest]) -> None:
    with pytest.raises(InvalidIR, match="stores set out at"):
        verify_same_stores(_program(_BUFFERS, _copy(_N, _M)), _program(_BUFFERS, *after))


def test_what_is_written_in_place_is_a_part() -> None:
    before, after = _program(_BUFFERS, _copy(_N, _M)), _program(_BUFFERS, _copy(_N, as_expr(1)))
    verify_same_stores(before, after, {"out"})


@pytest.mark.parametrize(
    "after", [[_adding("one")], [_adding("row", _N - 1)], [_adding("row"), _adding("row")], []], ids=str
)
def test_additions_that_are_lost_or_made_twice_are_found(after: list[Nest]) -> None:
    with pytest.raises(InvalidIR, match="the stores of index_put add at"):
        verify_same_stores(_program(_BUFFERS, _adding("row")), _program(_BUFFERS, *after))


def test_additions_to_what_nobody_reads_may_go() -> None:
    temporary = (_BUFFERS[0], replace(_BUFFERS[1], kind="temp"))
    verify_same_stores(_program(temporary, _adding("row")), _program(temporary))


def test_kernels_are_compared_in_their_own_names() -> None:
    i, j = Axis("i0", as_expr(Size("s0"))), Axis("i1", as_expr(Size("s0")) * 6)

    def flat(axis: Axis) -> Nest:
        return Nest("nest", (axis,), (Constant("v", 0.0, "float32"), Store("b0", (as_expr(axis),), "v")))

    wanted = Nest("copy", _copy(_N, _M).axes, (Constant("v", 0.0, "float32"), _copy(_N, _M).body[1]))
    verify_kernel([wanted], [flat(i)], ["out"], [_N * 6])
    verify_kernel([wanted], [flat(j)], ["out"], [_N])
    for axis, sizes in ((i, [_N]), (j, [_N * 6])):
        with pytest.raises(InvalidIR, match=r"stores set out at n\*6 points before"):
            verify_kernel([wanted], [flat(axis)], ["out"], sizes)


def _places_of_one_number(x: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    zeros = torch.zeros(3, dtype=torch.long)
    first, rows = x - 1.0, x[:, None] * value[:2]
    first[zeros] += 0.25
    rows[zeros] += 0.25
    return first, rows, x.index_put((zeros,), value), x.index_put((zeros,), torch.tensor(1.5), accumulate=True)


@pytest.mark.parametrize("size", [1, 4])
def test_places_known_to_be_one_are_set_once(size: int) -> None:
    for trained in (False, True):  # then the places are kept for the backward pass
        x, value = torch.randn(size, requires_grad=trained), torch.randn(3)
        results = lamina.compile(_places_of_one_number, options={"strict": True})(x, value)
        for result, eager in zip(results, _places_of_one_number(x, value), strict=True):
            torch.testing.assert_close(result, eager)


@pytest.mark.parametrize("known", [True, False])
def test_computed_places_are_set_as_often_unless_they_are_known_to_be_one(known: bool) -> None:
    i, at = Axis("i", _M), as_expr(Loaded("at", _N))
    fill = Nest("fill", (i,), (Constant("zero", 0, "int64"), Store("places", (as_expr(i),), "zero")))
    load = Load("at", "places", (as_expr(i),), "int64")
    put = Nest("put", (i,), (load, Constant("v", 1.0, "float32"), Store("out", (at,), "v")))
    once = Nest("once", (), (Constant("at", 0, "int64"), Constant("v", 1.0, "float32"), Store("out", (at,), "v")))
    buffers = (_buffer("places", _M, kind="temp" if known else "input"), _buffer("out", _N))
    before, after = _program(buffers, *([fill] if known else []), put), _program(buffers, once)
    if known:
        verify_same_stores(before, after)
        return
    with pytest.raises(InvalidIR, match="stores set out at 6 points before scheduling and at 1 after"):
        verify_same_stores(before, after)


def _gathered(w: Tensor) -> Tensor:
    return w[torch.zeros(4, dtype=torch.long)].sum() * 0.5


@pytest.mark.parametrize("strict", [False, True])
def test_a_lost_axis_is_an_internal_failure(strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the conditions of fusion an addition is made once for four: the gradient is eager's all the same."""
    monkeypatch.setattr(join_groups, "_additions", lambda nest: Counter())
    monkeypatch.setattr(narrow, "additions", lambda nest: Counter())
    monkeypatch.setattr("lamina.schedule.inline.additions", lambda nest: Counter())
    monkeypatch.setattr("lamina.schedule.fold_predicates.additions", lambda nest: Counter())
    w = torch.randn(5, requires_grad=True)
    compiled = lamina.compile(_gathered, options={"compare_eager": "off", "strict": strict})
    if strict:
        with pytest.raises(StageFailed, match="add at 4 points before scheduling and at 1 after"):
            compiled(w).backward()
        return
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        compiled(w).backward()
    assert any("add at 4 points before scheduling" in str(w.message) for w in told)
    assert w.grad is not None
    assert torch.equal(w.grad, torch.tensor([2.0, 0, 0, 0, 0]))


def _masked(rows: int, origin: tuple[str, ...] = ("copy",), mode: str = "set") -> Nest:
    """Rows in parts, of which the last is not full."""
    i, j = Axis("i", as_expr(rows)), Axis("j", _M)
    place = (as_expr(i), as_expr(j))
    ask = (
        Index("at", as_expr(i), "int64"),
        Constant("end", 10, "int64"),
        Compute("inside", "lt", ("at", "end"), "bool"),
    )
    load = Load("v", "x", place, "float32", "inside", 0.0)
    return Nest("parts", (i, j), (*ask, load, Store("out", place, "v", mode, "inside", origin)))


def test_loops_with_a_mask_have_no_fewer_points() -> None:
    buffers = _buffer("x", as_expr(10), _M, kind="input"), _buffer("out", as_expr(10), _M)
    whole, added = _program(buffers, _copy(as_expr(10), _M)), _program(buffers, _adding("row", as_expr(10), ("copy",)))
    verify_same_stores(whole, _program(buffers, _masked(12)))
    with pytest.raises(InvalidIR, match="stores set out"):
        verify_same_stores(whole, _program(buffers, _masked(9)))
    verify_same_stores(added, _program(buffers, _masked(12, mode="add")))
    with pytest.raises(InvalidIR, match="the stores of copy add"):
        verify_same_stores(added, _program(buffers, _masked(1, mode="add")))


@pytest.mark.parametrize("mode", ["set", "add"])
def test_a_masked_store_may_not_be_lost_altogether(mode: str) -> None:
    buffers = _buffer("x", as_expr(10), _M, kind="input"), _buffer("out", as_expr(10), _M)
    masked = _program(buffers, _masked(12, mode=mode))
    verify_same_stores(masked, _program(buffers, _masked(8, mode=mode)))
    with pytest.raises(InvalidIR, match="at no after it"):
        verify_same_stores(masked, _program(buffers))
    with pytest.raises(InvalidIR, match="at no after it"):
        verify_kernel(masked.steps, [], [], [])


def test_stores_where_there_were_none_are_found() -> None:
    buffers = (*_BUFFERS, _buffer("other", _N, _M))
    before, both = _copy(_N, _M), [_copy(_N, _M), _copy(_N, _M, "more", "other")]
    with pytest.raises(InvalidIR, match="stores set other at no points before scheduling"):
        verify_same_stores(_program(buffers, before), _program(buffers, *both))
    verify_same_stores(_program(buffers, before), _program(buffers, *both), {"other"})
    called = LibraryCall("fill", "aten.zeros", (), (), ("other",))
    verify_same_stores(replace(_program(buffers, before), steps=(before, called)), _program(buffers, *both))
    masked = _program(buffers, _copy(as_expr(12), _M), replace(_masked(12), body=_to_other(_masked(12))))
    with pytest.raises(InvalidIR, match="stores set other at no points before scheduling"):
        verify_same_stores(_program(buffers, _copy(as_expr(12), _M)), masked)


def _to_other(nest: Nest) -> tuple[Equation, ...]:
    return tuple(replace(e, buffer="other") if isinstance(e, Store) else e for e in nest.body)


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("seed", [6050, 6051, 6053, 6054, 6055, 6056, 6057])  # of the next others are not lowered whole
def test_plans_for_gpus_pass(seed: int) -> None:
    """Reductions that are cut in parts that are not equal, with results that are stored on the way."""
    (case,) = cases(1, seed, 32.0)
    assert planned(case, "training").kernels
