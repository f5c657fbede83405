"""Flat form: meaning unchanged, equal work gives equal values, few axes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from lamina.ir.index import Axis, Expr, Size, as_expr
from lamina.ir.loops import Buffer, Load, Nest, Reduce, Store
from lamina.ir.loops_interp import run_nest
from lamina.schedule.flatten import Flat, flatten
from tests.codegen.harness import dense, empty
from tests.codegen.writer import Body
from tests.effort import executed
from tests.processes import python


def flat(body: Body, *buffers: Buffer) -> Flat:
    return flatten([body.nest()], {b.name: b for b in buffers})


def axes(made: Flat) -> list[str]:
    return [str(a.extent) for a in made.nests[0].axes]


def copied(shape: tuple[Expr | int, ...], strides: tuple[int, ...] | None = None, name: str = "X") -> Flat:
    """A copy from a strided buffer into a dense one."""
    b = Body(*shape)
    b.store("Y", b.at, b.load(name, *b.at))
    source = dense(name, "float32", shape)
    if strides is not None:
        source = Buffer(name, "float32", source.shape, tuple(map(as_expr, strides)))
    return flat(b, source, dense("Y", "float32", shape))


def meaning(body: Body, buffers: list[Buffer], inputs: dict[str, torch.Tensor]) -> None:
    """The flat nest stores what the nest itself stores."""
    table = {b.name: b for b in buffers}
    made = flatten([body.nest()], table)
    first = {b.name: inputs.get(b.name, empty(b, {}).zero_()).clone() for b in buffers}
    second = {n: t.clone() for n, t in first.items()}
    run_nest(body.nest(), first, {})
    run_nest(made.nests[0], {f"b{k}": second[n].view(-1) for k, n in enumerate(made.buffers)}, {})
    for name in table:
        torch.testing.assert_close(second[name], first[name], rtol=0, atol=0, equal_nan=True)


def test_dense_axes_become_one() -> None:
    assert axes(copied((3, 4, 5))) == ["60"]


def test_padding_keeps_axes_apart() -> None:
    assert axes(copied((3, 4, 5), (40, 5, 1))) == ["3", "20"]


def test_symbolic_sizes_collapse() -> None:
    assert axes(copied((as_expr(Size("n")), as_expr(Size("m")), 5))) == ["s0*s1*5"]


def test_axes_of_one_point_vanish() -> None:
    assert axes(copied((1, 6, 1), (77, 2, 9))) == ["6"]


def test_fast_axis_comes_last() -> None:
    b = Body(4, 6)
    b.store("Y", (b.at[1], b.at[0]), b.load("X", b.at[1], b.at[0]))
    made = flat(b, dense("X", "float32", (6, 4)), dense("Y", "float32", (6, 4)))
    assert axes(made) == ["24"]


def test_reduced_and_kept_axes_stay_apart() -> None:
    b = Body(4, 6, 5)
    b.store("Y", b.at[:1], b.reduce("sum", b.load("X", *b.at), 1, 2))
    made = flat(b, dense("X", "float32", (4, 6, 5)), dense("Y", "float32", (4,)))
    assert axes(made) == ["4", "30"]
    reduce = next(e for e in made.nests[0].body if isinstance(e, Reduce))
    assert reduce.axes == ("i1",)


def test_equal_layers_share_a_kernel() -> None:
    assert copied((8, 16), (20, 1), "first") == Flat(
        copied((8, 16), (20, 1), "second").nests, ("first", "Y"), ("float32", "float32"), ()
    )
    one, two = copied((as_expr(Size("a")), 7)), copied((as_expr(Size("b")), 7))
    assert one.nests == two.nests
    assert one.sizes != two.sizes


def test_names_are_canonical() -> None:
    made = copied((8, 16), (20, 1))
    body = made.nests[0].body
    assert isinstance(body[0], Load)
    assert body[0].buffer == "b0"
    assert body[0].out == "v0"
    assert isinstance(body[1], Store)
    assert body[1].buffer == "b1"
    assert all(len(e.index) == 1 for e in body if isinstance(e, Load | Store))


def test_wrap_around_splits_the_axis() -> None:
    b = Body(6, 64)
    b.store("Y", b.at, b.load("X", b.at[0], (b.at[1] + 32) % 64))
    made = flat(b, dense("X", "float32", (6, 64)), dense("Y", "float32", (6, 64)))
    assert axes(made)[-1] == "32"
    load = next(e for e in made.nests[0].body if isinstance(e, Load))
    last = made.nests[0].axes[-1]
    assert load.index[0].coefficient(Axis(last.name, last.extent)) == 1


@pytest.mark.parametrize("shift", [0, 8, 32, 40])
@pytest.mark.parametrize("width", [16, 32, 64])
def test_wrap_around_keeps_its_meaning(shift: int, width: int) -> None:
    b = Body(3, 64)
    x = b.load("X", b.at[0], (b.at[1] + shift) % width + (b.at[1] // width) * width)
    b.store("Y", b.at, b.op("add", x, b.index(b.at[1] // width, "float32")))
    b.store("S", b.at[:1], b.reduce("sum", x, 1))
    buffers = [dense("X", "float32", (3, 64)), dense("Y", "float32", (3, 64)), dense("S", "float32", (3,))]
    meaning(b, buffers, {"X": torch.arange(192.0).reshape(3, 64)})


def test_position_of_the_maximum_counts_as_before() -> None:
    b = Body(3, 4, 5)
    b.store("Y", b.at[1:2], b.reduce("argmax", b.load("X", *b.at), 2, 0))
    x = torch.randn(3, 4, 5)
    meaning(b, [dense("X", "float32", (3, 4, 5)), dense("Y", "int64", (4,))], {"X": x})


def test_reductions_over_one_point() -> None:
    b = Body(5, 1)
    x = b.load("X", *b.at)
    mean, squares = b.reduces("welford", x, 1)
    b.store("M", b.at[:1], mean)
    b.store("Q", b.at[:1], squares)
    b.store("A", b.at[:1], b.reduce("argmax", x, 1))
    names = [("X", "float32", (5, 1)), ("M", "float32", (5,)), ("Q", "float32", (5,)), ("A", "int64", (5,))]
    x0 = torch.tensor([[1.0], [float("inf")], [float("nan")], [-2.0], [0.0]])
    meaning(b, [dense(n, d, s) for n, d, s in names], {"X": x0})


def _work() -> int:
    b = Body(8, 128, 256)
    x = b.load("X", *b.at)
    mean, squares = b.reduces("welford", x, 2)
    y = b.op("mul", b.op("sub", x, mean), b.op("rsqrt", b.op("mul", squares, 1 / 256)))
    b.store("Y", b.at, b.op("mul", y, b.load("W", b.at[2])))
    nest: Nest = b.nest()
    table = {n: dense(n, "float32", s) for n, s in (("X", (8, 128, 256)), ("Y", (8, 128, 256)), ("W", (256,)))}
    flatten([nest], table)  # what is kept between calls is there
    return executed(lambda: flatten([nest], table))


def test_flattening_is_little_work() -> None:
    """In a process of its own: what other tests leave behind is no work of this one."""
    program = "from tests.schedule.test_flatten import _work; print(_work())"
    root = Path(__file__).parents[2]
    done = subprocess.run([*python(), "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20_000
