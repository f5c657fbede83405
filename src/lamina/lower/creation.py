"""Tensors made from nothing, casts and copies."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node
from torch.utils import deterministic

from lamina.base.dtypes import DTYPES, dtype_of
from lamina.ir.index import Expr, as_expr
from lamina.lower.builder import NestBuilder, Value
from lamina.lower.context import Lowering, Operand
from lamina.lower.half_types import rounded_to_half, rounds_on_purpose
from lamina.lower.rules import Decline, rule
from lamina.lower.sizes import stride_of
from lamina.lower.values import TensorValue, linear_view

__all__ = ["ZEROS"]


def _made(low: Lowering, node: Node, body: Callable[[NestBuilder, str], Value]) -> TensorValue:
    """A tensor whose elements ``body`` computes from the axes, in the dtype it is given."""
    out = low.result(node)
    low.plain(out.dtype)
    b = low.nest(node, out.shape)
    b.store(out, body(b, out.dtype))
    low.finish(b)
    return out


def _filled(low: Lowering, node: Node, value: Operand) -> TensorValue:
    low.require_fit(dtype_of(node.meta["val"].dtype), value)
    return _made(low, node, lambda b, dtype: low.operand(b, value, dtype))


@rule("aten.full.default", "aten.full_like.default", "prims.full.default", "prims.full_like.default")
def full(low: Lowering, node: Node, like: Any, value: Operand, *rest: Any, **options: Any) -> TensorValue:
    return _filled(low, node, value)


@rule("aten.new_full.default")
def new_full(low: Lowering, node: Node, like: Any, shape: Any, value: Operand, **options: Any) -> TensorValue:
    return _filled(low, node, value)


@rule("aten.fill.Scalar", "aten.fill.Tensor", "prims.fill.default")
def fill(low: Lowering, node: Node, like: TensorValue, value: Operand) -> TensorValue:
    return _filled(low, node, value)


@rule("aten.scalar_tensor.default", "prims.scalar_tensor.default")
def scalar_tensor(low: Lowering, node: Node, value: Operand, **options: Any) -> TensorValue:
    return _filled(low, node, value)


@rule("aten.ones.default", "aten.ones_like.default", "aten.new_ones.default")
def ones(low: Lowering, node: Node, *like: Any, **options: Any) -> TensorValue:
    return _filled(low, node, 1)


ZEROS = ("aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default", "aten.zero.default")
"""Operators whose results are zeros."""


@rule(
    *ZEROS,
    "aten._efficientzerotensor.default",
    *("aten.empty.memory_format", "aten.empty_like.default", "aten.new_empty.default", "aten.empty_strided.default"),
    *("aten.new_empty_strided.default", "aten.empty_permuted.default"),
    *("prims.empty.default", "prims.empty_strided.default", "prims.empty_permuted.default"),
)
def zeros(low: Lowering, node: Node, *like: Any, **options: Any) -> TensorValue:
    """Zeros; also for "empty", whose elements may be anything, so that no run differs from another."""
    out = low.result(node)
    if [stride_of(s) for s in node.meta["val"].stride()] != list(low.buffers[out.buffer].strides):
        raise Decline("a tensor with gaps or overlaps")
    return _filled(low, node, _uninitialised(node))


def _uninitialised(node: Node) -> Any:
    """What new memory holds: eager fills that of "empty" where programs are to be deterministic."""
    fills = torch.are_deterministic_algorithms_enabled() and deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    if not fills or "empty" not in str(node.target):
        return 0
    dtype = node.meta["val"].dtype
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return True if dtype == torch.bool else torch.iinfo(dtype).max


def _sequence(low: Lowering, node: Node, start: Operand, step: Operand) -> TensorValue:
    """``start + step * i``; exact where both are integers, else in double precision before the one rounding."""

    def body(b: NestBuilder, dtype: str) -> Value:
        whole = all(isinstance(v, Expr | int) or (isinstance(v, float) and v.is_integer()) for v in (start, step))
        kin = "int64" if whole else "float64"
        return low.operand(b, start, kin) + b.index(b.axes[0]).to(kin) * low.operand(b, step, kin)

    return _made(low, node, body)


@rule("aten.arange.start_step", "aten.arange.start", "aten.arange.default")
def arange(
    low: Lowering, node: Node, first: Operand, end: Operand = 0, step: Operand = 1, **options: Any
) -> TensorValue:
    if str(node.target) == "aten.arange.default":
        first = 0
    if not DTYPES[dtype_of(node.meta["val"].dtype)].is_float and not all(
        isinstance(v, int | Expr) for v in (first, step)
    ):
        raise Decline("integers from fractional ends")
    return _sequence(low, node, first, step)


@rule("prims.iota.default")
def iota(
    low: Lowering, node: Node, length: Operand, start: Operand = 0, step: Operand = 1, **options: Any
) -> TensorValue:
    return _sequence(low, node, start, step)


@rule("aten.linspace.default")
def linspace(low: Lowering, node: Node, start: Operand, end: Operand, steps: int, **options: Any) -> TensorValue:
    if not isinstance(start, int | float) or not isinstance(end, int | float) or not isinstance(steps, int):
        raise Decline("ends or number of steps known only at run time")
    if not DTYPES[dtype_of(node.meta["val"].dtype)].is_float:
        raise Decline("integer linspace")
    first, last = float(start), float(end)
    step = (last - first) / (steps - 1) if steps > 1 else 0.0

    def body(b: NestBuilder, dtype: str) -> Value:
        i = b.index(b.axes[0])
        up = i.to("float64") * step + first
        down = last - b.index(steps - 1 - b.axes[0]).to("float64") * step
        return b.where(i < steps // 2, up, down) if steps > 1 else up

    return _made(low, node, body)


@rule("aten.eye.default", "aten.eye.m")
def eye(low: Lowering, node: Node, *shape: Any, **options: Any) -> TensorValue:
    return _made(low, node, lambda b, dtype: b.index(b.axes[0]).equals(b.index(b.axes[1])).to(dtype))


def _same_device(node: Node, source: Node) -> None:
    if node.meta["val"].device != source.meta["val"].device:
        raise Decline("a copy between devices")


@rule("aten._to_copy.default", "prims.convert_element_type.default")
def to_copy(low: Lowering, node: Node, x: TensorValue | float, *dtype: Any, **options: Any) -> TensorValue:
    if not isinstance(x, TensorValue):  # a number in the place of a tensor, as function transforms write it
        return _filled(low, node, x)
    assert isinstance(node.args[0], Node)
    _same_device(node, node.args[0])
    if rounds_on_purpose(node):
        return rounded_to_half(low, node, x)
    return _copied(low, node, x)


@rule("aten.clone.default", "aten.lift_fresh_copy.default", "prims.clone.default", "aten.contiguous.default")
def clone(low: Lowering, node: Node, x: TensorValue, **options: Any) -> TensorValue:
    return _copied(low, node, x)


def _copied(low: Lowering, node: Node, x: TensorValue) -> TensorValue:
    whole = DTYPES[x.dtype].kind != "complex" and DTYPES[dtype_of(node.meta["val"].dtype)].kind != "complex"
    return low.into(node, low.result(node), lambda v: v, x, dtype=x.dtype, bytes_too=whole)


@rule("aten.copy.default")
def copy(low: Lowering, node: Node, like: TensorValue, x: TensorValue, non_blocking: bool = False) -> TensorValue:
    """The functional copy: the elements of ``x`` in the shape and dtype of ``like``."""
    assert isinstance(node.args[1], Node)
    _same_device(node, node.args[1])
    return _copied(low, node, x)


@rule("aten.copy_.default")
def copy_into_input(
    low: Lowering, node: Node, target: TensorValue, x: TensorValue, non_blocking: bool = False
) -> TensorValue:
    """The one mutation a functional graph holds: an input of the program takes its new value."""
    buffer = low.buffers[target.buffer]
    if buffer.kind != "input" or linear_view(target) is None:
        raise Decline("a copy into something that is not an input")
    assert isinstance(node.args[1], Node)
    _same_device(node, node.args[1])
    if x == target:
        return target
    if x.buffer == target.buffer:
        x = low.copy(node, x)
    return low.into(node, target, lambda v: v, x, dtype=x.dtype)


def _triangle(low: Lowering, node: Node, x: TensorValue, inside: Callable[[NestBuilder], Value]) -> TensorValue:
    out = low.result(node)
    low.plain(out.dtype)
    b = low.nest(node, out.shape)
    value = b.load(x)
    b.store(out, b.where(inside(b), value, 0))
    low.finish(b)
    return out


@rule("aten.triu.default")
def triu(low: Lowering, node: Node, x: TensorValue, diagonal: int = 0) -> TensorValue:
    return _triangle(low, node, x, lambda b: b.index(b.axes[-1]) >= b.index(b.axes[-2] + as_expr(diagonal)))


@rule("aten.tril.default")
def tril(low: Lowering, node: Node, x: TensorValue, diagonal: int = 0) -> TensorValue:
    return _triangle(low, node, x, lambda b: b.index(b.axes[-1]) <= b.index(b.axes[-2] + as_expr(diagonal)))
