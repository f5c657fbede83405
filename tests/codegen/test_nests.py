"""Whole nests of every kind against the interpreter: shapes, strides, element types, symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lamina.base.target import Target, cpu
from lamina.codegen.cpp.emit import emit
from lamina.ir.index import Size, as_expr
from lamina.ir.loops import Buffer
from lamina.runtime.toolchain import host_isa
from tests.codegen.harness import Case, both, build, call, case, dense
from tests.codegen.writer import Body

ISAS = [isa for isa in ("plain", "avx2") if isa == "plain" or host_isa() != "plain"]
Made = tuple[Case, dict[str, torch.Tensor], dict[str, int]]
RECIPES: dict[str, Callable[[str, Target], Made]] = {}


def recipe(make: Callable[..., tuple[Body, list[Buffer], dict[str, torch.Tensor], dict[str, int]]], name: str, *args):
    """Register a nest under a name."""

    def run(full: str, target: Target) -> Made:
        torch.manual_seed(0)
        body, buffers, inputs, sizes = make(*args)
        return case(full, [body.nest()], buffers, target), inputs, sizes

    RECIPES[name] = run


def table(*rows: tuple[str, str, tuple[object, ...]]) -> list[Buffer]:
    return [dense(name, dtype, shape) for name, dtype, shape in rows]  # type: ignore[arg-type]


def half(b: Body, value: str, dtype: str) -> str:
    return value if dtype == "float32" else b.op("cast", value, dtype=dtype)


def wide(b: Body, value: str, dtype: str) -> str:
    return value if dtype in ("float32", "float64") else b.op("cast", value, dtype="float32")


def softmax(n: int, c: int, dim: int, dtype: str, symbolic: bool = False):
    s, t = (Size("n", 1), Size("c", 1)) if symbolic else (n, c)
    b = Body(as_expr(s), as_expr(t))
    x = wide(b, b.load("X", *b.at, dtype=dtype), dtype)
    e = b.op("exp", b.op("sub", x, b.reduce("max", x, dim)))
    y = b.op("div", e, b.reduce("sum", e, dim))
    b.store("Y", b.at, half(b, y, dtype) if dtype != "float64" else y)
    x0 = (torch.randn(n, c) * 3).to(getattr(torch, dtype))
    if n * c:
        x0.view(-1)[0] = -float("inf")
        x0.view(-1)[-1] = float("nan")
    return b, table(("X", dtype, (s, t)), ("Y", dtype, (s, t))), {"X": x0}, {"n": n, "c": c}


def norm(n: int, c: int, dtype: str, symbolic: bool = False):
    s, t = (Size("n", 1), Size("c", 1)) if symbolic else (n, c)
    b = Body(as_expr(s), as_expr(t))
    x = wide(b, b.load("X", *b.at, dtype=dtype), dtype)
    mean, squares = b.reduces("welford", x, 1)
    rstd = b.op("rsqrt", b.op("add", b.op("div", squares, b.index(as_expr(t), "float32")), 1e-5))
    y = b.op("mul", b.op("sub", x, mean), rstd)
    y = b.op("add", b.op("mul", y, wide(b, b.load("W", b.at[1], dtype=dtype), dtype)), b.load("B", b.at[1]))
    b.store("Y", b.at, half(b, y, dtype))
    b.store("M", (b.at[0],), mean)
    buffers = table(("X", dtype, (s, t)), ("W", dtype, (t,)), ("B", "float32", (t,)), ("Y", dtype, (s, t)))
    buffers += table(("M", "float32", (s,)))
    kind = getattr(torch, dtype)
    inputs = {"X": (torch.randn(n, c) + 100).to(kind), "W": torch.randn(c).to(kind), "B": torch.randn(c)}
    return b, buffers, inputs, {"n": n, "c": c}


def norm_backward(n: int, c: int, dtype: str, symbolic: bool = False):
    s, t = (Size("n", 1), Size("c", 1)) if symbolic else (n, c)
    b = Body(as_expr(s), as_expr(t))
    g = wide(b, b.load("G", *b.at, dtype=dtype), dtype)
    x = wide(b, b.load("X", *b.at, dtype=dtype), dtype)
    w = b.load("W", b.at[1])
    gw = b.op("mul", g, w)
    first, second = b.reduce("sum", gw, 1), b.reduce("sum", b.op("mul", gw, x), 1)
    dx = b.op("sub", b.op("sub", gw, b.op("mul", first, 0.01)), b.op("mul", x, b.op("mul", second, 0.01)))
    b.store("DX", b.at, half(b, dx, dtype))
    b.store("DW", (b.at[1],), half(b, b.reduce("sum", b.op("mul", g, x), 0), dtype))
    b.store("DB", (b.at[1],), half(b, b.reduce("sum", g, 0), dtype))
    b.store("T", (), b.reduce("sum", g, 0, 1))
    buffers = table(
        *(("G", dtype, (s, t)), ("X", dtype, (s, t)), ("W", "float32", (t,)), ("DX", dtype, (s, t))),
        *(("DW", dtype, (t,)), ("DB", dtype, (t,)), ("T", "float32", ())),
    )
    kind = getattr(torch, dtype)
    inputs = {"G": torch.randn(n, c).to(kind), "X": torch.randn(n, c).to(kind), "W": torch.randn(c)}
    return b, buffers, inputs, {"n": n, "c": c}


def norm_softmax_backward(n: int, c: int, symbolic: bool = False):
    """Row sums that need row sums, column sums of what needs both, and a value worth keeping in between."""
    s, t = (Size("n", 1), Size("c", 1)) if symbolic else (n, c)
    b = Body(as_expr(s), as_expr(t))
    g, y, x = (b.load(name, *b.at) for name in ("G", "Y", "X"))
    gy = b.op("mul", g, y)
    soft = b.op("sub", gy, b.op("mul", y, b.reduce("sum", gy, 1)))
    unit = b.op("mul", b.op("sub", x, b.load("M", b.at[0])), b.load("R", b.at[0]))
    scaled = b.op("mul", soft, b.load("W", b.at[1]))
    first, second = b.reduce("sum", scaled, 1), b.reduce("sum", b.op("mul", scaled, unit), 1)
    dx = b.op("sub", b.op("sub", scaled, b.op("mul", first, 0.01)), b.op("mul", unit, b.op("mul", second, 0.01)))
    b.store("DX", b.at, dx)
    for name, value in (("DW", b.op("mul", soft, unit)), ("DB", soft), ("DS", dx)):
        b.store(name, (b.at[1],), b.reduce("sum", value, 0))
    rows = {name: torch.randn(n, c) for name in ("G", "Y", "X")}
    inputs = rows | {"M": torch.randn(n), "R": torch.rand(n) + 0.5, "W": torch.randn(c)}
    buffers = table(
        *((name, "float32", (s, t)) for name in ("G", "Y", "X", "DX")),
        *((name, "float32", (s,)) for name in ("M", "R")),
        *((name, "float32", (t,)) for name in ("W", "DW", "DB", "DS")),
    )
    return b, buffers, inputs, {"n": n, "c": c}


def reductions(shape: tuple[int, ...], dims: tuple[int, ...], dtype: str):
    b = Body(*shape)
    x = b.load("X", *b.at, dtype=dtype)
    rest = [k for k in range(len(shape)) if k not in dims]
    ops = ("any", "all") if dtype == "bool" else ("sum", "max", "min", "argmax", "argmin", "prod")
    buffers = table(("X", dtype, shape))
    for op in ops:
        out = "int64" if op.startswith("arg") else dtype
        b.store(op, [b.at[k] for k in rest], b.reduce(op, x, *dims))
        buffers += table((op, out, tuple(shape[k] for k in rest)))
    kind = getattr(torch, dtype)
    if dtype == "bool":
        x0 = torch.rand(shape) < 0.9
    elif kind.is_floating_point:
        x0 = (torch.rand(shape, dtype=torch.float64) + 0.6).to(kind)
        x0.view(-1)[:: max(x0.numel() // 3, 1)] = 2.0
    else:
        x0 = torch.randint(0, 3, shape).to(kind)
    return b, buffers, {"X": x0}, {}


def pointwise(shape: tuple[int, ...], strides: tuple[int, ...], dtype: str):
    b = Body(*shape)
    x = wide(b, b.load("X", *b.at, dtype=dtype), dtype)
    y = b.op("mul", b.op("add", x, b.load("B", b.at[-1])), 2.0)
    b.store("Y", b.at, half(b, y, dtype))
    room = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    source = torch.randn(room).to(getattr(torch, dtype)).as_strided(shape, strides)
    buffers = [
        Buffer("X", dtype, tuple(map(as_expr, shape)), tuple(map(as_expr, strides))),
        *table(("B", "float32", shape[-1:]), ("Y", dtype, shape)),
    ]
    return b, buffers, {"X": source, "B": torch.randn(shape[-1])}, {}


def transposed(n: int, c: int, dtype: str):
    b = Body(n, c)
    x, z = b.load("X", *b.at, dtype=dtype), b.load("Z", b.at[1], b.at[0], dtype=dtype)
    y = b.op("add", wide(b, x, dtype), wide(b, z, dtype))
    b.store("Y", b.at, half(b, y, dtype))
    kind = getattr(torch, dtype)
    inputs = {"X": torch.randn(n, c).to(kind), "Z": torch.randn(c, n).to(kind)}
    return b, table(("X", dtype, (n, c)), ("Z", dtype, (c, n)), ("Y", dtype, (n, c))), inputs, {}


def batch_norm(n: int, c: int, hw: int):
    b = Body(n, c, hw)
    x = b.load("X", *b.at)
    mean, squares = b.reduces("welford", x, 0, 2)
    y = b.op("mul", b.op("sub", x, mean), b.op("rsqrt", squares))
    b.store("Y", b.at, y)
    b.store("M", (b.at[1],), mean)
    return (
        b,
        table(("X", "float32", (n, c, hw)), ("Y", "float32", (n, c, hw)), ("M", "float32", (c,))),
        {"X": torch.randn(n, c, hw)},
        {},
    )


def group_norm_backward(n: int, g: int, c: int, hw: int):
    b = Body(n, g, c, hw)
    x, d = b.load("X", *b.at), b.load("D", *b.at)
    rows = b.reduce("sum", b.op("mul", d, b.load("W", b.at[1], b.at[2])), 2, 3)
    b.store("Y", b.at, b.op("sub", d, b.op("mul", x, rows)))
    b.store("DW", (b.at[1], b.at[2]), b.reduce("sum", b.op("mul", d, x), 0, 3))
    shape = (n, g, c, hw)
    buffers = table(("X", "float32", shape), ("D", "float32", shape), ("Y", "float32", shape))
    buffers += table(("W", "float32", (g, c)), ("DW", "float32", (g, c)))
    return b, buffers, {"X": torch.randn(shape), "D": torch.randn(shape), "W": torch.randn(g, c)}, {}


def crossed(n: int, g: int, c: int, p: int, op: str, dtype: str = "float32"):
    """Reductions over (2, 3) whose results are used again, beside reductions over (0, 3) that keep axis 2."""
    b = Body(n, g, c, p)
    x = wide(b, b.load("X", *b.at, dtype=dtype), dtype)
    y = b.op("sub", x, b.reduce("max", b.op("mul", x, x), 2, 3))
    b.store("Y", b.at, half(b, y, dtype))
    b.store("S", (b.at[1], b.at[2]), b.reduce(op, x, 0, 3))
    out = "int64" if op.startswith("arg") else "float32"
    shape = (n, g, c, p)
    buffers = table(("X", dtype, shape), ("Y", dtype, shape), ("S", out, (g, c)))
    x0 = torch.randn(shape).clamp(-1.5, 1.5)
    if op == "prod":
        x0 = 1 + x0 / 100
    return b, buffers, {"X": x0.to(getattr(torch, dtype))}, {}


def column_deviations(n: int, p: int, c: int):
    """Means and deviations of columns: the second phase reads what the first has had, and a factor of each column."""
    b = Body(n, p, c)
    x, w = b.load("X", *b.at), b.load("W", b.at[0], b.at[2])
    mean = b.op("div", b.reduce("sum", x, 1), float(p))
    apart = b.op("sub", x, mean)
    b.store("S", (b.at[0], b.at[2]), b.reduce("sum", b.op("mul", b.op("mul", apart, apart), w), 1))
    b.store("M", (b.at[0], b.at[2]), mean)
    buffers = table(("X", "float32", (n, p, c)), *((name, "float32", (n, c)) for name in "WSM"))
    return b, buffers, {"X": torch.randn(n, p, c), "W": torch.rand(n, c)}, {}


def norm_rows_and_columns(g: int, n: int, c: int):
    """Rows with two passes inside a shared axis, and a sum of what they store over the axis between."""
    b = Body(g, n, c)
    x, w = b.load("X", *b.at), b.load("W", b.at[0], b.at[2])
    y = b.op("mul", b.op("sub", x, b.reduce("sum", b.op("mul", x, w), 2)), w)
    b.store("Y", b.at, y)
    b.store("S", (b.at[0], b.at[2]), b.reduce("sum", y, 1))
    buffers = table(("X", "float32", (g, n, c)), ("W", "float32", (g, c)), ("Y", "float32", (g, n, c)))
    buffers += table(("S", "float32", (g, c)))
    return b, buffers, {"X": torch.randn(g, n, c), "W": torch.randn(g, c)}, {}


def group_quantise(rows: int, groups: int, width: int):
    b = Body(rows, groups, width)
    x = b.load("X", *b.at)
    top = b.reduce("max", b.op("abs", x), 2)
    b.store("S", b.at[:2], top)
    b.store("Q", b.at, b.op("cast", b.op("round", b.op("div", b.op("mul", x, 127.0), top)), dtype="int8"))
    b.store("R", b.at[:1], b.reduce("sum", top, 1))
    shape = (rows, groups, width)
    buffers = table(("X", "float32", shape), ("Q", "int8", shape), ("S", "float32", shape[:2]))
    buffers += table(("R", "float32", shape[:1]))
    return b, buffers, {"X": torch.randn(shape)}, {}


def scans(n: int, c: int, dim: int, op: str, reverse: bool, dtype: str = "float32"):
    b = Body(n, c)
    x = b.load("X", *b.at, dtype=dtype)
    b.store("Y", b.at, b.scan(op, x, dim, reverse))
    x0 = torch.randn(n, c) if dtype == "float32" else torch.randint(-5, 5, (n, c)).to(getattr(torch, dtype))
    return b, table(("X", dtype, (n, c)), ("Y", dtype, (n, c))), {"X": x0}, {}


def gather(rows: int, width: int, count: int, symbolic: bool = False):
    s = Size("count", 1) if symbolic else count
    b = Body(as_expr(s), width)
    i = b.load("I", b.at[0], dtype="int64")
    ok = b.op("and", b.op("ge", i, 0, dtype="bool"), b.op("lt", i, rows, dtype="bool"))
    b.check(ok)
    b.store("Y", b.at, b.load("T", b.loaded(i, rows), b.at[1]))
    buffers = table(("T", "float32", (rows, width)), ("I", "int64", (s,)), ("Y", "float32", (s, width)))
    return b, buffers, {"T": torch.randn(rows, width), "I": torch.randint(0, rows, (count,))}, {"count": count}


def gather_planes(n: int, k: int, c: int):
    """Planes at loaded places: when a place is known, the loop over the plane's rows is not open yet."""
    b = Body(n, k, c)
    place = b.loaded(b.load("I", b.at[0], dtype="int64"), 19)
    nested = b.loaded(b.load("J", place, dtype="int64"), 19)
    for out, row in (("Y", place), ("Z", nested)):
        b.store(out, (b.at[0], b.at[2]), b.reduce("sum", b.load("X", row, b.at[1], b.at[2]), 1))
    buffers = table(("X", "float32", (19, k, c + 3)), ("I", "int64", (n,)), ("J", "int64", (19,)))
    buffers += table(("Y", "float32", (n, c)), ("Z", "float32", (n, c)))
    inputs = {"X": torch.randn(19, k, c + 3), "I": torch.randint(19, (n,)), "J": torch.randint(19, (19,))}
    return b, buffers, inputs, {}


