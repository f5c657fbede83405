"""Long scans cut into parts for a GPU, evaluated: values stay, and programs are enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from lamina.base.target import Target, nvidia
from lamina.ir.loops import LoopProgram, Nest, Scan
from lamina.ir.loops_interp import run_program
from lamina.ir.loops_verify import verify_program
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import fuse
from lamina.schedule.gpu_split import spread
from tests.lower.torch_private import traced

TARGET = nvidia(approximate=True)


def on(program: LoopProgram, device: str) -> LoopProgram:
    return replace(program, buffers=tuple(replace(b, device=device) for b in program.buffers))


def cut(function: Callable[..., Any], args: list[Tensor], target: Target = TARGET) -> LoopProgram:
    """The fused program cut for a GPU, whose values are checked."""
    fused = fuse(on(lower(traced(function, args), "t"), "cuda:0")).program
    made, _ = spread(fused, target)
    verify_program(made)
    for got, want in zip(run_program(on(made, "cpu"), args), function(*args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3, equal_nan=True)
    return made


def scans(program: LoopProgram) -> list[int]:
    """The points of each scan, in order."""
    return [
        next(a.extent.const for a in step.axes if a.name == e.axis)
        for step in program.steps
        if isinstance(step, Nest)
        for e in step.body
        if isinstance(e, Scan)
    ]


LONG: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "columns": (lambda x: (x.cumsum(0),), (32768, 3)),
    "products": (lambda x: ((x * 1e-3 + 0.9995).cumprod(0),), (100003,)),
    "counts": (lambda x: ((x > 0.5).cumsum(0) - 1,), (32768, 3)),
    "rows": (lambda x: (x.t().contiguous().cumsum(1) * 2 + x.t(),), (65536, 3)),
    "a row": (lambda x: (x.reshape(-1).cumsum(0),), (40000, 3)),
    "a row of no equal parts": (lambda x: (x.cumsum(0),), (100003,)),
    "from its end": (lambda x: (x.flip(0).cumsum(0).flip(0),), (100003,)),
    "from their ends": (lambda x: (x.flip(0).cumsum(0).flip(0),), (30011, 3)),
    "logarithms": (lambda x: (x.logcumsumexp(1),), (3, 40001)),
    "in the middle": (lambda x: (x.cumsum(1),), (2, 30001, 3)),
    "two": (lambda x: (x.cumsum(0), (x * 2).cumsum(0)), (65536,)),
    "of places that are checked": (lambda x: (x[(x * 60000).long()].cumsum(0),), (100003,)),
    "one of another": (lambda x: ((x.cumsum(0) * 1e-5).cumsum(0),), (65537,)),
    "greatest": (lambda x: tuple(x.round(decimals=3).cummax(0)), (65537,)),
    "least": (lambda x: tuple(x.cummin(0)), (50001, 2)),
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_scan_is_one_of_parts(name: str) -> None:
    function, shape = LONG[name]
    points = scans(cut(function, [torch.rand(shape, generator=torch.Generator().manual_seed(0))]))
    assert len(points) > 1
    assert max(points) <= 4096


@pytest.mark.parametrize("name", ["cumsum", "logcumsumexp", "cummax", "cummin"])
def test_values_that_are_not_finite(name: str) -> None:
    x = torch.rand(6, 40001, generator=torch.Generator().manual_seed(0))
    for row, value in enumerate([float("inf"), -float("inf"), float("nan")]):
        x[row, 0] = x[row + 3, 30000] = value
    results = [0, 1] if name.startswith("cumm") else [...]
    assert len(scans(cut(lambda x: tuple(getattr(x, name)(1)[r] for r in results), [x]))) > 1


@pytest.mark.parametrize("shape", [(70001,), (30011, 3)])
@pytest.mark.parametrize("name", ["cumsum", "logcumsumexp"])
def test_scans_from_the_end(shape: tuple[int, ...], name: str) -> None:
    made = cut(lambda x: (getattr(x.flip(0), name)(0).flip(0),), [torch.rand(shape)])
    found = [e for step in made.steps if isinstance(step, Nest) for e in step.body if isinstance(e, Scan)]
    assert len(found) > 1
    assert all(e.reverse == (len(shape) == 1) for e in found)  # columns are gone through from the start at no cost


def test_nothing_before_the_first_parts() -> None:
    x = torch.full((65537,), -float("inf"))
    x[60000:] = 0.5
    assert len(scans(cut(lambda x: (x.logcumsumexp(0),), [x]))) > 1


@pytest.mark.parametrize("size", [1, 4095, 4096, 70001])
@pytest.mark.parametrize("flipped", [False, True])
def test_a_row_of_unknown_length_is_cut(size: int, flipped: bool) -> None:
    def sums(x: Tensor) -> Tensor:
        return x.flip(0).cumsum(0).flip(0) if flipped else x.cumsum(0)

    program = lower(traced(sums, [torch.rand(3000)], symbolic=True), "t")
    made, decisions = spread(on(fuse(program).program, "cuda:0"), TARGET)
    verify_program(made)
    assert any(d.taken and "scan in parts" in d.subject for d in decisions)
    x = torch.rand(size)
    (got,) = run_program(on(made, "cpu"), [x])
    torch.testing.assert_close(got, sums(x), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: (x.cumsum(0),), (1024, 3)),  # short
        (lambda x: (x.cumsum(0),), (16384,)),  # a tile
        (lambda x: (x.cumsum(0),), (1024, 4096)),  # as much memory as is moved in that time
        (lambda x: (x.cumsum(1),), (600, 20000)),  # enough rows for all processors
    ],
)
def test_a_scan_stays_whole(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    along = 1 if shape == (600, 20000) else 0
    assert scans(cut(function, [torch.rand(shape)])) == [shape[along]]


def test_instructions_beside_a_scan_count() -> None:
    """Rows of 80 programs are left whole where memory is all that they wait for, and cut where much is computed."""

    def few(x: Tensor) -> tuple[Tensor, ...]:
        return (x.cumsum(1),)

    def many(x: Tensor) -> tuple[Tensor, ...]:
        return (torch.atan2(x.erf(), x.abs() + 0.5).atan().cumsum(1).sin().erf(),)

    x = torch.zeros(80, 100_000)
    counts = []
    for function in (few, many):
        program = fuse(on(lower(traced(function, [x]), "t"), "cuda:0")).program
        counts.append(len(scans(spread(program, TARGET)[0])))
    assert counts[0] == 1
    assert counts[1] > 1


def test_sums_of_floats_keep_eagers_order_where_that_is_asked_for() -> None:
    exact = nvidia(approximate=False)
    x = torch.rand(65536)
    fused = on(fuse(lower(traced(lambda x: (x.cumsum(0),), [x]), "t")).program, "cuda:0")
    made, decisions = spread(fused, exact)
    assert made is not None
    assert scans(made) == [65536]
    assert [d.reason for d in decisions] == ["the order in which its floats are combined is kept"]
    assert len(scans(cut(lambda x: ((x > 0.5).cumsum(0),), [x], exact))) == 2
