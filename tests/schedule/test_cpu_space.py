"""Candidates of CPU kernels: ranked, verified, and only such as round alike where that is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.base.target import cpu
from lamina.ir.plan import Kernel, Plan, Schedule
from lamina.ir.plan_verify import verify_plan
from lamina.lower.to_loops import lower
from lamina.schedule.cpu_space import MOST, Ranked, candidates, choose, label_of, on_one_thread
from lamina.schedule.flatten import flatten
from lamina.schedule.fuse import fuse
from lamina.schedule.plan import make_plan
from tests.codegen.harness import dense
from tests.codegen.writer import Body
from tests.lower.torch_private import traced

TARGET = cpu("avx2", 2)


def planned(function: Callable[..., Any], *arguments: Tensor) -> tuple[Plan, Kernel]:
    plan = make_plan(fuse(lower(traced(function, arguments), "test")), TARGET)
    (kernel,) = plan.kernels
    return plan, kernel


def found(function: Callable[..., Any], *arguments: Tensor, exact: bool = False, most: int = MOST) -> list[Ranked]:
    """The candidates of the one kernel of a function, each verified as a part of its plan."""
    plan, kernel = planned(function, *arguments)
    dtypes = {f"b{k}": d for k, d in enumerate(kernel.dtypes)}
    (nest,) = kernel.nests
    ranked = candidates(nest, dtypes, TARGET, most=most, exact=exact)
    assert ranked[0].schedule == kernel.schedules[0]
    assert len({label_of(r.schedule) for r in ranked}) == len({r.schedule for r in ranked}) == len(ranked) <= most
    for one in ranked:
        verify_plan(replace(plan, kernels=(replace(kernel, schedules=(one.schedule,)),)))
        assert one.microseconds > 0
    return ranked


def column_sums(x: Tensor) -> Tensor:
    return x.sum(0)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def transposed(x: Tensor) -> Tensor:
    return x.t() + x


def kinds(ranked: list[Ranked]) -> set[str]:
    return {r.schedule.kind for r in ranked}


def test_reductions_are_shared_or_not() -> None:
    assert kinds(found(column_sums, torch.zeros(2048, 300), most=20)) >= {"mixed", "columns"}
    assert kinds(found(lambda x: x.sum(-1), torch.zeros(2048, 300), most=20)) >= {"rows", "mixed"}


def test_sums_have_more_and_fewer_accumulators() -> None:
    ranked = found(lambda x: x.sum(-1), torch.zeros(64, 4096), most=20)
    assert {r.schedule.unroll for r in ranked} >= {0, 2, 8}


def test_rows_keep_more_or_nothing_and_are_prefetched_or_not() -> None:
    ranked = found(softmax, torch.zeros(512, 4096), most=20)
    first = ranked[0].schedule
    assert first.kept
    assert any(not r.schedule.kept for r in ranked)
    assert {r.schedule.prefetch for r in ranked} == {False, True}


def test_turned_operands_have_tiles_of_other_sides_or_none() -> None:
    ranked = found(transposed, torch.zeros(1024, 1024), most=20)
    assert {tuple(size for _, size in r.schedule.tile) for r in ranked} >= {(64, 64), (32, 32)}


def test_stores_past_the_caches_are_for_what_fills_them() -> None:
    assert not any(r.schedule.nontemporal for r in found(transposed, torch.zeros(512, 512), most=30))
    assert any(r.schedule.nontemporal for r in found(transposed, torch.zeros(4096, 4096, device="meta"), most=30))


def test_one_thread_and_all_of_them_are_tried_where_the_model_does_not_know() -> None:
    ranked = found(softmax, torch.zeros(64, 100), most=30)
    assert len({r.schedule.parallel for r in ranked}) == 2


@pytest.mark.parametrize("most", [2, 4, 8])
def test_one_thread_is_always_timed_where_threads_share(most: int) -> None:
    first, *others = [r.schedule for r in found(softmax, torch.zeros(4096, 1000), most=most)]
    assert on_one_thread(first) in others


@pytest.mark.parametrize("function", [column_sums, softmax])
def test_sums_that_must_not_change_keep_their_order(function: Callable[..., Any]) -> None:
    """Threads that share a reduction, accumulators and shapes stay as they are."""
    ranked = found(function, torch.zeros(1024, 512), exact=True, most=30)
    first = ranked[0].schedule
    for one in ranked:
        s = one.schedule
        assert (s.kind, s.outer, s.inner, s.vector, s.unroll) == (
            first.kind,
            first.outer,
            first.inner,
            first.vector,
            first.unroll,
        )
        assert s.kind != "mixed" or s.parallel == first.parallel


def test_what_is_read_and_written_keeps_its_loops() -> None:
    """Another order of its loops could read what has been overwritten."""
    body = Body(64, 96)
    value = body.op("add", body.load("X", body.at[0], body.at[1]), body.load("T", body.at[1], body.at[0]))
    body.store("X", body.at, value)
    buffers = {b.name: b for b in (dense("X", "float32", (64, 96)), dense("T", "float32", (96, 64)))}
    flat = flatten([body.nest()], buffers)
    ranked = candidates(flat.nests[0], {f"b{k}": d for k, d in enumerate(flat.dtypes)}, TARGET, most=30)
    assert len({(r.schedule.outer, r.schedule.inner, r.schedule.tile) for r in ranked}) == 1


def test_places_that_are_written_twice_keep_their_order() -> None:
    """The last value stored counts."""
    body = Body(64, 96)
    body.store("Y", [body.at[1]], body.load("X", *body.at))
    buffers = {b.name: b for b in (dense("X", "float32", (64, 96)), dense("Y", "float32", (96,)))}
    flat = flatten([body.nest()], buffers)
    ranked = candidates(flat.nests[0], {f"b{k}": d for k, d in enumerate(flat.dtypes)}, TARGET, most=30)
    assert len({(r.schedule.outer, r.schedule.inner, r.schedule.tile) for r in ranked}) == 1


def scheduled(rows: int, columns: int, transposed_loads: int, dtype: str = "float32") -> Schedule:
    """The schedule, where nothing is measured, of a sum of operands that lie along the other axis than the result."""
    body = Body(rows, columns)
    value = body.load("X0", body.at[1], body.at[0])
    for number in range(1, transposed_loads):
        value = body.op("add", value, body.load(f"X{number}", body.at[1], body.at[0]))
    body.store("Y", body.at, value)
    buffers = [dense(f"X{number}", dtype, (columns, rows)) for number in range(transposed_loads)]
    flat = flatten([body.nest()], {b.name: b for b in (*buffers, dense("Y", dtype, (rows, columns)))})
    return choose(flat.nests[0], {f"b{k}": d for k, d in enumerate(flat.dtypes)}, TARGET)


def test_a_short_axis_fills_no_vectors() -> None:
    """The rules count contiguous accesses; the cost model sees that most lanes would stay empty."""
    assert scheduled(700, 3, 1).vector == "i0"
    assert scheduled(700, 700, 1).vector == "i1"


def _vector_extent(function: Callable[..., Any]) -> int:
    plan = make_plan(fuse(lower(traced(function, (torch.zeros(8, 4, 2048, 3),)), "test")), TARGET)
    kernel = plan.kernels[0]
    (schedule,) = kernel.schedules
    assert isinstance(schedule, Schedule)
    assert schedule.vector is not None
    return next(int(a.extent.const) for a in kernel.nests[0].axes if a.name == schedule.vector)


def test_a_short_axis_that_is_kept_gives_way_to_a_longer_one() -> None:
    """Of rows of three that are added up over all else, vectors are filled along another axis, summed or not."""
    assert _vector_extent(lambda x: x.exp().sum((0, 2))) == 2048


def test_rows_of_halves_keep_what_was_widened() -> None:
    def weighted(g: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        product = g.float() * y.float()
        return (product - y.float() * product.sum(-1, keepdim=True)).to(g.dtype)

    def kept(dtype: torch.dtype) -> int:
        _, kernel = planned(weighted, *[torch.zeros(512, 1024, dtype=dtype)] * 2)
        (schedule,) = kernel.schedules
        assert isinstance(schedule, Schedule)
        return len(schedule.kept)

    assert kept(torch.bfloat16) == 1
    assert kept(torch.float32) == 0
