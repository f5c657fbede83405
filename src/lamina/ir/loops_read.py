"""The names that printed loop programs and plans are written in: evaluating their text gives equal values.

Arithmetic on sizes, axes and loaded indices here puts together exactly what is written and simplifies nothing,
unlike that of ``Expr``, so that what was printed comes back as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.ir import index, loops, plan
from lamina.ir.index import Expr
from lamina.ir.loops import Check, Compute, Constant, Reduce, Scan, Source
from lamina.ir.plan import Block, GpuSchedule, Schedule

__all__ = [
    "Axis",
    "Block",
    "Buffer",
    "BufferView",
    "Check",
    "Compute",
    "Constant",
    "Decision",
    "GpuSchedule",
    "Index",
    "Kernel",
    "KernelCall",
    "LibraryCall",
    "Load",
    "Loaded",
    "LoopProgram",
    "Nest",
    "Place",
    "Plan",
    "Random",
    "Reason",
    "Reduce",
    "Scan",
    "Schedule",
    "Size",
    "SizeInput",
    "Source",
    "Store",
    "expr",
    "inf",
    "nan",
    "torch",
]

inf = float("inf")
nan = float("nan")


class Sum:
    """A sum of products as written."""

    __slots__ = ("const", "terms")

    def __init__(self, terms: tuple[tuple[tuple[index.Atom, ...], int], ...], const: int = 0) -> None:
        self.terms, self.const = terms, const

    def __add__(self, other: Sum | int) -> Sum:
        if isinstance(other, int):
            return Sum(self.terms, self.const + other)
        return Sum(self.terms + other.terms, self.const + other.const)

    def __radd__(self, other: int) -> Sum:
        return Sum(self.terms, self.const + other)

    def __neg__(self) -> Sum:
        return self * -1

    def __sub__(self, other: Sum | int) -> Sum:
        return self + (-other)

    def __rsub__(self, other: int) -> Sum:
        return -self + other

    def __mul__(self, other: Sum | int) -> Sum:
        if isinstance(other, int):
            return Sum(tuple((mono, coef * other) for mono, coef in self.terms), self.const * other)
        ((left, a),), ((right, b),) = self.terms, other.terms
        return Sum(((left + right, a * b),))

    __rmul__ = __mul__

    def __floordiv__(self, other: Sum | int) -> Sum:
        return _atom(index.Div(expr(self), expr(other)))

    def __rfloordiv__(self, other: int) -> Sum:
        return _atom(index.Div(expr(other), expr(self)))

    def __mod__(self, other: Sum | int) -> Sum:
        return _atom(index.Mod(expr(self), expr(other)))

    def __rmod__(self, other: int) -> Sum:
        return _atom(index.Mod(expr(other), expr(self)))


Number = Sum | int
Numbers = Iterable[Number]
Origin = tuple[str, ...]


def _atom(atom: index.Atom) -> Sum:
    return Sum((((atom,), 1),))


def expr(value: Number | Expr) -> Expr:
    """The expression that was written."""
    if isinstance(value, Sum):
        return Expr(value.terms, value.const)
    return index.as_expr(value)


def _exprs(values: Numbers) -> tuple[Expr, ...]:
    return tuple(map(expr, values))


def _argument(value: Any) -> Any:
    if isinstance(value, Sum):
        return expr(value)
    return tuple(map(_argument, value)) if isinstance(value, tuple) else value


def Size(name: str, low: int | None = 0) -> Sum:
    """A size."""
    return _atom(index.Size(name, low))


def Axis(name: str, extent: Number) -> Sum:
    """An axis."""
    return _atom(index.Axis(name, expr(extent)))


def Loaded(name: str, bound: Number) -> Sum:
    """A loaded index."""
    return _atom(index.Loaded(name, expr(bound)))


def Buffer(
    name: str, dtype: str, shape: Numbers, strides: Numbers, device: str = "cpu", kind: str = "temp"
) -> loops.Buffer:
    """A ``Buffer``."""
    return loops.Buffer(name, dtype, _exprs(shape), _exprs(strides), device, kind)


def BufferView(buffer: str, shape: Numbers, strides: Numbers, offset: Number) -> loops.BufferView:
    """A ``BufferView``."""
    return loops.BufferView(buffer, _exprs(shape), _exprs(strides), expr(offset))


def Load(
    out: str,
    buffer: str,
    index: Numbers,
    dtype: str,
    mask: str | None = None,
    fill: int | float | bool = 0,
    origin: Origin = (),
) -> loops.Load:
    """A ``Load``."""
    return loops.Load(out, buffer, _exprs(index), dtype, mask, fill, origin)


def Index(out: str, value: Number, dtype: str, origin: Origin = ()) -> loops.Index:
    """A ``Index``."""
    return loops.Index(out, expr(value), dtype, origin)


def Random(out: str, seed: str, stream: Number | Expr, index: Number, dtype: str, origin: Origin = ()) -> loops.Random:
    """A ``Random``."""
    return loops.Random(out, seed, stream if isinstance(stream, int) else expr(stream), expr(index), dtype, origin)


def Store(
    buffer: str, index: Numbers, value: str, mode: str = "set", mask: str | None = None, origin: Origin = ()
) -> loops.Store:
    """A ``Store``."""
    return loops.Store(buffer, _exprs(index), value, mode, mask, origin)


def Nest(name: str, axes: Iterable[Sum], body: tuple[loops.Equation, ...]) -> loops.Nest:
    """A ``Nest``."""
    found = []
    for axis in axes:
        (((atom,), _),) = axis.terms
        assert isinstance(atom, index.Axis)
        found.append(atom)
    return loops.Nest(name, tuple(found), body)


def LibraryCall(
    name: str,
    op: str,
    args: tuple[Any, ...],
    kwargs: tuple[tuple[str, Any], ...],
    outs: tuple[str | None, ...],
    mutates: tuple[str, ...] = (),
    reason: str = "",
    origin: Origin = (),
    list_result: bool = False,
) -> loops.LibraryCall:
    """A ``LibraryCall``."""
    return loops.LibraryCall(name, op, _argument(args), _argument(kwargs), outs, mutates, reason, origin, list_result)


def SizeInput(name: str, value: Number) -> loops.SizeInput:
    """A ``SizeInput``."""
    return loops.SizeInput(name, expr(value))


def _outputs(outputs: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(expr(o) if isinstance(o, Sum | int) else o for o in outputs)


def LoopProgram(
    name: str,
    inputs: tuple[str | loops.SizeInput | None, ...],
    buffers: Iterable[loops.Buffer],
    steps: Iterable[loops.Step],
    outputs: Iterable[Any],
    sources: Iterable[Source] = (),
) -> loops.LoopProgram:
    """A ``LoopProgram``."""
    return loops.LoopProgram(name, inputs, tuple(buffers), tuple(steps), _outputs(outputs), tuple(sources))


def Kernel(
    name: str,
    nests: tuple[loops.Nest, ...],
    schedules: tuple[Schedule | GpuSchedule, ...],
    dtypes: tuple[str, ...],
    sizes: tuple[str, ...] = (),
) -> plan.Kernel:
    """A ``Kernel``."""
    return plan.Kernel(name, nests, schedules, dtypes, sizes)


def KernelCall(
    name: str,
    kernel: str,
    buffers: tuple[str, ...],
    sizes: Numbers,
    writes: tuple[str, ...],
    nests: tuple[loops.Nest, ...],
) -> plan.KernelCall:
    """A ``KernelCall``."""
    return plan.KernelCall(name, kernel, buffers, _exprs(sizes), writes, nests)


def Place(buffer: str, where: str, offset: Number | None = None) -> plan.Place:
    """A ``Place``."""
    return plan.Place(buffer, where, None if offset is None else expr(offset))


def Plan(
    name: str,
    inputs: tuple[str | loops.SizeInput | None, ...],
    buffers: Iterable[loops.Buffer],
    kernels: Iterable[plan.Kernel],
    steps: Iterable[plan.PlanStep],
    outputs: Iterable[Any],
    places: Iterable[plan.Place],
    arena_bytes: Number,
    decisions: Iterable[Decision] = (),
    sources: Iterable[Source] = (),
) -> plan.Plan:
    """A ``Plan``."""
    return plan.Plan(
        name,
        inputs,
        tuple(buffers),
        tuple(kernels),
        tuple(steps),
        _outputs(outputs),
        tuple(places),
        expr(arena_bytes),
        tuple(decisions),
        tuple(sources),
    )