def gather_inside(rows: int, width: int):
    b = Body(rows, width)
    i = b.load("I", *b.at, dtype="int64")
    b.check(b.op("lt", i, width, dtype="bool"))
    b.store("Y", b.at, b.load("T", b.at[0], b.loaded(i, width)))
    buffers = table(("T", "float32", (rows, width)), ("I", "int64", (rows, width)), ("Y", "float32", (rows, width)))
    return b, buffers, {"T": torch.randn(rows, width), "I": torch.randint(0, width, (rows, width))}, {}


def scatter_add(rows: int, width: int, count: int):
    b = Body(count, width)
    i = b.load("I", b.at[0], dtype="int64")
    b.store("Y", (b.loaded(i, rows), b.at[1]), b.load("G", *b.at), mode="add")
    buffers = table(("G", "float32", (count, width)), ("I", "int64", (count,)), ("Y", "float32", (rows, width)))
    inputs = {"G": torch.randn(count, width), "I": torch.randint(0, rows, (count,)), "Y": torch.randn(rows, width)}
    return b, buffers, inputs, {}


def histogram(bins: int, count: int):
    b = Body(count)
    i = b.load("I", b.at[0], dtype="int64")
    b.store("Y", (b.loaded(i, bins),), b.constant(1, "int64"), mode="add")
    buffers = table(("I", "int64", (count,)), ("Y", "int64", (bins,)))
    return b, buffers, {"I": torch.randint(0, bins, (count,)), "Y": torch.zeros(bins, dtype=torch.int64)}, {}


