"""Small loop programs that between them use every part of the IR, and the plainest plan for each."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import torch

from lamina.base.decision import Decision
from lamina.base.dtypes import DTYPES, torch_dtype
from lamina.base.reasons import Reason
from lamina.ir.access import writes
from lamina.ir.index import Axis, Expr, Loaded, Size, as_expr
from lamina.ir.loops import (
    Buffer,
    BufferView,
    Check,
    Compute,
    Constant,
    Index,
    LibraryCall,
    Load,
    LoopProgram,
    Nest,
    Random,
    Reduce,
    Scan,
    SizeInput,
    Source,
    Store,
)
from lamina.ir.loops_interp import run_nest
from lamina.ir.plan import Kernel, KernelCall, Plan, PlanStep, Schedule
from lamina.schedule.flatten import flatten
from lamina.schedule.memory import plan_memory

__all__ = ["EXAMPLES", "buffer", "everything", "interpreted_kernels", "pointwise_chain", "simple_plan", "view"]


def exprs(*values: int | Expr) -> tuple[Expr, ...]:
    return tuple(as_expr(v) for v in values)


def buffer(name: str, *shape: int | Expr, dtype: str = "float32", kind: str = "temp") -> Buffer:
    """A contiguous buffer."""
    strides: list[Expr] = []
    running = as_expr(1)
    for n in reversed(shape):
        strides.append(running)
        running = running * n
    return Buffer(name, dtype, exprs(*shape), tuple(reversed(strides)), "cpu", kind)


def view(b: Buffer) -> BufferView:
    """All of a buffer."""
    return BufferView(b.name, b.shape, b.strides, as_expr(0))


def ats(*axes: Axis) -> tuple[Expr, ...]:
    return tuple(as_expr(a) for a in axes)


def softmax(rows: int | Expr = 4, cols: int = 8) -> LoopProgram:
    """One nest with two reductions whose results are used again."""
    x, y = buffer("x", rows, cols, kind="input"), buffer("y", rows, cols, kind="output")
    i, r = Axis("i", as_expr(rows)), Axis("r", as_expr(cols))
    o = ("softmax",)
    body = (
        Load("a", "x", ats(i, r), "float32", origin=o),
        Reduce(("m",), "max", "a", ("r",), "float32", o),
        Compute("d", "sub", ("a", "m"), "float32", o),
        Compute("e", "exp", ("d",), "float32", o),
        Reduce(("s",), "sum", "e", ("r",), "float32", o),
        Compute("q", "div", ("e", "s"), "float32", o),
        Store("y", ats(i, r), "q", origin=o),
    )
    inputs = ("x",) if isinstance(rows, int) else (SizeInput("n", rows), "x")
    source = (Source("softmax", "aten._softmax.default", "model.py:12"),)
    return LoopProgram("softmax", inputs, (x, y), (Nest("rows", (i, r), body),), (view(y),), source)


def gelu_mm() -> LoopProgram:
    """A kernel, a product into the arena, a kernel in place of its result, a product that is returned."""
    x, w = buffer("x", 4, 8, kind="input"), buffer("w", 16, 8, kind="input")
    h, p, t = buffer("h", 4, 8), buffer("p", 4, 16), buffer("t", 4, 16)
    y = buffer("y", 4, 4, kind="output")
    i, j, k = Axis("i", as_expr(4)), Axis("j", as_expr(8)), Axis("j", as_expr(16))
    first = Nest(
        "first",
        (i, j),
        (
            Load("a", "x", ats(i, j), "float32", origin=("tanh",)),
            Compute("b", "tanh", ("a",), "float32", ("tanh",)),
            Store("h", ats(i, j), "b", origin=("tanh",)),
        ),
    )
    wt = BufferView("w", exprs(8, 16), exprs(1, 8), as_expr(0))
    second = Nest(
        "second",
        (i, k),
        (
            Load("a", "p", ats(i, k), "float32", origin=("relu",)),
            Compute("b", "relu", ("a",), "float32", ("relu",)),
            Store("t", ats(i, k), "b", origin=("relu",)),
        ),
    )
    tt = BufferView("t", exprs(16, 4), exprs(1, 16), as_expr(0))
    steps = (
        first,
        LibraryCall("mm", "aten.mm.default", (view(h), wt), (), ("p",), origin=("mm",)),
        second,
        LibraryCall("mm_1", "aten.mm.default", (view(t), tt), (), ("y",), origin=("mm_1",)),
    )
    sources = (
        Source("tanh", "aten.tanh.default", "model.py:41"),
        Source("mm", "aten.mm.default", "model.py:42"),
        Source("relu", "aten.relu.default", "model.py:43"),
        Source("mm_1", "aten.mm.default", "model.py:44"),
    )
    return LoopProgram("gelu_mm", ("x", "w"), (x, w, h, p, t, y), steps, (view(y),), sources)


def gather() -> LoopProgram:
    """A checked, masked gather, an accumulating scatter into an input, and a fill."""
    table, index = buffer("table", 5, 3, kind="input"), buffer("index", 4, dtype="int64", kind="input")
    grad, y = buffer("grad", 5, 3, kind="input"), buffer("y", 4, 3, kind="output")
    i, j = Axis("i", as_expr(4)), Axis("j", as_expr(3))
    row = Loaded("k", as_expr(5))
    o = ("embedding",)
    body = (
        Load("k", "index", ats(i), "int64", origin=o),
        Constant("zero", 0, "int64", o),
        Constant("five", 5, "int64", o),
        Compute("low", "ge", ("k", "zero"), "bool", o),
        Compute("high", "lt", ("k", "five"), "bool", o),
        Compute("inside", "and", ("low", "high"), "bool", o),
        Check("low", "indices are not negative", "RuntimeError", o),
        Check("inside", "index out of range in embedding", origin=o),
        Load("v", "table", (as_expr(row), as_expr(j)), "float32", "inside", 0.0, o),
        Store("y", ats(i, j), "v", origin=o),
        Store("grad", (as_expr(row), as_expr(j)), "v", "add", "inside", o),
    )
    sources = (Source("embedding", "aten.embedding.default", "model.py:7"),)
    nest = Nest("gather", (i, j), body)
    return LoopProgram("gather", ("table", "index", "grad"), (table, index, grad, y), (nest,), (view(y),), sources)


def everything() -> LoopProgram:
    """Index values, divisions, random numbers, a scan, several results, special numbers, an unused input."""
    n = as_expr(Size("n", 2))
    x, seed = buffer("x", n, 6, kind="input"), buffer("seed", dtype="int64", kind="input")
    y, c, top = (buffer(k, n, 6, kind="output") for k in ("y", "c", "top"))
    i, j = Axis("i", n), Axis("j", as_expr(6))
    flat = as_expr(i) * 6 + as_expr(j)
    o = ("dropout",)
    body = (
        Load("s", "seed", (), "int64", origin=o),
        Random("u", "s", 3, flat, "float32", o),
        Index("half", flat // 4 + (flat % 4) * 2, "float32", o),
        Load("a", "x", ats(i, j), "float32", origin=o),
        Compute("t", "mul", ("a", "u"), "float32", o),
        Compute("z", "add", ("t", "half"), "float32", o),
        Reduce(("mean", "square"), "welford", "z", ("j",), "float32", o),
        Compute("w", "add", ("mean", "square"), "float32", o),
        Constant("inf", float("inf"), "float32", o),
        Compute("w2", "minimum", ("w", "inf"), "float32", o),
        Scan("run", "sum", "z", "j", "float32", True, o),
        Store("y", ats(i, j), "z", origin=o),
        Store("top", ats(i, j), "w2", origin=o),
        Store("c", ats(i, j), "run", origin=o),
    )
    sort = LibraryCall(
        "sort",
        "aten.sort.stable",
        (view(y),),
        (("stable", True), ("dim", 1), ("descending", False)),
        ("sorted", None),
        (),
        "no kernel",
        ("sort",),
    )
    made = buffer("sorted", n, 6, kind="output")
    outputs = (view(c), view(top), n * 6, None, view(made))
    sources = (Source("dropout", "aten.native_dropout.default", "a/model.py:9"), Source("sort", "aten.sort.stable", ""))
    inputs = (SizeInput("n", n), "x", None, "seed")
    return LoopProgram(
        "everything", inputs, (x, seed, y, c, top, made), (Nest("all", (i, j), body), sort), outputs, sources
    )


def pointwise_chain(length: int, products: bool = False, width: int = 8) -> LoopProgram:
    """``length`` kernels in a row (each between two matrix products when ``products``)."""
    names = [buffer("x", width, width, kind="input")]
    w = buffer("w", width, width, kind="input")
    i, j = Axis("i", as_expr(width)), Axis("j", as_expr(width))
    steps: list[Nest | LibraryCall] = []
    sources = []
    for k in range(length):
        if products:
            names.append(buffer(f"m{k}", width, width))
            call = (view(names[-2]), view(w))
            steps.append(LibraryCall(f"mm{k}", "aten.mm.default", call, (), (f"m{k}",), origin=(f"mm{k}",)))
            sources.append(Source(f"mm{k}", "aten.mm.default", f"model.py:{k}"))
        kind = "output" if k == length - 1 else "temp"
        names.append(buffer(f"t{k}", width, width, kind=kind))
        o = (f"tanh{k}",)
        body = (
            Load("a", names[-2].name, ats(i, j), "float32", origin=o),
            Compute("b", "tanh", ("a",), "float32", o),
            Store(names[-1].name, ats(i, j), "b", origin=o),
        )
        steps.append(Nest(f"k{k}", (i, j), body))
        sources.append(Source(f"tanh{k}", "aten.tanh.default", f"model.py:{k}"))
    inputs = ("x", "w") if products else ("x",)
    buffers = (*names, w) if products else tuple(names)
    return LoopProgram("chain", inputs, buffers, tuple(steps), (view(names[-1]),), tuple(sources))


def simple_plan(program: LoopProgram) -> Plan:
    """One kernel for each nest, in the given order."""
    buffers = program.buffer_map()
    kernels: dict[tuple[Nest, ...], Kernel] = {}
    steps: list[PlanStep] = []
    for step in program.steps:
        if not isinstance(step, Nest):
            steps.append(step)
            continue
        flat = flatten((step,), buffers)
        kernel = kernels.get(flat.nests)
        if kernel is None:
            sizes = tuple(f"s{k}" for k in range(len(flat.sizes)))
            axes = tuple(a.name for a in flat.nests[0].axes)
            schedule = Schedule("pointwise", axes, ())
            kernel = Kernel(f"k_{step.name}", flat.nests, (schedule,), flat.dtypes, sizes)
            kernels[flat.nests] = kernel
        written = tuple(sorted(writes(step)))
        steps.append(KernelCall(step.name, kernel.name, flat.buffers, flat.sizes, written, (step,)))
    places, arena = plan_memory(steps, program.buffers, program.inputs, program.outputs)
    decisions = (
        Decision(
            "fuse",
            ("a", "b"),
            False,
            Reason("too many registers", "LM0001", "use fewer"),
            (("bytes", 64), ("ratio", 0.5)),
        ),
    )
    return Plan(
        program.name,
        program.inputs,
        program.buffers,
        tuple(kernels.values()),
        tuple(steps),
        program.outputs,
        places,
        arena,
        decisions,
        program.sources,
    )


class _Interpreted:
    """A kernel with the runtime's interface that runs its nests with the reference interpreter on raw addresses."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.pack: Callable[..., bytes] = struct.Struct("@" + "P" * len(kernel.dtypes) + "q" * len(kernel.sizes)).pack
        self.calls = 0

    def launch(self, packed: bytes) -> int:
        self.calls += 1
        count = len(self.kernel.dtypes)
        values = struct.unpack("@" + "P" * count + "q" * len(self.kernel.sizes), packed)
        sizes = dict(zip(self.kernel.sizes, values[count:], strict=True))
        memory = {
            f"b{k}": _memory(address, self._span(f"b{k}", sizes), dtype)
            for k, (address, dtype) in enumerate(zip(values[:count], self.kernel.dtypes, strict=True))
        }
        checks = [(e.error, e.message) for nest in self.kernel.nests for e in nest.body if isinstance(e, Check)]
        for nest in self.kernel.nests:
            try:
                run_nest(nest, memory, sizes)
            except (IndexError, RuntimeError) as error:
                return 1 + checks.index((type(error).__name__, str(error)))
        return 0

    def _span(self, name: str, sizes: dict[str, int]) -> int:
        last = 0
        for nest in self.kernel.nests:
            for eqn in nest.body:
                if isinstance(eqn, Load | Store) and eqn.buffer == name:
                    high = eqn.index[0].bounds()[1]
                    assert high is not None
                    last = max(last, int(high.evaluate(sizes)) + 1)
        return last


