"""Products in tiles: every transpose, odd sizes, batches, epilogues and prologues, beside the specification.

In float16: Triton's interpreter multiplies the bits of bfloat16 tiles as integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.base.target import nvidia
from lamina.ir.index import as_expr
from lamina.ir.loops import Buffer, BufferView, LibraryCall, Load, LoopProgram, Nest, Store
from lamina.ir.plan import Block, GpuSchedule
from lamina.ir.product import as_product
from lamina.lower.builder import NestBuilder
from lamina.lower.values import whole
from lamina.schedule.flatten import flatten
from lamina.schedule.inline import inline_into
from lamina.schedule.product_nests import product_nest, with_epilogue
from lamina.schedule.product_tiles import product_schedules
from lamina.schedule.products import place_products
from tests.codegen.triton.harness import Interpreter, both, case

triton = pytest.importorskip("triton")

from tests.codegen.triton.compiling import compiled  # noqa: E402


def buffer(name: str, shape: Sequence[int], dtype: str = "float16", order: Sequence[int] | None = None) -> Buffer:
    """A dense buffer whose dimensions are in ``order`` in memory, slowest first."""
    strides, step = [0] * len(shape), 1
    for d in reversed(order or range(len(shape))):
        strides[d] = step
        step *= shape[d]
    extents = tuple(as_expr(n) for n in shape)
    return Buffer(name, dtype, extents, tuple(as_expr(s) for s in strides), "cuda:0", "input")


def window(b: Buffer, swapped: bool) -> BufferView:
    """All of a buffer, its last two dimensions swapped or not."""
    shape, strides = list(b.shape), list(b.strides)
    if swapped:
        shape[-2:], strides[-2:] = shape[:-3:-1], strides[:-3:-1]
    return BufferView(b.name, tuple(shape), tuple(strides), as_expr(0))


def product(
    rows: int,
    columns: int,
    inner: int,
    transposed: tuple[bool, bool] = (False, False),
    batch: int = 0,
    bias: bool = False,
) -> tuple[LibraryCall, dict[str, Buffer]]:
    """A library product ``y = a @ b (+ c)``; a transposed operand lies transposed in memory."""
    outer = (batch,) if batch else ()
    a = buffer("a", (*outer, *((inner, rows) if transposed[0] else (rows, inner))))
    b = buffer("b", (*outer, *((columns, inner) if transposed[1] else (inner, columns))))
    found = {"a": a, "b": b, "y": replace(buffer("y", (*outer, rows, columns)), kind="temp")}
    args: tuple[Any, ...] = (window(a, transposed[0]), window(b, transposed[1]))
    if bias:
        found["c"] = buffer("c", (columns,))
        args = (window(found["c"], False), *args)
    name = ("baddbmm" if bias else "bmm") if batch else ("addmm" if bias else "mm")
    return LibraryCall("l_y", f"aten.{name}.default", args, (), ("y",), origin=("y",)), found


def tiles(nest: Nest, buffers: dict[str, Buffer], rows: int, columns: int, inner: int) -> GpuSchedule:
    flat = flatten((nest,), buffers).nests[0]
    found = as_product(flat)
    assert found is not None
    batch = tuple(Block((a,), 1, "grid") for a in found.batch)
    blocks = (Block(found.rows, rows, "grid"), Block(found.columns, columns, "grid"), Block(found.inner, inner, "loop"))
    return GpuSchedule("product", (*batch, *blocks), warps=4, stages=2)


def check(
    nest: Nest,
    buffers: dict[str, Buffer],
    interpreter: Interpreter,
    tile: tuple[int, int, int],
    schedule: GpuSchedule | None = None,
) -> str:
    """Compare a nest by the interpreter with the specification; the kernel's text."""
    touched = {e.buffer for e in nest.body if hasattr(e, "buffer")}
    held = [replace(b, device="cpu") for b in buffers.values() if b.name in touched]
    made = case("k", [nest], held, schedule=schedule or tiles(nest, buffers, *tile))
    assert "tl.dot(" in made.source.text
    torch.manual_seed(0)
    inputs: dict[str, torch.Tensor] = {}
    for b in held:
        drawn = torch.randn([int(n.const) for n in b.shape]).to(getattr(torch, b.dtype))
        laid = torch.empty_strided(drawn.shape, [int(s.const) for s in b.strides], dtype=drawn.dtype)
        inputs[b.name] = laid.copy_(drawn)
    ours, theirs = both(made, interpreter, inputs, {})
    assert ours
    for name, got in ours.items():
        torch.testing.assert_close(got.float(), theirs[name].float(), rtol=1e-2, atol=1e-2)
        assert got.abs().sum() > 0
    return made.source.text