def padding(n: int, c: int, left: int, right: int, dtype: str):
    b = Body(n, c + left + right)
    j = b.index(b.at[1])
    inside = b.op("and", b.op("ge", j, left, dtype="bool"), b.op("lt", j, left + c, dtype="bool"))
    b.store("Y", b.at, b.load("X", b.at[0], b.at[1] - left, dtype=dtype, mask=inside, fill=3))
    x0 = (torch.randn(n, c) * 5).to(getattr(torch, dtype))
    return b, table(("X", dtype, (n, c)), ("Y", dtype, (n, c + left + right))), {"X": x0}, {}


def masked_store(n: int, c: int):
    b = Body(n, c)
    x = b.load("X", *b.at)
    b.store("Y", b.at, x, mask=b.op("gt", x, 0.0, dtype="bool"))
    buffers = table(("X", "float32", (n, c)), ("Y", "float32", (n, c)))
    return b, buffers, {"X": torch.randn(n, c), "Y": torch.randn(n, c)}, {}


def masked_places(n: int, c: int, dtype: str):
    """Elements that lie apart, under a mask that holds in no lane of some vectors, in few and in all of others."""
    b = Body(n, c)
    j = b.index((b.at[1] * 7 + b.at[0]) // 5)
    mask = b.op("lt", b.load("M", *b.at, dtype="int64"), j, dtype="bool")
    x = b.load("X", b.at[0], (b.at[1] * 3 + 2) // 4, dtype=dtype, mask=mask, fill=1)
    b.store("Y", b.at, x)
    given = torch.full((n, c), 10**6)
    given[0] = -1
    given[1:, ::9] = 3
    x0 = (torch.randn(n, c) * 5).to(getattr(torch, dtype))
    shapes = (("X", dtype), ("M", "int64"), ("Y", dtype))
    return b, table(*((name, kind, (n, c)) for name, kind in shapes)), {"X": x0, "M": given}, {}


def one_place(n: int, c: int, dtype: str):
    """An element that is the same along the vector axis, under a mask that is not."""
    b = Body(n, c)
    mask = b.op("lt", b.load("M", *b.at, dtype="int64"), 5, dtype="bool")
    b.store("Y", b.at, b.load("X", b.at[0], dtype=dtype, mask=mask, fill=1))
    given = torch.randint(0, 9, (n, c))
    given[0] = 9
    x0 = (torch.randn(n) * 5).to(getattr(torch, dtype))
    shapes = (("X", dtype, (n,)), ("M", "int64", (n, c)), ("Y", dtype, (n, c)))
    return b, table(*shapes), {"X": x0, "M": given}, {}


def steady_places(n: int, c: int, dtype: str, masked: bool):
    """Places that stay the same for whole vectors and then go on, within a vector or between two."""
    b = Body(n, c)
    mask = b.op("lt", b.load("M", *b.at, dtype="int64"), 5, dtype="bool") if masked else None
    x = b.load("X", b.at[0], (b.at[1] * 3 + 5) // 100 * 2 + 1, dtype=dtype, mask=mask, fill=1)
    b.store("Y", b.at, x)
    given = torch.randint(0, 9, (n, c))
    given[0] = 9
    x0 = (torch.randn(n, 16) * 5).to(getattr(torch, dtype))
    shapes = (("X", dtype, (n, 16)), ("M", "int64", (n, c)), ("Y", dtype, (n, c)))
    return b, table(*(shapes if masked else shapes[::2])), {"X": x0, "M": given} if masked else {"X": x0}, {}


def quotients(n: int, c: int, dtype: str):
    """Indices of whole vectors with quotients and remainders inside each other, beside what is negative."""
    b = Body(n, c)
    i, j = b.at
    found = [(j * 7 + 3) // 5, (j + i * 11) % 13 * 4 - j, ((j * 6 + i) // 9 * 9 + 2) // 4, (j - 50) // 3 + j % 2]
    values = [b.index(expr, dtype) for expr in found]
    b.store("Y", b.at, b.op("add", b.op("sub", values[0], values[1]), b.op("mul", values[2], values[3])))
    return b, table(("Y", dtype, (n, c))), {}, {}


def scattered(n: int, c: int, dtype: str, costly: bool):
    """Elements added at loaded places of their rows, some left out; with costly values vectors pay."""
    b = Body(n, c)
    i = b.load("I", *b.at, dtype="int64")
    g = b.load("G", *b.at, dtype=dtype)
    if costly:
        g = b.op("cast", b.op("tanh", b.op("cast", g, dtype="float32")), dtype=dtype)
    b.store("Y", (b.at[0], b.loaded(i, c)), g, mode="add", mask=b.op("ne", i, 3, dtype="bool"))
    g0 = (torch.randn(n, c) * 5).to(getattr(torch, dtype))
    inputs = {"G": g0, "I": torch.randint(0, c, (n, c)), "Y": torch.zeros(n, c).to(g0)}
    return b, table(("G", dtype, (n, c)), ("I", "int64", (n, c)), ("Y", dtype, (n, c))), inputs, {}


def dropout(n: int, c: int, symbolic: bool = False):
    s = Size("n", 1) if symbolic else n
    b = Body(as_expr(s), c)
    seed = b.load("S", 0, dtype="int64")
    keep = b.op("ge", b.random(seed, b.at[0] * c + b.at[1] + 3, stream=7), 0.3, dtype="bool")
    b.store("Y", b.at, b.op("where", keep, b.op("mul", b.load("X", *b.at), 1.5), 0.0))
    buffers = table(("S", "int64", (1,)), ("X", "float32", (s, c)), ("Y", "float32", (s, c)))
    return b, buffers, {"S": torch.tensor([2**40 + 77]), "X": torch.randn(n, c)}, {"n": n}


def rotate_half(rows: int, width: int):
    b = Body(rows, width)
    j, mid = b.at[1], width // 2
    x = b.load("X", *b.at)
    turned = b.load("X", b.at[0], (j + mid) % width)
    low = b.op("lt", b.index(j), mid, dtype="bool")
    turned = b.op("where", low, b.op("neg", turned), turned)
    y = b.op("add", b.op("mul", x, b.load("C", *b.at)), b.op("mul", turned, b.load("S", *b.at)))
    b.store("Y", b.at, y)
    names = ("X", "C", "S", "Y")
    buffers = table(*((n, "float32", (rows, width)) for n in names))
    return b, buffers, {n: torch.randn(rows, width) for n in names[:3]}, {}


def counting(n: int, c: int, dtype: str):
    b = Body(n, c)
    b.store("Y", b.at, b.index(b.at[0] * 3 + b.at[1] * 2 + 1, dtype))
    b.store("Z", b.at, b.index((b.at[1] + 5) // 3, dtype))
    return b, table(("Y", dtype, (n, c)), ("Z", dtype, (n, c))), {}, {}


def negative_integers(n: int, k: int):
    """Quotients and remainders of integers that may be negative, as values and as places."""
    s, p = Size("n", 1), as_expr(Size("k", None))
    b = Body(as_expr(s))
    (i,) = b.at
    whole = b.index((p + i) // 3 + p // -4 + (p - i) % 5 + p % as_expr(s))
    b.store("Y", (i,), b.op("add", b.load("X", (p * 2 + i) % as_expr(s), dtype="int64"), whole))
    return b, table(("X", "int64", (s,)), ("Y", "int64", (s,))), {"X": torch.arange(n)}, {"n": n, "k": k}


def flipped(n: int, c: int, dtype: str):
    b = Body(n, c)
    b.store("Y", b.at, b.load("X", b.at[0], c - 1 - b.at[1], dtype=dtype))
    x0 = (torch.randn(n, c) * 5).to(getattr(torch, dtype))
    return b, table(("X", dtype, (n, c)), ("Y", dtype, (n, c))), {"X": x0}, {}


def windows_add(count: int, width: int):
    b = Body(count, width)
    b.store("Y", (b.at[0] * 2 + b.at[1],), b.load("X", *b.at), mode="add")
    room = count * 2 + width
    return (
        b,
        table(("X", "float32", (count, width)), ("Y", "float32", (room,))),
        {"X": torch.randn(count, width), "Y": torch.randn(room)},
        {},
    )


def pooling(n: int, h: int, w: int, window: int, stride: int):
    oh, ow = (h - window) // stride + 1, (w - window) // stride + 1
    b = Body(n, oh, ow, window, window)
    x = b.load("X", b.at[0], b.at[1] * stride + b.at[3], b.at[2] * stride + b.at[4])
    b.store("Y", b.at[:3], b.reduce("max", x, 3, 4))
    b.store("A", b.at[:3], b.reduce("argmax", x, 3, 4))
    b.store("M", b.at[:3], b.op("mul", b.reduce("sum", x, 3, 4), 1 / window**2))
    out = (n, oh, ow)
    buffers = table(("X", "float32", (n, h, w)), ("Y", "float32", out), ("A", "int64", out), ("M", "float32", out))
    return b, buffers, {"X": torch.randn(n, h, w)}, {}


def concatenated(rows: int, parts: tuple[int, ...], down: bool):
    """Parts beside each other, and the sum of each column where ``down``."""
    b = Body(rows, sum(parts))
    j = b.index(b.at[1])
    out, begin, buffers, inputs = "", 0, [], {}
    for number, width in enumerate(parts):
        name = f"P{number}"
        inside = b.op("and", b.op("ge", j, begin, dtype="bool"), b.op("lt", j, begin + width, dtype="bool"))
        part = b.load(name, b.at[0], b.at[1] - begin, mask=inside)
        out = b.op("where", inside, part, out) if out else part
        buffers += table((name, "float32", (rows, width)))
        inputs[name] = torch.randn(rows, width)
        begin += width
    b.store("Y", b.at, out)
    buffers += table(("Y", "float32", (rows, begin)), ("S", "float32", (begin,)))
    if down:
        b.store("S", b.at[1:], b.reduce("sum", out, 0))
    return b, buffers if down else buffers[:-1], inputs, {}


def in_place(n: int, c: int):
    b = Body(n, c)
    x = b.load("X", *b.at)
    b.store("X", b.at, b.op("sub", x, b.reduce("max", x, 1)))
    return b, table(("X", "float32", (n, c))), {"X": torch.randn(n, c)}, {}


for n_, c_ in ((64, 128), (7, 77), (3, 5), (2, 9000), (300, 64), (1, 1)):
    for dim_ in (0, 1):
        recipe(softmax, f"softmax_{n_}_{c_}_{dim_}", n_, c_, dim_, "float32")
    recipe(norm, f"norm_{n_}_{c_}", n_, c_, "float32")
    recipe(norm_backward, f"norm_backward_{n_}_{c_}", n_, c_, "float32")
for kind_ in ("bfloat16", "float16", "float64"):
    recipe(softmax, f"softmax_{kind_}", 33, 130, 1, kind_)
for kind_ in ("bfloat16", "float16"):
    recipe(norm, f"norm_{kind_}", 33, 130, kind_)
    recipe(norm_backward, f"norm_backward_{kind_}", 40, 130, kind_)
    recipe(transposed, f"transposed_{kind_}", 40, 70, kind_)
for n_, c_ in ((13, 77), (64, 1000)):
    recipe(softmax, f"softmax_symbolic_{n_}_{c_}", n_, c_, 1, "float32", True)
    recipe(softmax, f"softmax_symbolic0_{n_}_{c_}", n_, c_, 0, "float32", True)
    recipe(norm, f"norm_symbolic_{n_}_{c_}", n_, c_, "float32", True)
    recipe(norm_backward, f"norm_backward_symbolic_{n_}_{c_}", n_, c_, "float32", True)
for kind_ in ("float32", "float64", "int64", "int32", "int8", "uint8", "bool"):
    for label, shape_, dims_ in (
        ("all", (17, 19), (0, 1)),
        ("row", (17, 19), (1,)),
        ("column", (17, 19), (0,)),
        ("middle", (5, 6, 21), (1,)),
        ("ends", (5, 6, 21), (0, 2)),
    ):
        recipe(reductions, f"reductions_{label}_{kind_}", shape_, dims_, kind_)
recipe(reductions, "reductions_long", (70000,), (0,), "int64")
recipe(reductions, "reductions_none", (0, 5), (0,), "bool")
recipe(pointwise, "pointwise_dense", (33, 65), (65, 1), "float32")
recipe(pointwise, "pointwise_padded", (33, 65), (80, 1), "bfloat16")
recipe(pointwise, "pointwise_strided", (33, 65), (130, 2), "float32")
recipe(pointwise, "pointwise_transposed", (33, 65), (1, 33), "float32")
recipe(pointwise, "pointwise_expanded", (33, 65), (0, 1), "float16")
recipe(pointwise, "pointwise_four", (3, 4, 5, 6), (200, 50, 6, 1), "float32")
recipe(pointwise, "pointwise_none", (0, 6), (6, 1), "float32")
recipe(transposed, "transposed", 70, 45, "float32")
recipe(transposed, "transposed_large", 300, 257, "float32")
recipe(batch_norm, "batch_norm", 6, 5, 49)
recipe(batch_norm, "batch_norm_flat", 64, 40, 1)
recipe(norm_softmax_backward, "norm_softmax_backward", 21, 16)
recipe(norm_softmax_backward, "norm_softmax_backward_wide", 300, 531)
recipe(norm_softmax_backward, "norm_softmax_backward_symbolic", 21, 16, True)
recipe(group_norm_backward, "group_norm_backward", 5, 3, 4, 50)
recipe(group_norm_backward, "group_norm_backward_rows", 5, 32, 4, 50)
for op_ in ("sum", "prod", "max", "argmax", "argmin"):
    recipe(crossed, f"crossed_rows_{op_}", 3, 32, 4, 50, op_)
    recipe(crossed, f"crossed_mixed_{op_}", 40, 2, 4, 50, op_)
recipe(norm_rows_and_columns, "norm_rows_and_columns", 32, 6, 50)
for points_ in (3, 130, 261):
    recipe(column_deviations, f"column_deviations_{points_}", 3, points_, 40)
recipe(crossed, "crossed_rows_bf16", 300, 9, 4, 20, "sum", "bfloat16")
recipe(group_quantise, "group_quantise", 6, 5, 33)
for op_ in ("sum", "prod", "max", "min", "logaddexp"):
    for dim_ in (0, 1):
        recipe(scans, f"scan_{op_}_{dim_}", 20, 35, dim_, op_, dim_ == 0)
recipe(scans, "scan_int", 20, 35, 1, "sum", True, "int64")
recipe(gather, "gather", 11, 40, 19)
recipe(gather, "gather_symbolic", 11, 40, 19, True)
recipe(gather_inside, "gather_inside", 9, 37)
recipe(gather_planes, "gather_planes", 23, 70, 40)
recipe(scatter_add, "scatter_add", 7, 45, 60)
recipe(histogram, "histogram", 5, 333)
recipe(padding, "padding", 6, 40, 3, 10, "float32")
recipe(padding, "padding_int8", 6, 40, 3, 10, "int8")
recipe(padding, "padding_bf16", 6, 40, 9, 1, "bfloat16")
recipe(masked_store, "masked_store", 6, 43)
for kind_ in ("float32", "float64", "int64", "int32", "int8", "bool", "bfloat16"):
    recipe(one_place, f"one_place_{kind_}", 5, 75, kind_)
    recipe(masked_places, f"masked_places_{kind_}", 5, 75, kind_)
for kind_ in ("float32", "float64", "bool", "bfloat16"):
    recipe(steady_places, f"steady_places_{kind_}", 4, 230, kind_, False)
    recipe(steady_places, f"steady_places_masked_{kind_}", 4, 230, kind_, True)
for kind_ in ("int64", "int32", "float32"):
    recipe(quotients, f"quotients_{kind_}", 5, 75, kind_)
for kind_ in ("float32", "int64", "int8", "bfloat16"):
    recipe(scattered, f"scattered_{kind_}", 6, 43, kind_, False)
    recipe(scattered, f"scattered_costly_{kind_}", 6, 43, kind_, True)
recipe(dropout, "dropout", 9, 61)
recipe(dropout, "dropout_symbolic", 9, 61, True)
recipe(rotate_half, "rotate_half", 12, 32)
for kind_ in ("int64", "float32", "int32", "bfloat16"):
    recipe(counting, f"counting_{kind_}", 6, 43, kind_)
for k_ in (-7, -1, 5, -(2**40) - 1):
    recipe(negative_integers, f"negative_integers_{k_}".replace("-", "m"), 43, k_)
for kind_ in ("float32", "int64", "int8", "bool", "bfloat16"):
    recipe(flipped, f"flipped_{kind_}", 6, 43, kind_)
recipe(concatenated, "concatenated", 9, (5, 16, 30), False)
recipe(concatenated, "concatenated_even", 9, (16, 16), False)
recipe(concatenated, "concatenated_sums", 40, (5, 16, 300), True)
recipe(concatenated, "concatenated_many", 5, (3, 4, 5, 6, 7, 8, 9, 10), False)
recipe(windows_add, "windows_add", 20, 5)
recipe(windows_add, "windows_add_wide", 20, 33)
recipe(pooling, "pooling", 3, 20, 40, 3, 1)
recipe(pooling, "pooling_stride", 3, 21, 41, 3, 2)
recipe(in_place, "in_place", 6, 43)


@pytest.fixture(scope="module", params=ISAS)
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    target = cpu(request.param, 2)
    ours = (item for item in request.session.items if getattr(item, "function", None) is test_nest)
    asked = {item.callspec.params["name"] for item in ours if item.callspec.params["kernels"] == request.param}
    made = {name: RECIPES[name](f"k_{name}", target) for name in sorted(asked)}
    folder = Path(tmp_path_factory.mktemp(request.param))
    return made, build([m[0] for m in made.values()], target, folder)


@pytest.mark.sampled(one_in=8)
@pytest.mark.parametrize("name", list(RECIPES))
def test_nest(kernels, name: str) -> None:
    made, library = kernels
    spec, inputs, sizes = made[name]
    got, want = both(spec, library, inputs, sizes)
    for buffer in got:
        g, w = got[buffer], want[buffer]
        if not g.dtype.is_floating_point or "random" in name:
            assert torch.equal(g, w), buffer
            continue
        eps = torch.finfo(g.dtype).eps
        scale = float(w.double().nan_to_num(0, 0, 0).abs().max()) if w.numel() else 0.0
        loose = 16 * max(eps, 1e-6) * scale
        torch.testing.assert_close(g.double(), w.double(), rtol=8 * eps, atol=loose, equal_nan=True)


def test_sums_of_column_deviations_read_what_is_the_same_in_all_rows_once() -> None:
    """Four rows at a time, in front of which a column's mean and factor stand."""
    target = cpu("avx2", 2)
    body, buffers, _, _ = column_deviations(3, 261, 40)
    text = emit(case("deviations", [body.nest()], buffers, target).kernel, target)
    blocks = text.split("_rows = [&](int64 first, auto count) STEP {")[1:]
    assert len(blocks) == 2
    before, inside = blocks[1].split("i1 < first + count; ++i1) {")
    assert "kept" in before
    assert "/ splat_f32" in before
    assert "/ splat_f32" not in inside.split("};")[0]


def test_failed_check(tmp_path: Path) -> None:
    """A check that fails gives its number, and what it guards is not read."""
    target = cpu("avx2" if "avx2" in ISAS else "plain", 2)
    body, buffers, inputs, _ = gather(11, 40, 19)
    inside, more, given, _ = gather_inside(9, 37)
    outer, inner = case("outer", [body.nest()], buffers, target), case("inner", [inside.nest()], more, target)
    library = build([outer, inner], target, tmp_path)
    far = 2**40
    inputs["I"][7] = far
    given["I"][3, 35] = far
    assert call(outer, library, {**inputs, "Y": torch.zeros(19, 40)}, {}) == 1
    assert call(inner, library, {**given, "Y": torch.zeros(9, 37)}, {}) == 1
