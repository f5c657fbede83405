"""The loop IR: nests of named equations over an iteration space, library calls, and the buffers between them.

A ``Nest`` is a box of axes and a body in A-normal form. No equation says how it is iterated: an equation's value
varies over the axes that its operands vary over, less those it reduces, and the result of a reduction may be used
again in the same nest. So softmax is one nest, and so is a norm with its row statistics and column sums.

    softmax: axes (i, r)
        x = Load(x_buf, [i, r])      m = Reduce(max, x over r)     e = exp(x - m)
        s = Reduce(sum, e over r)    y = e / s                     Store(y_buf, [i, r], y)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from lamina.base.devices import kind_of
from lamina.base.dtypes import DTYPES
from lamina.base.files import text_of
from lamina.ir.index import Axis, Expr, Loaded, as_expr, prod

__all__ = [
    "ERRORS",
    "Buffer",
    "BufferView",
    "Check",
    "Compute",
    "Constant",
    "Equation",
    "Index",
    "LibraryCall",
    "Load",
    "LoopProgram",
    "Nest",
    "Random",
    "Reduce",
    "Scan",
    "SizeInput",
    "Source",
    "Step",
    "Store",
    "axes_of",
    "axes_of_values",
    "defined",
    "operands",
    "row_major_strides",
    "storage_bytes",
]

Origin: TypeAlias = tuple[str, ...]
"""Names of the FX nodes an equation comes from; ``LoopProgram.sources`` has their place in the user's code."""


@dataclass(frozen=True, slots=True)
class Source:
    """An FX node's operation and the user's line that asked for it."""

    node: str
    op: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of one dtype, addressed by logical indices; strides are in elements.

    ``kind`` is "input" (given by the caller), "output" (returned, or saved for the backward pass) or "temp".
    """

    name: str
    dtype: str
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    device: str = "cpu"
    kind: str = "temp"

    @property
    def on_cpu(self) -> bool:
        """Whether a CPU's kernels reach it."""
        return kind_of(self.device).host

    @property
    def on_gpu(self) -> bool:
        """Whether it is memory of a GPU that kernels are generated for."""
        return kind_of(self.device).grids


