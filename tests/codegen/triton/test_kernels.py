"""Nests of every kind as Triton kernels in Triton's interpreter, against the executable specification."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lamina.base.target import cpu
from lamina.codegen.triton.source import UnsupportedKernel
from lamina.ir.plan import Block, GpuSchedule
from tests.codegen.harness import dense
from tests.codegen.test_nests import RECIPES, gather, norm, softmax
from tests.codegen.triton.harness import TARGET, Case, Interpreter, both, case
from tests.codegen.writer import Body

APART = ("norm_backward_symbolic", "norm_softmax_backward_symbolic")
"""Rows of unknown width beside column sums: cut into two nests before they come here."""

NOT_HERE = ("scattered_int8", "scattered_costly_int8")
"""The GPU adds no bytes to memory in one operation: such a kernel runs as ATen calls."""

NAMES = [name for name in RECIPES if not name.startswith((*APART, *NOT_HERE))]


def same(name: str, got: torch.Tensor, want: torch.Tensor) -> None:
    """Assert equality up to rounding."""
    if not got.dtype.is_floating_point or "random" in name:
        assert torch.equal(got, want)
        return
    eps = torch.finfo(got.dtype).eps
    scale = float(want.double().nan_to_num(0, 0, 0).abs().max()) if want.numel() else 0.0
    loose = 16 * max(eps, 1e-6) * scale
    torch.testing.assert_close(got.double(), want.double(), rtol=8 * eps, atol=loose, equal_nan=True)


def agree(interpreter: Interpreter, made: Case, inputs: dict[str, torch.Tensor], sizes: dict[str, int]) -> None:
    got, want = both(made, interpreter, inputs, sizes)
    for buffer in got:
        same(buffer, got[buffer], want[buffer])


@pytest.mark.parametrize("name", NAMES)
def test_nest(interpreter: Interpreter, name: str) -> None:
    spec, inputs, sizes = RECIPES[name](name, cpu("plain", 1))
    agree(interpreter, case(name, spec.nests, list(spec.buffers.values())), inputs, sizes)


@pytest.mark.parametrize(("width", "dtype"), [(4099, "bfloat16"), (2051, "float32"), (2049, "float16")])
def test_rows_that_begin_anywhere(interpreter: Interpreter, width: int, dtype: str) -> None:
    body, buffers, inputs, sizes = softmax(5, width, 1, dtype)
    made = case("odd_rows", [body.nest()], buffers)
    assert made.kernel.schedules[0].peel
    assert "tl.multiple_of" in made.source.text
    agree(interpreter, made, inputs, sizes)


@pytest.mark.parametrize("fill", [-float("inf"), float("inf"), float("nan")])
def test_online_sums_of_special_rows(interpreter: Interpreter, fill: float) -> None:
    """A row of one special value, one among finite ones, and pieces of minus infinity only."""
    body, buffers, inputs, sizes = softmax(4, 5000, 1, "float32")
    blocks = (Block(("i0",), 1, "grid"), Block(("i1",), 1024, "loop"))
    schedule = GpuSchedule("loops", blocks, warps=4, online=True)
    x = inputs["X"] = torch.randn(4, 5000)
    x[0] = fill
    x[1, 4999] = fill
    x[2, :3000] = -float("inf")
    agree(interpreter, case("special", [body.nest()], buffers, schedule=schedule), inputs, sizes)


def test_moments_in_a_loop_keep_their_digits(interpreter: Interpreter) -> None:
    """A mean far from zero and one infinite element."""
    body, buffers, inputs, sizes = norm(3, 5000, "float32")
    blocks = (Block(("i0",), 1, "grid"), Block(("i1",), 512, "loop"))
    inputs["X"] = torch.randn(3, 5000) + 1000.0
    inputs["X"][2, 17] = float("inf")
    made = case("moments", [body.nest()], buffers, schedule=GpuSchedule("loops", blocks, warps=4))
    got, want = both(made, interpreter, inputs, sizes)
    for name in got:
        torch.testing.assert_close(got[name], want[name], rtol=1e-3, atol=1e-3, equal_nan=True)


def test_a_failed_check_gives_its_number(interpreter: Interpreter) -> None:
    body, buffers, inputs, _ = gather(11, 40, 19)
    made = case("far", [body.nest()], buffers)
    inputs["I"][7] = 2**40
    order = {"Y": torch.zeros(19, 40), **inputs}
    _, failed = interpreter.run(made.source, [order[b] for b in made.flat.buffers], [])
    assert failed == 1


@pytest.mark.parametrize("mode", ["add", "set"])
def test_what_lacks_an_axis_of_the_grid_is_stored_once(interpreter: Interpreter, mode: str) -> None:
    """Of the programs along columns, one adds a row's number to it."""
    body = Body(5, 300)
    body.store("Y", body.at, body.op("mul", body.load("X", *body.at), 2.0))
    body.store("T", body.at[:1], body.load("W", body.at[0]), mode=mode)
    buffers = [dense(n, "float32", s) for n, s in (("X", (5, 300)), ("Y", (5, 300)), ("W", (5,)), ("T", (5,)))]
    blocks = (Block(("i0",), 2, "grid"), Block(("i1",), 128, "grid"))
    made = case("once", [body.nest()], buffers, schedule=GpuSchedule("tiles", blocks, warps=4))
    inputs = {"X": torch.randn(5, 300), "W": torch.arange(1.0, 6.0), "T": torch.ones(5)}
    agree(interpreter, made, inputs, {})
    got, _ = both(made, interpreter, inputs, {})
    assert got["T"].tolist() == ([2.0, 3.0, 4.0, 5.0, 6.0] if mode == "add" else [1.0, 2.0, 3.0, 4.0, 5.0])


