"""Products by persistent grids, descriptors and epilogues in parts, beside the specification and compiled for sm_90."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lamina.base.target import nvidia
from lamina.ir.index import as_expr
from lamina.ir.loops import Nest
from lamina.ir.plan import GpuSchedule
from lamina.ir.product import as_product
from lamina.lower.builder import NestBuilder
from lamina.lower.values import whole
from lamina.runtime.cuda_driver import pack_format
from lamina.runtime.triton_worker import Request, compile_request
from lamina.schedule.flatten import flatten
from tests.codegen.triton.harness import Interpreter, case

pytest.importorskip("triton")

from tests.codegen.triton.compiling import compiled
from tests.codegen.triton.test_products import Buffer, buffer, check, placed, product, product_nest, tiles

MOVED = {"descriptors": True, "persistent": 5}
WAYS: dict[str, dict[str, int | bool]] = {
    "persistent": {"persistent": 5},
    "descriptors": {"descriptors": True},
    "both": MOVED,
    "flat": {**MOVED, "flat": True},
    "two parts": {**MOVED, "epilogue_subtiles": 2},
    "four parts": {**MOVED, "flat": True, "epilogue_subtiles": 4},
    "parts by pointers": {"epilogue_subtiles": 2},
}


def made(
    sizes: tuple[int, int, int], transposed: tuple[bool, bool] = (False, True), bias: bool = False
) -> tuple[Nest, dict[str, Buffer]]:
    call, buffers = product(*sizes, transposed, bias=bias)
    nest = product_nest(call, buffers)
    assert nest is not None
    return nest, buffers


def checked(
    nest: Nest,
    buffers: dict[str, Buffer],
    interpreter: Interpreter,
    tile: tuple[int, int, int],
    **way: int | bool,
) -> str:
    schedule: GpuSchedule = replace(tiles(nest, buffers, *tile), **way)  # type: ignore[arg-type]
    return check(nest, buffers, interpreter, tile, schedule)


@pytest.mark.parametrize("way", WAYS)
def test_ways(way: str, interpreter: Interpreter) -> None:
    """Sizes that are no multiples of the tiles, and a bias."""
    nest, buffers = made((72, 104, 88), bias=True)
    text = checked(nest, buffers, interpreter, (32, 32, 32), **WAYS[way])
    assert text.count("make_tensor_descriptor(") == (3 if "descriptors" in WAYS[way] else 0)
    assert ("flatten=True" in text) == ("flat" in WAYS[way])
    assert text.count("tl.split(") == int(WAYS[way].get("epilogue_subtiles", 1)) - 1


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
def test_descriptors_of_transposed_operands(transposed: tuple[bool, bool], interpreter: Interpreter) -> None:
    nest, buffers = made((72, 104, 88), transposed)
    text = checked(nest, buffers, interpreter, (32, 64, 32), **MOVED)
    assert text.count("make_tensor_descriptor(") == 3
    assert text.count(".T\n") == transposed[0] + transposed[1]


def test_rows_that_are_no_multiples_of_16_bytes_are_moved_by_pointers(interpreter: Interpreter) -> None:
    nest, buffers = made((72, 101, 88))
    assert checked(nest, buffers, interpreter, (32, 32, 32), **MOVED).count("make_tensor_descriptor(") == 2
    nest, buffers = made((72, 104, 85))
    assert checked(nest, buffers, interpreter, (32, 32, 32), **MOVED).count("make_tensor_descriptor(") == 1


def test_an_epilogue_in_parts(interpreter: Interpreter) -> None:
    """A residual is read and two results are written; the transposed one by pointers."""
    (program, _), buffers = placed(sizes=(64, 64, 256))
    (nest,) = program.steps
    text = checked(nest, buffers, interpreter, (32, 32, 64), **MOVED, epilogue_subtiles=2, flat=True)
    assert text.count("make_tensor_descriptor(") == 3


@pytest.mark.parametrize("specialized", [False, True])
def test_hopper(specialized: bool, tmp_path: Path) -> None:
    """The copy engine feeds the matrix instruction; the launch gives each program memory for its descriptors."""
    nest, buffers = made((4096, 4096, 4096))
    way = GpuSchedule("product", tiles(nest, buffers, 128, 128, 64).blocks, warps=4, stages=3)
    way = replace(way, persistent=132, descriptors=True, flat=not specialized, specialized=specialized)
    source = case("k", [nest], list(buffers.values()), nvidia(), way).source
    done = compiled(source, tmp_path)
    text = done.asm["ptx"]
    assert "wgmma.mma_async" in text
    assert "cp.async.bulk.tensor" in text
    assert ("setmaxnreg" in text) == specialized
    assert ".local .align" not in text
    assert 0 < done.metadata.global_scratch_size <= source.scratch
    assert source.grid[0] == 132
    assert source.must_align == ("b0", "b1", "b2")
    assert source.plain is not None
    assert "descriptor" not in source.plain.text
    aligned = list(range(3))
    request = Request(
        name="k", text=source.text, parameters=list(source.parameters), types=list(source.types), aligned=aligned,
        warps=4, stages=3, asserts=False, scratch=source.scratch, capability=90, folder=str(tmp_path),
    )  # fmt: skip
    about = compile_request(request)
    assert about["hidden"] == 2
    with pytest.raises(ValueError, match="scratch memory"):
        compile_request({**request, "scratch": 64})


def test_scratch_memory_is_the_first_pointer_after_the_arguments() -> None:
    assert pack_format(("*fp32", "i64"), 2) == "@P3I4xPq0P16x"
    assert pack_format(("*fp32", "i64"), 2, True) == "@P3I4xPqP8x"


def summed(rows: int, columns: int, inner: int) -> tuple[Nest, dict[str, Buffer]]:
    """An activation's gradient after a product, and the shifted sums over its rows: y = (a @ b) * r, s = sum(y) + c."""
    _, buffers = product(rows, columns, inner, (False, True), bias=True)
    buffers["r"] = buffer("r", (rows, columns))
    buffers["s"] = replace(buffer("s", (columns,)), kind="output")
    b = NestBuilder("n_y", [as_expr(n) for n in (rows, columns, inner)], ("y",))
    i, j, k = b.axes
    left, right = (b.load(whole(buffers[n]), at).to("float32") for n, at in (("a", [i, k]), ("b", [j, k])))
    value = b.reduce("sum", left * right, [2]) * b.load(whole(buffers["r"]), [i, j]).to("float32")
    b.store(whole(buffers["y"]), value, [i, j])
    total = b.reduce("sum", value, [0]) + b.load(whole(buffers["c"]), [j]).to("float32")
    b.store(whole(buffers["s"]), total, [j])
    return b.nest(), buffers