@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("sizes", [(32, 48, 64), (37, 21, 75)])
def test_transposes_and_odd_sizes(
    transposed: tuple[bool, bool], sizes: tuple[int, int, int], interpreter: Interpreter
) -> None:
    call, buffers = product(*sizes, transposed)
    nest = product_nest(call, buffers)
    assert nest is not None
    check(nest, buffers, interpreter, (16, 16, 32))


@pytest.mark.parametrize("batch", [1, 3])
def test_batches_and_biases(batch: int, interpreter: Interpreter) -> None:
    call, buffers = product(33, 40, 50, (False, True), batch, bias=True)
    nest = product_nest(call, buffers)
    assert nest is not None
    check(nest, buffers, interpreter, (16, 32, 16))


def test_many_rows_of_tiles(interpreter: Interpreter) -> None:
    """More than one group of programs, the last one lower."""
    call, buffers = product(16 * 11, 48, 16)
    nest = product_nest(call, buffers)
    assert nest is not None
    check(nest, buffers, interpreter, (16, 16, 16))


def reader(buffers: dict[str, Buffer], rows: int, columns: int) -> Nest:
    """gelu-like: z = sigmoid(y) * y + residual, and its float32 copy."""
    shape = [as_expr(rows), as_expr(columns)]
    buffers["r"] = buffer("r", (rows, columns))
    buffers["z"] = replace(buffer("z", (rows, columns)), kind="output")
    buffers["wide"] = replace(buffer("wide", (rows, columns), "float32", (1, 0)), kind="output")
    b = NestBuilder("n_z", shape, ("z",))
    y = b.load(whole(buffers["y"])).to("float32")
    value = y.op("sigmoid") * y + b.load(whole(buffers["r"])).to("float32")
    b.store(whole(buffers["z"]), value)
    b.store(whole(buffers["wide"]), value)
    return b.nest()


def placed(kept: bool = False, sizes: tuple[int, int, int] = (1024, 1024, 256)) -> tuple[Any, dict[str, Buffer]]:
    rows, columns, inner = sizes
    call, buffers = product(rows, columns, inner, (False, True), bias=True)
    nest = reader(buffers, rows, columns)
    outputs = tuple(
        BufferView(n, buffers[n].shape, buffers[n].strides, as_expr(0)) for n in ("z", "wide", *(["y"] if kept else []))
    )
    inputs = tuple(n for n in ("a", "b", "c", "r"))
    program = LoopProgram("test", inputs, tuple(buffers.values()), (call, nest), outputs)
    return place_products(program, nvidia()), buffers


def test_an_epilogue_joins_its_product(interpreter: Interpreter) -> None:
    (program, (decision,)), _ = placed()
    (nest,) = program.steps
    assert decision.kind == "product"
    assert decision.taken
    facts = dict(decision.facts)
    assert facts["template_us"] < facts["library_us"]
    assert "y" not in {e.buffer for e in nest.body if hasattr(e, "buffer")}
    (kept, _), _ = placed(kept=True)
    assert "y" in {e.buffer for e in kept.steps[0].body if hasattr(e, "buffer")}
    (small, _), buffers = placed(sizes=(64, 64, 256))
    (nest,) = small.steps
    check(nest, buffers, interpreter, (32, 16, 64))