def test_a_group_runs_every_nest(interpreter: Interpreter) -> None:
    """Independent nests of one launch, told apart by the program's number."""
    nests, buffers, inputs = [], [], {}
    for k, (rows, columns) in enumerate(((7, 300), (40, 33), (1, 5))):
        body, own, given, _ = softmax(rows, columns, 1, "float32")
        names = {b.name: f"{b.name}{k}" for b in own}
        nest = body.nest()
        moved = tuple(replace(e, buffer=names[e.buffer]) if hasattr(e, "buffer") else e for e in nest.body)
        nests.append(replace(nest, body=moved))
        buffers += [replace(b, name=names[b.name]) for b in own]
        inputs |= {names[n]: t for n, t in given.items()}
    agree(interpreter, case("group", nests, buffers), inputs, {})


def test_the_fast_forms_stay_within_sixteen_bits(interpreter: Interpreter) -> None:
    """Hardware exponentials in place of exact ones; the interpreter cuts to bfloat16 where the hardware rounds."""
    body = Body(9, 130)
    x = body.op("cast", body.load("X", *body.at, dtype="bfloat16"), dtype="float32")
    buffers = RECIPES["softmax_bfloat16"]("softmax_bfloat16", cpu("plain", 1))[0].buffers["X"]
    shape = tuple(a.extent for a in body.axes)
    buffers = replace(buffers, shape=shape, strides=(shape[1], buffers.strides[1]))
    outs = []
    for op in ("exp", "tanh", "sigmoid", "erf"):
        body.store(op, body.at, body.op("cast", body.op(op, x), dtype="bfloat16"))
        outs.append(replace(buffers, name=op))
    made = case("fast", [body.nest()], [buffers, *outs], replace(TARGET, approximate=True))
    assert "fast_tanh" in made.source.text
    given = torch.linspace(-12, 12, 9 * 130).reshape(9, 130).to(torch.bfloat16)
    got, _ = both(made, interpreter, {"X": given}, {})
    for op in got:
        exact = getattr(torch, op)(given.double())
        assert ((got[op].double() - exact).abs() <= exact.abs() * 2**-6.9).all()


def test_the_fast_error_function(interpreter: Interpreter) -> None:
    """In float32: close everywhere, exactly 1 in size far out, and NaN where it should be."""
    body = Body(1 << 14)
    body.store("Y", body.at, body.op("erf", body.load("X", *body.at)))
    buffers = [dense("X", "float32", (1 << 14,)), dense("Y", "float32", (1 << 14,))]
    planned = case("erf", [body.nest()], buffers).kernel.schedules[0]
    made = case("erf", [body.nest()], buffers, TARGET, replace(planned, approximate=True))
    assert "fast_erf" in made.source.text
    x = torch.linspace(-7, 7, 1 << 14)
    x[:6] = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, 1e-30, -200.0])
    got, _ = both(made, interpreter, {"X": x}, {})
    exact = torch.erf(x.double())
    assert ((got["Y"] - exact).abs()[1:] <= 6e-7 * exact.abs()[1:]).all()
    assert got["Y"][0].isnan()
    assert (got["Y"][x.abs() > 4.1] == x[x.abs() > 4.1].sign()).all()