@pytest.mark.parametrize("way", WAYS)
def test_sums_over_rows(way: str, interpreter: Interpreter) -> None:
    nest, buffers = summed(75, 104, 64)
    text = checked(nest, buffers, interpreter, (32, 32, 32), **WAYS[way])
    assert text.count("tl.store(w0 + ") == WAYS[way].get("epilogue_subtiles", 1)


def test_sums_over_many_tiles_and_odd_columns(interpreter: Interpreter) -> None:
    nest, buffers = summed(16 * 70, 37, 16)
    checked(nest, buffers, interpreter, (16, 16, 16))


def test_sums_over_rows_by_the_copy_engine(tmp_path: Path) -> None:
    """Machine code of both launches."""
    nest, buffers = summed(4096, 768, 256)
    way = replace(tiles(nest, buffers, 128, 128, 64), persistent=264, descriptors=True, epilogue_subtiles=2, stages=3)
    source = case("k", [nest], list(buffers.values()), nvidia(), way).source
    assert "cp.async.bulk.tensor" in compiled(source, tmp_path).asm["ptx"]
    assert source.then is not None
    assert source.then.grid[0] == 768 // 32
    assert compiled(source.then, tmp_path).asm["cubin"]


def test_what_else_uses_a_sum_over_rows_is_no_epilogue() -> None:
    """Y = v - sum(v) needs a tile twice."""
    _, buffers = product(64, 64, 64)
    b = NestBuilder("n_y", [as_expr(64)] * 3, ("y",))
    i, j, k = b.axes
    left, right = (b.load(whole(buffers[n]), at).to("float32") for n, at in (("a", [i, k]), ("b", [k, j])))
    value = b.reduce("sum", left * right, [2])
    b.store(whole(buffers["y"]), value - b.reduce("sum", value, [0]), [i, j])
    assert as_product(flatten((b.nest(),), buffers).nests[0]) is None