@lru_cache(maxsize=4096)
def row_major_strides(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The strides of contiguous memory of this shape, in elements."""
    return tuple(prod(shape[k + 1 :]) for k in range(len(shape)))


@dataclass(frozen=True, slots=True)
class BufferView:
    """A strided window onto a buffer: what a library call takes and a program returns. Units: elements."""

    buffer: str
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr


@dataclass(frozen=True, slots=True)
class Load:
    """Read ``buffer[index]``; where the bool value ``mask`` is false, ``fill`` is taken and memory is not touched."""

    out: str
    buffer: str
    index: tuple[Expr, ...]
    dtype: str
    mask: str | None = None
    fill: int | float | bool = 0
    origin: Origin = ()


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal."""

    out: str
    value: int | float | bool
    dtype: str
    origin: Origin = ()


@dataclass(frozen=True, slots=True)
class Index:
    """The value of an index expression (an axis, a size, arithmetic on them), as a number of ``dtype``."""

    out: str
    expr: Expr
    dtype: str
    origin: Origin = ()


@dataclass(frozen=True, slots=True)
class Compute:
    """Apply the scalar operation ``op`` of ``ir.ops.OPS`` to named values."""

    out: str
    op: str
    ins: tuple[str, ...]
    dtype: str
    origin: Origin = ()


@dataclass(frozen=True, slots=True)
class Random:
    """Philox4x32-10 uniform in [0, 1): the key is the int64 value ``seed``, the counter ``(index // 4, stream)``.

    ``stream`` is a number, or in a shared kernel the size parameter that holds it.
    """

    out: str
    seed: str
    stream: int | Expr
    index: Expr
    dtype: str
    origin: Origin = ()


@dataclass(frozen=True, slots=True)
class Reduce:
    """Combine ``value`` over ``axes``; the value is taken as repeated along reduced axes it does not vary over."""

    outs: tuple[str, ...]
    op: str
    value: str
    axes: tuple[str, ...]
    dtype: str
    origin: Origin = ()


@dataclass(frozen=True, slots=True)
class Scan:
    """Inclusive running combination of ``value`` along ``axis``; ``reverse`` runs from the end."""

    out: str
    op: str
    value: str
    axis: str
    dtype: str
    reverse: bool = False
    origin: Origin = ()


@dataclass(frozen=True, slots=True)
class Store:
    """Write ``value`` to ``buffer[index]``. ``mode`` "set" overwrites, "add" accumulates (colliding indices add up).

    With ``mask``, nothing is written where that bool value is false.
    """

    buffer: str
    index: tuple[Expr, ...]
    value: str
    mode: str = "set"
    mask: str | None = None
    origin: Origin = ()


ERRORS = ("IndexError", "RuntimeError", "ValueError", "ZeroDivisionError")
"""The built-in exceptions that a failed ``Check`` may raise: those that eager's kernels raise."""


@dataclass(frozen=True, slots=True)
class Check:
    """Fail with the built-in exception ``error`` (one of ``ERRORS``) if the bool value ``cond`` is false anywhere."""

    cond: str
    message: str
    error: str = "IndexError"
    origin: Origin = ()


Equation: TypeAlias = Load | Constant | Index | Compute | Random | Reduce | Scan | Store | Check


@dataclass(frozen=True, slots=True)
class Nest:
    """Equations over the box ``axes``. Axis names are unique within a nest."""

    name: str
    axes: tuple[Axis, ...]
    body: tuple[Equation, ...]


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """Call the ATen operation ``op`` (for example "aten.mm.default").

    ``args`` and ``kwargs`` hold ``BufferView``, ``Expr`` (a run-time integer), tuples, torch dtypes, devices and plain
    scalars. ``outs`` names the result buffers in order; ``None`` for a result nobody reads. ``mutates`` names
    the buffers the call writes in place, ``reason`` says why there is no kernel of our own.
    """

    name: str
    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    outs: tuple[str | None, ...]
    mutates: tuple[str, ...] = ()
    reason: str = ""
    origin: Origin = ()
    list_result: bool = False


Step: TypeAlias = Nest | LibraryCall


@dataclass(frozen=True, slots=True)
class SizeInput:
    """An integer input of the program: the run-time value of a size symbol (or a plain known integer)."""

    name: str
    expr: Expr


@dataclass(frozen=True, slots=True)
class LoopProgram:
    """A region: inputs in call order (buffer names, integers, opaque objects), steps in order, outputs in order.

    Steps run in order; a step may overwrite an input buffer (mutation), so order between readers and
    writers of a buffer is part of the meaning. An output is a view, an integer, or ``None``.
    """

    name: str
    inputs: tuple[str | SizeInput | None, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    outputs: tuple[BufferView | Expr | None, ...]
    sources: tuple[Source, ...] = ()

    def __str__(self) -> str:
        return text_of(self)

    def buffer_map(self) -> dict[str, Buffer]:
        """Buffers by name."""
        return {b.name: b for b in self.buffers}


def defined(eqn: Equation) -> tuple[str, ...]:
    """Names of the values an equation defines."""
    if isinstance(eqn, Reduce):
        return eqn.outs
    if isinstance(eqn, Store | Check):
        return ()
    return (eqn.out,)


def operands(eqn: Equation) -> tuple[str, ...]:
    """Names of the values an equation reads, including those inside index expressions."""
    if isinstance(eqn, Compute):
        return eqn.ins
    if isinstance(eqn, Load):
        return (*_loaded(eqn.index), *((eqn.mask,) if eqn.mask else ()))
    if isinstance(eqn, Store):
        return (*_loaded(eqn.index), eqn.value, *((eqn.mask,) if eqn.mask else ()))
    if isinstance(eqn, Reduce | Scan):
        return (eqn.value,)
    if isinstance(eqn, Random):
        return (eqn.seed, *_loaded((eqn.index,)))
    if isinstance(eqn, Check):
        return (eqn.cond,)
    if isinstance(eqn, Index):
        return _loaded((eqn.expr,))
    return ()


def storage_bytes(buffer: Buffer) -> Expr:
    """Bytes from the buffer's first element to the end of its last."""
    known, rest = 1, as_expr(0)
    for n, stride in zip(buffer.shape, buffer.strides, strict=True):
        if n.terms or stride.terms:
            rest = rest + (n - 1) * stride
        elif n.const == 0:
            return as_expr(0)
        else:
            known += (n.const - 1) * stride.const
    return (rest + known) * DTYPES[buffer.dtype].size


def _loaded(index: tuple[Expr, ...]) -> tuple[str, ...]:
    return tuple(sorted({a.name for e in index if e.terms for a in e.atoms() if isinstance(a, Loaded)}))


def _index_axes(index: tuple[Expr, ...]) -> set[str]:
    return {name for e in index if e.terms for name in e.axes()}


def axes_of(eqn: Equation, varies: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The axes that an equation runs over; ``varies`` has those of the values that it uses."""
    found = set[str]().union(*(varies[name] for name in operands(eqn)))
    if isinstance(eqn, Load | Store):
        found |= _index_axes(eqn.index)
    elif isinstance(eqn, Index):
        found |= _index_axes((eqn.expr,))
    elif isinstance(eqn, Random):
        found |= _index_axes((eqn.index,))
    elif isinstance(eqn, Reduce):
        found |= set(eqn.axes)
    elif isinstance(eqn, Scan):
        found.add(eqn.axis)
    return frozenset(found)


def axes_of_values(nest: Nest, uniform: Collection[str] = ()) -> dict[str, frozenset[str]]:
    """The axes each value varies over; all elements of the buffers ``uniform`` are equal."""
    axes: dict[str, frozenset[str]] = {}
    for eqn in nest.body:
        if isinstance(eqn, Store | Check):
            continue
        equal = isinstance(eqn, Load) and eqn.buffer in uniform and eqn.mask is None
        found = frozenset() if equal else axes_of(eqn, axes)
        for name in defined(eqn):
            axes[name] = found - set(eqn.axes) if isinstance(eqn, Reduce) else found
    return axes
