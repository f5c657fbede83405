"""Vectors whose elements lie in short rows: places that go on in the same way after every few points."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lamina.base.dtypes import torch_dtype
from lamina.base.target import Target, cpu
from lamina.ir.index import Axis, Expr, as_expr
from lamina.ir.periodic import periodic
from lamina.ir.stretches import jumps
from lamina.runtime.toolchain import ISAS, host_isa
from tests.codegen.harness import Case, build, call, case, dense, interpret
from tests.codegen.writer import Body

POINTS = 203
HERE = ISAS[ISAS.index(host_isa()) :][:2]
PLACES = {
    "windows": lambda f: f // 9 * 16 + f % 9 // 3 * 4 + f % 3 * 2,
    "rows": lambda f: f // 5 * 7 + f % 5,
    "repeated rows": lambda f: f // 7,
    "columns": lambda f: f % 5 + 3,
    "many columns": lambda f: f % 23,
    "columns that fall": lambda f: f % 7 * -2 + 12,
    "overlapping windows": lambda f: f // 9 * 5 + f % 9 // 3 + f % 3,
    "far apart": lambda f: f // 3 * 100 + f % 3 * 30,
    "turned": lambda f: (f + 11) % 64,
    "rolled": lambda f: (f + 150) % POINTS,
    "pieces of rows": lambda f: (f + 5) // 70 * 97 + (f + 5) % 70,
    "rows back to front": lambda f: f % 68 - f // 68 * 68 + 136,
    "rows with gaps": lambda f: f + f // 48 * 3,
    "rolled rows": lambda f: f // 48 * 48 + (f + 17) % 48,
}
SOME = ("windows", "columns", "turned", "rolled", "pieces of rows", "rolled rows")
KINDS = {"float32": tuple(PLACES), **dict.fromkeys(("bfloat16", "float64", "bool"), SOME)}


@pytest.mark.parametrize("name", PLACES)
def test_places_are_those_of_the_expression(name: str) -> None:
    axis, other = Axis("f", as_expr(POINTS)), Axis("g", as_expr(4))
    expr: Expr = PLACES[name](as_expr(axis)) + as_expr(other) * 1000 - 2
    found = periodic(expr, axis)
    assert found is not None
    table = found.table(16)
    for point in range(POINTS - 16):
        quotient, rest = divmod(point, found.period)
        base = found.rest.evaluate({"g": 3}) + quotient * found.step
        assert [base + at for at in table[rest : rest + 16]] == [
            expr.evaluate({"f": point + k, "g": 3}) for k in range(16)
        ]


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("(f + 150) % 203", [203]),
        ("f // 48 * 100 + f % 48 + g", [48]),
        ("f + (f + g) // 32 * 5", [32]),
        ("f * 2 - (f + 3) % 40", [40]),
        ("f // 48 * 100 + f % 50", [48, 50]),
        ("f // 40 * 50 + (f + 7) % 40 + f // 80", []),
        ("(f + 150) % 203 * 2", []),
        ("(f * 2 + 150) % 203", []),
        ("f % 31 + g", []),
        ("f % 48 * n + f // 48", []),
        ("f * 3 + g", []),
        ("f + g", []),
        ("f // n + f", []),
    ],
)
def test_places_side_by_side_but_for_jumps(text: str, lengths: list[int]) -> None:
    axis = Axis("f", as_expr(POINTS))
    names = {"f": as_expr(axis), "g": as_expr(Axis("g", as_expr(9))), "n": as_expr(Axis("n", as_expr(9))) + 1}
    expr = eval(text, names)
    found = jumps(expr, axis, 32)
    assert sorted(jump.length for jump in found) == lengths
    for point in range(POINTS - 1) if found else ():
        here, there = {"f": point, "g": 4}, {"f": point + 1, "g": 4}
        if all(jump.number.evaluate(there) % jump.length for jump in found):
            assert expr.evaluate(there) == expr.evaluate(here) + 1


@pytest.mark.parametrize("text", ["f * 3 + g", "f // n", "(f + g) % 5", "f % 5 * g", "f % 5003"])
def test_places_that_do_not_repeat(text: str) -> None:
    axis = Axis("f", as_expr(POINTS * 1000))
    names = {"f": as_expr(axis), "g": as_expr(Axis("g", as_expr(9))), "n": as_expr(Axis("n", as_expr(9))) + 1}
    assert periodic(eval(text, names), axis) is None


def _case(name: str, kind: str, number: int, target: Target) -> Case:
    """``Y`` has what is read everywhere, ``Z`` what is read under a mask."""
    b = Body(as_expr(POINTS))
    place = PLACES[name](b.at[0])
    size = 1 + max(int(place.evaluate({"a0": k})) for k in range(POINTS))
    b.store("Y", b.at, b.load("X", place, dtype=kind))
    mask = b.op("gt", b.load("M", *b.at, dtype="float32"), 0.0, dtype="bool")
    b.store("Z", b.at, b.load("X", place, dtype=kind, mask=mask, fill=1))
    buffers = [dense("X", kind, (size,)), dense("M", "float32", (POINTS,))]
    return case(f"k{number}", [b.nest()], [*buffers, *(dense(n, kind, (POINTS,)) for n in "YZ")], target)


def _guarded(count: int, dtype: torch.dtype, first: bool) -> tuple[Tensor, mmap.mmap]:
    """Memory for so many elements between pages that must not be touched, ``first`` in its page or last."""
    page = mmap.PAGESIZE
    length = -(-count * dtype.itemsize // page) * page
    memory = mmap.mmap(-1, length + 2 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for where in (base, base + page + length):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(where), page, 0) == 0
    offset = page if first else page + length - count * dtype.itemsize
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=offset), memory


@pytest.fixture(scope="module", params=HERE)
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    target = cpu(request.param, 1)
    keys = [(name, kind) for kind, names in KINDS.items() for name in names]
    made = {key: _case(*key, number, target) for number, key in enumerate(keys)}
    return made, build(list(made.values()), target, Path(tmp_path_factory.mktemp(request.param)))


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("kind", KINDS)
def test_loads(kernels: tuple[dict[tuple[str, str], Case], ctypes.CDLL], kind: str) -> None:
    made, library = kernels
    dtype = torch_dtype(kind)
    for name in KINDS[kind]:
        one = made[name, kind]
        count = int(one.buffers["X"].shape[0].const)
        values = torch.randint(
            0, 2 if kind == "bool" else 100, (count,), generator=torch.Generator().manual_seed(0)
        ).to(dtype)
        for first in (True, False):
            x, _memory = _guarded(count, dtype, first)
            x.copy_(values)
            mask = torch.randn(POINTS, generator=torch.Generator().manual_seed(1)) - 0.5 * first
            sides = [{"X": x, "M": mask, **{n: torch.zeros(POINTS, dtype=dtype) for n in "YZ"}} for _ in range(2)]
            assert call(one, library, sides[0], {}) == 0
            interpret(one, sides[1], {})
            for n in "YZ":
                assert torch.equal(sides[0][n].float(), sides[1][n].float()), (name, n)