@pytest.mark.parametrize("shape", [(4096,), (5, 128), (3, 100)])
def test_random_numbers_of_four_neighbours(interpreter: Interpreter, shape: tuple[int, ...]) -> None:
    """Blocks of four are computed once where they line up with the tile; the numbers are the same."""
    body = Body(*shape)
    place = body.at[0] if len(shape) == 1 else body.at[0] * shape[1] + body.at[1]
    body.store("Y", body.at, body.random(body.load("S", 0, dtype="int64"), place, stream=5))
    made = case("quads", [body.nest()], [dense("S", "int64", (1,)), dense("Y", "float32", shape)])
    assert "uniform_quads" in made.source.text
    got, want = both(made, interpreter, {"S": torch.tensor([2**41 + 13])}, {})
    assert torch.equal(got["Y"], want["Y"])


@pytest.mark.parametrize("clamp", ["where", "maximum"])
def test_roundings_to_eight_bits(interpreter: Interpreter, clamp: str) -> None:
    """Half-way values, infinities, NaN, scales far from one: as operations of their own."""
    rows, width = 12, 96
    body = Body(rows, width)
    scale = body.load("S", body.at[0])
    q = body.op("round", body.op("div", body.load("X", *body.at), scale))
    if clamp == "where":
        q = body.op("where", body.op("lt", q, -127.0, dtype="bool"), -127.0, q)
        q = body.op("where", body.op("gt", q, 126.0, dtype="bool"), 126.0, q)
    else:
        q = body.op("minimum", body.op("maximum", q, -127.0), 126.0)
    body.store("Q", body.at, body.op("cast", q, dtype="int8"))
    buffers = [dense("X", "float32", (rows, width)), dense("S", "float32", (rows,)), dense("Q", "int8", (rows, width))]
    blocks = (Block(("i0",), 4, "grid"), Block(("i1",), 128, "grid"))
    made = case("eight_bits", [body.nest()], buffers, schedule=GpuSchedule("pointwise", blocks))
    assert "round_to_bits(" in made.source.text
    assert "small_quotient(" in made.source.text  # a scale for each row
    assert "rint" not in made.source.text
    s = torch.tensor([1.0, 0.37, 1e-6, 1e-30, 1e30, 1e-42, 3e38, 0.0, -2.5, float("inf"), 2.0**-64, 7.1 / 127])
    x = torch.randn(rows, width) * 60 * s.where(s.isfinite(), torch.ones(()))[:, None]
    x[:, :40] = (torch.arange(-20, 20) + 0.5) * s.where(s.isfinite(), torch.ones(()))[:, None]
    x[:, 40:44] = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0])
    got, _ = both(made, interpreter, {"X": x, "S": s}, {})
    want = (x / s[:, None]).round().clamp(-127, 126).nan_to_num(0.0).to(torch.int8)
    assert torch.equal(got["Q"], want)


def test_a_rounding_that_is_read_elsewhere_stays(interpreter: Interpreter) -> None:
    body = Body(5, 64)
    q = body.op("round", body.op("mul", body.load("X", *body.at), 31.0))
    body.store("R", body.at, q)
    q = body.op("minimum", body.op("maximum", q, -127.0), 127.0)
    body.store("Q", body.at, body.op("cast", q, dtype="int8"))
    body.store("W", body.at, body.op("cast", body.op("maximum", q, -5.0), dtype="uint8"))
    kinds = {"X": "float32", "R": "float32", "Q": "int8", "W": "uint8"}
    buffers = [dense(name, kind, (5, 64)) for name, kind in kinds.items()]
    made = case("kept_rounding", [body.nest()], buffers)
    assert "rint" in made.source.text
    assert made.source.text.count("round_to_bits(") == 2
    x = torch.randn(5, 64) * 9
    got, _ = both(made, interpreter, {"X": x}, {})
    kept = (x * 31.0).round().clamp(-127, 127)
    assert torch.equal(got["R"], (x * 31.0).round())
    assert torch.equal(got["Q"], kept.to(torch.int8))
    assert torch.equal(got["W"], kept.clamp(min=-5).to(torch.int32).to(torch.uint8))


def _cluster(width: int, size: int, peel: int = 0) -> GpuSchedule:
    return GpuSchedule(
        "rows", (Block(("i0",), 1, "grid"), Block(("i1",), size, "cluster")), warps=4, online=True, peel=peel
    )


@pytest.mark.parametrize(
    ("rows", "width", "size", "peel"), [(3, 5000, 1024, 0), (2, 2048, 1024, 0), (8, 1029, 256, 8), (16, 777, 128, 8)]
)
def test_rows_of_a_cluster(interpreter: Interpreter, rows: int, width: int, size: int, peel: int) -> None:
    """Programs that share a row: maximum and sum together, rows that begin anywhere, special values."""
    body, buffers, inputs, sizes = softmax(rows, width, 1, "bfloat16" if peel else "float32")
    x = inputs["X"]
    x[0, :3] = -float("inf")
    x[1, width - 1] = float("nan") if rows > 3 else 3.0
    made = case("cluster", [body.nest()], buffers, schedule=_cluster(width, size, peel))
    assert "meet(" in made.source.text
    assert ("tl.multiple_of" in made.source.text) == bool(peel)
    agree(interpreter, made, inputs, sizes)