def _memory(address: int, elements: int, dtype: str) -> torch.Tensor:
    raw = (ctypes.c_char * max(1, elements * DTYPES[dtype].size)).from_address(address)
    return torch.frombuffer(raw, dtype=torch_dtype(dtype), count=elements)


def interpreted_kernels(plan: Plan) -> dict[str, Any]:
    """The plan's kernels as a host program wants them, run by the interpreter."""
    return {kernel.name: _Interpreted(kernel) for kernel in plan.kernels}


EXAMPLES: dict[str, LoopProgram] = {
    "softmax": softmax(),
    "dynamic": softmax(as_expr(Size("n", 1))),
    "gelu_mm": gelu_mm(),
    "gather": gather(),
    "everything": everything(),
    "chain": pointwise_chain(3, products=True),
}
"""One program of each kind."""


def example_inputs(program: LoopProgram, n: int = 5) -> list[Any]:
    """Inputs for one of these programs; ``n`` is the value of every size."""
    made: list[Any] = []
    buffers = program.buffer_map()
    for item in program.inputs:
        if isinstance(item, str):
            b = buffers[item]
            shape = [int(e.evaluate({"n": n})) for e in b.shape]
            dtype = torch_dtype(b.dtype)
            made.append(torch.randint(0, 5, shape) if b.dtype == "int64" else torch.randn(shape, dtype=dtype))
        else:
            made.append(n if isinstance(item, SizeInput) else None)
    return made