def computed(
    rows: int, columns: int = 4096, inner: int = 4096, *, gelu: bool = False, kept: bool = False
) -> tuple[LoopProgram, list[Any], dict[str, Buffer]]:
    """Weights kept as bytes, with a factor for each row: ``a @ (codes * scales).t()``, placed."""
    call, buffers = product(rows, columns, inner, (False, True))
    buffers["b"] = replace(buffers["b"], kind="temp")
    buffers["codes"], buffers["scales"] = buffer("codes", (columns, inner), "int8"), buffer("scales", (columns, 1))
    b = NestBuilder("n_b", [as_expr(columns), as_expr(inner)], ("b",))
    j, k = b.axes
    codes = b.load(whole(buffers["codes"]), [j, k]).to("float16")
    b.store(whole(buffers["b"]), codes * b.load(whole(buffers["scales"]), [j, as_expr(0)]), [j, k])
    steps: list[Any] = [b.nest(), call]
    if gelu:
        steps.append(reader(buffers, rows, columns))
    names = [*(["z", "wide"] if gelu else ["y"]), *(["b"] if kept else [])]
    outputs = tuple(BufferView(n, buffers[n].shape, buffers[n].strides, as_expr(0)) for n in names)
    inputs = ("a", "codes", "scales", *(["r"] if gelu else []))
    program = LoopProgram("test", inputs, tuple(buffers.values()), tuple(steps), outputs)
    return *place_products(program, nvidia()), buffers


@pytest.mark.parametrize("gelu", [False, True])
def test_what_computes_an_operand_joins_its_product(gelu: bool, interpreter: Interpreter, tmp_path: Path) -> None:
    program, (decision,), buffers = computed(16, gelu=gelu)
    (nest,) = program.steps
    assert decision.taken
    assert decision.subject == ("l_y", "n_b", *(["n_z"] if gelu else []))
    facts = dict(decision.facts)
    assert facts["template_us"] < facts["library_us"]
    assert isinstance(nest, Nest)
    assert {"b", "y"} & {e.buffer for e in nest.body if isinstance(e, Load)} == set()
    flat = flatten((nest,), buffers)
    dtypes = {f"b{k}": d for k, d in enumerate(flat.dtypes)}
    touched = [b for b in buffers.values() if b.name in {e.buffer for e in nest.body if isinstance(e, Load | Store)}]
    schedule = product_schedules(flat.nests[0], dtypes, nvidia())[0]
    done = compiled(case("k", [nest], touched, nvidia(), schedule).source, tmp_path)
    assert "mma" in done.asm["ptx"]
    small, _, buffers = computed(24, 40, 50, gelu=gelu)
    assert [type(step) for step in small.steps][:2] == [Nest, LibraryCall]  # too small for a kernel
    (nest,) = _joined(small, buffers)
    check(nest, buffers, interpreter, (16, 16, 32))


def _joined(program: LoopProgram, buffers: dict[str, Buffer]) -> list[Nest]:
    """What the steps of ``computed`` become where they are joined, at any size."""
    producer, call, *readers = program.steps
    assert isinstance(producer, Nest)
    assert isinstance(call, LibraryCall)
    nest = product_nest(call, buffers)
    assert nest is not None
    made = inline_into(nest, "b", producer, "fast")
    for step in readers:
        assert made is not None
        assert isinstance(step, Nest)
        made = with_epilogue(made, step, "y")
    assert made is not None
    return [made]


@pytest.mark.parametrize("why", ["kept", "many rows"])
def test_a_computed_operand_stays_where_that_is_faster_or_it_is_wanted(why: str) -> None:
    program, decisions, _ = computed(16 if why == "kept" else 2048, kept=why == "kept")
    assert [type(step) for step in program.steps] == [Nest, LibraryCall]
    assert [d.taken for d in decisions] == ([] if why == "kept" else [False])


def test_a_computed_operand_stays_where_what_it_is_made_of_is_written_again() -> None:
    program, _, buffers = computed(2048)
    call, other = program.steps[1], NestBuilder("n_codes", list(buffers["codes"].shape), ("codes",))
    other.store(whole(buffers["codes"]), other.load(whole(buffers["codes"])) + other.load(whole(buffers["codes"])))
    again, _, _ = computed(16)
    assert len(again.steps) == 1
    producer = program.steps[0]
    a = replace(buffers["a"], shape=(as_expr(16), as_expr(4096)), strides=(as_expr(4096), as_expr(1)))
    y = replace(buffers["y"], shape=a.shape, strides=a.strides)
    assert isinstance(call, LibraryCall)
    call = replace(call, args=(window(a, False), call.args[1]))
    changed = tuple({**buffers, "a": a, "y": y}.values())
    outputs = (BufferView("y", y.shape, y.strides, as_expr(0)),)
    for steps, joined in (((producer, call, other.nest()), True), ((producer, other.nest(), call), False)):
        made, _ = place_products(replace(program, buffers=changed, steps=steps, outputs=outputs), nvidia())
        assert (len(made.steps) == 2) == joined