def _shared_loop(size: int, cluster: int) -> GpuSchedule:
    blocks = (Block(("i0",), 1, "grid"), Block(("i1",), size, "loop"))
    return GpuSchedule("loops", blocks, warps=4, online=True, approximate_sums=True, cluster=cluster)


@pytest.mark.parametrize(
    ("width", "size", "cluster"), [(4096, 512, 4), (5000, 512, 4), (3000, 1024, 8), (2100, 256, 3)]
)
def test_softmax_by_a_cluster_that_shares_a_loop(interpreter: Interpreter, width: int, size: int, cluster: int) -> None:
    """Parts of equal and of other lengths, programs without any, special values."""
    body, buffers, inputs, sizes = softmax(4, width, 1, "float32")
    inputs["X"][1, :] = -float("inf")
    inputs["X"][2, 7] = float("inf")
    made = case("shared_loop", [body.nest()], buffers, schedule=_shared_loop(size, cluster))
    assert f"meet({cluster})" in made.source.text
    assert made.source.grid[0] == 4 * cluster
    agree(interpreter, made, inputs, sizes)


@pytest.mark.parametrize(
    ("width", "cluster", "peel"), [(4096, 0, 0), (5000, 2, 0), (4096, 2, 0), (1029, 0, 8), (5000, 0, 0)]
)
def test_rows_held_in_registers(interpreter: Interpreter, width: int, cluster: int, peel: int) -> None:
    """Each element is loaded once, whole tiles without conditions."""
    body, buffers, inputs, sizes = softmax(8, width, 1, "bfloat16")
    schedule = replace(_shared_loop(1024, cluster), register_resident=True)
    made = case("held", [body.nest()], buffers, schedule=schedule)
    assert "keep(" in made.source.text
    assert " for " not in made.source.text
    assert ("mask" in made.source.text) == (width != 4096)
    agree(interpreter, made, inputs, sizes)


def test_moments_by_a_cluster_that_shares_a_loop(interpreter: Interpreter) -> None:
    """A number for each row is stored by one of the programs."""
    body = Body(3, 5000)
    x = body.load("X", *body.at)
    mean, squares = body.reduces("welford", x, 1)
    body.store("Y", body.at, body.op("sub", x, mean))
    body.store("S", body.at[:1], squares, mode="add")
    kinds = {"X": (3, 5000), "Y": (3, 5000), "S": (3,)}
    buffers = [dense(name, "float32", shape) for name, shape in kinds.items()]
    made = case("shared_moments", [body.nest()], buffers, schedule=_shared_loop(1024, 4))
    given = {"X": torch.randn(3, 5000) + 40.0}
    assert "_pid == 0" in made.source.text
    got, want = both(made, interpreter, given, {})
    torch.testing.assert_close(got["Y"], want["Y"], rtol=1e-4, atol=1e-4)


def test_moments_of_a_cluster(interpreter: Interpreter) -> None:
    """Means and deviations joined from parts of unequal length."""
    body, buffers, inputs, sizes = norm(3, 5000, "float32")
    inputs["X"] = torch.randn(3, 5000) + 1000.0
    made = case("team_moments", [body.nest()], buffers, schedule=_cluster(5000, 1024))
    got, want = both(made, interpreter, inputs, sizes)
    for name in got:
        torch.testing.assert_close(got[name], want[name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_along_a_loop_carries_its_end(interpreter: Interpreter, reverse: bool) -> None:
    body = Body(2, 20001)
    body.store("Y", body.at, body.scan("sum", body.load("X", *body.at, dtype="int64"), 1, reverse))
    made = case("scan", [body.nest()], [dense("X", "int64", (2, 20001)), dense("Y", "int64", (2, 20001))])
    assert "_carry" in made.source.text
    got, want = both(made, interpreter, {"X": torch.randint(-9, 9, (2, 20001))}, {})
    assert torch.equal(got["Y"], want["Y"])


@pytest.mark.parametrize("name", NOT_HERE)
def test_what_triton_cannot_express_is_refused(name: str) -> None:
    spec, _, _ = RECIPES[name](name, cpu("plain", 1))
    with pytest.raises(UnsupportedKernel, match="atomic addition of int8"):
        case(name, spec.nests, list(spec.buffers.values()))