@pytest.mark.parametrize("sizes", [(8192, 8192, 8192), (4096, 3072, 768)])
def test_a_large_product_stays_in_the_library(sizes: tuple[int, int, int]) -> None:
    (program, (decision,)), _ = placed(sizes=sizes)
    assert not decision.taken
    assert isinstance(program.steps[0], LibraryCall)


def test_a_computed_operand(interpreter: Interpreter) -> None:
    """silu(gate) * up, rounded, times the weights: zeros beyond the end of the summed axis in both operands."""
    rows, columns, inner = 33, 40, 50
    shapes = {"gate": (rows, inner), "up": (rows, inner), "w": (columns, inner), "y": (rows, columns)}
    buffers = {name: buffer(name, shape) for name, shape in shapes.items()}
    b = NestBuilder("n_y", [as_expr(n) for n in (rows, columns, inner)], ("y",))
    i, j, k = b.axes
    gate = b.load(whole(buffers["gate"]), [i, k]).to("float32")
    left = gate / ((-gate).op("exp") + 1.0) * b.load(whole(buffers["up"]), [i, k]).to("float32")
    right = b.load(whole(buffers["w"]), [j, k]).to("float32")
    b.store(whole(buffers["y"]), b.reduce("sum", left * right, [2]), [i, j])
    check(b.nest(), buffers, interpreter, (16, 16, 32))


def test_what_is_no_product() -> None:
    def nest_of(dtype: str, through: str) -> Nest:
        buffers = {n: buffer(n, s, dtype) for n, s in (("a", (8, 16)), ("b", (4, 16)), ("y", (8, 4)))}
        b = NestBuilder("n", [as_expr(n) for n in (8, 4, 16)], ("y",))
        i, j, k = b.axes
        left, right = (b.load(whole(buffers[n]), at).to("float32") for n, at in (("a", [i, k]), ("b", [j, k])))
        value = left * right if through == "mul" else left + right
        b.store(whole(buffers["y"]), b.reduce("sum", value, [2]), [i, j])
        return flatten((b.nest(),), buffers).nests[0]

    assert as_product(nest_of("bfloat16", "mul")) is not None
    assert as_product(nest_of("float32", "mul")) is None
    assert as_product(nest_of("bfloat16", "add")) is None


@pytest.mark.parametrize("transposed", [(False, True), (True, False)])
def test_wgmma(transposed: tuple[bool, bool], tmp_path: Path) -> None:
    """The best tiles of a large product use Hopper's matrix instruction and asynchronous copies, without spills."""
    call, buffers = product(4096, 4096, 4096, transposed)
    nest = product_nest(call, buffers)
    assert nest is not None
    flat = flatten((nest,), buffers)
    dtypes = {f"b{k}": d for k, d in enumerate(flat.dtypes)}
    schedule = product_schedules(flat.nests[0], dtypes, nvidia())[0]
    made = case("k", [nest], list(buffers.values()), nvidia(), schedule)
    done = compiled(made.source, tmp_path)
    text = done.asm["ptx"]
    assert "wgmma.mma_async" in text
    assert "cp.async" in text
    assert ".local .align" not in text
    assert done.metadata.shared <= nvidia().shared_bytes


def test_loads_are_of_the_operands() -> None:
    call, buffers = product(64, 64, 64, (False, True))
    nest = product_nest(call, buffers)
    assert nest is not None
    found = {e.buffer: e.index for e in nest.body if isinstance(e, Load)}
    i, j, k = (as_expr(a) for a in nest.axes)
    assert found == {"a": (i, k), "b": (j, k)}
