"""Elementwise arithmetic on two or more operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from lamina.base.devices import kind_of
from lamina.base.dtypes import DTYPES
from lamina.ir.index import Expr, as_expr
from lamina.lower.builder import Scalar, Value
from lamina.lower.comparison import rounded
from lamina.lower.context import Lowering, Operand
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue, fresh_dims
from lamina.ops.element import largest, not_above, not_below, smallest

__all__ = [
    "add_scaled",
    "added",
    "added_scaled",
    "divided",
    "integer_division",
    "lerped",
    "multiplied",
    "powered",
    "subtract_scaled",
]


def added(a: Value, b: Value) -> Value:
    """Sum; on booleans "or", as in eager."""
    return a | b if a.dtype == "bool" else a + b


def multiplied(a: Value, b: Value) -> Value:
    """Product; on booleans "and", as in eager."""
    return a & b if a.dtype == "bool" else a * b


def divided(a: Value, b: Value, mode: str | None = None) -> Value:
    """Quotient: true division, or rounded by ``mode`` ("floor", "trunc")."""
    return a / b if mode is None else a.op(f"{mode}_div", b)


def _as_eager(low: Lowering, value: Operand, out: TensorValue) -> Operand:
    """A Python number as eager adds it: in sums, unlike in products, it is rounded to the type of the result first.

    With numerics "fast" only a finite one is that the type does not hold, on a CPU.
    """
    if not isinstance(value, int | float) or not DTYPES[out.dtype].is_float:
        return value
    held = abs(value) <= torch.finfo(getattr(torch, out.dtype)).max or math.isinf(value)
    if low.numerics == "eager" or (not held and low.buffers[out.buffer].on_cpu):
        return rounded(float(value), out.dtype)
    return value


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, TensorValue) and value.dtype == "bool")


def _require_factor(out: TensorValue, alpha: Operand) -> None:
    """Decline a factor that eager refuses for a result of that dtype: ATen's kernel then says so."""
    kind = DTYPES[out.dtype].kind
    if (isinstance(alpha, bool) and kind != "bool") or (isinstance(alpha, float) and kind in ("bool", "int", "uint")):
        raise Decline("a factor of a type that sums of this dtype do not have")


def add_scaled(low: Lowering, node: Node, x: Operand, y: Operand, alpha: Operand, out: TensorValue) -> TensorValue:
    """``x + alpha * y`` into ``out``."""
    _require_factor(out, alpha)
    x, y, alpha = (_as_eager(low, v, out) for v in (x, y, alpha))
    if alpha == 1:
        return low.into(node, out, added, x, y)
    return low.into(node, out, lambda a, b, s: added(a, multiplied(b, s)), x, y, alpha)


def subtract_scaled(low: Lowering, node: Node, x: Operand, y: Operand, alpha: Operand, out: TensorValue) -> TensorValue:
    """``x - alpha * y`` into ``out``."""
    _require_factor(out, alpha)
    if _is_bool(x) or _is_bool(y):
        raise Decline("a difference with a boolean, which ATen's kernel refuses")
    x, y, alpha = (_as_eager(low, v, out) for v in (x, y, alpha))
    if alpha == 1:
        return low.into(node, out, lambda a, b: a - b, x, y)
    return low.into(node, out, lambda a, b, s: a - b * s, x, y, alpha)


@rule("aten.add.Tensor", "aten.add.Scalar", "prims.add.default")
def add(low: Lowering, node: Node, x: Operand, y: Operand, alpha: Operand = 1) -> TensorValue:
    return add_scaled(low, node, x, y, alpha, low.result(node))


@rule("aten.sub.Tensor", "aten.sub.Scalar", "prims.sub.default")
def sub(low: Lowering, node: Node, x: Operand, y: Operand, alpha: Operand = 1) -> TensorValue:
    return subtract_scaled(low, node, x, y, alpha, low.result(node))


@rule("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(low: Lowering, node: Node, x: Operand, y: Operand, alpha: Operand = 1) -> TensorValue:
    return sub(low, node, y, x, alpha)


@rule("aten.mul.Tensor", "aten.mul.Scalar", "prims.mul.default")
def mul(low: Lowering, node: Node, x: Operand, y: Operand) -> TensorValue:
    return low.pointwise(node, multiplied, x, y)


def _never_zero(divisor: Operand) -> bool:
    """Whether a divisor is known not to be zero."""
    if isinstance(divisor, Expr):
        lowest = divisor.bounds()[0]
        return lowest is not None and lowest > 0
    return isinstance(divisor, int | float) and divisor != 0


def integer_division(
    low: Lowering, node: Node, out: TensorValue, function: Callable[[Value, Value], Value], x: Operand, y: Operand
) -> TensorValue:
    """``function(x, y)`` on integers into ``out``: where a divisor is zero, fails as eager does on a CPU."""
    if _never_zero(y) or 0 in out.shape or not low.buffers[out.buffer].on_cpu:
        return low.into(node, out, function, x, y)
    if not all(_never_zero(n) for n in out.shape):
        raise Decline("a divisor may be zero, which is no error where the result turns out to be empty")

    def body(a: Value, b: Value) -> Value:
        b.builder.check(b.op("ne", 0), "ZeroDivisionError", "RuntimeError")
        return function(a, b)

    return low.into(node, out, body, x, y)


@rule(
    *("aten.div.Tensor", "aten.div.Scalar", "aten.div.Tensor_mode", "aten.div.Scalar_mode"),
)
def div(low: Lowering, node: Node, x: Operand, y: Operand, rounding_mode: str | None = None) -> TensorValue:
    out = low.result(node)
    into = low.into if rounding_mode is None or DTYPES[out.dtype].is_float else partial(integer_division, low)
    return into(node, out, lambda a, b: divided(a, b, rounding_mode), x, y)


@rule("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(low: Lowering, node: Node, x: Operand, y: Operand) -> TensorValue:
    return div(low, node, x, y, "floor")


@rule("prims.div.default")
def prims_div(low: Lowering, node: Node, x: Operand, y: Operand) -> TensorValue:
    return div(low, node, x, y, None if DTYPES[low.result(node).dtype].is_float else "trunc")


@rule("aten.remainder.Tensor", "aten.remainder.Scalar", "aten.remainder.Scalar_Tensor", "prims.remainder.default")
def remainder(low: Lowering, node: Node, x: Operand, y: Operand) -> TensorValue:
    return _rest(low, node, "mod", x, y)


@rule("aten.fmod.Tensor", "aten.fmod.Scalar", "prims.fmod.default")
def fmod(low: Lowering, node: Node, x: Operand, y: Operand) -> TensorValue:
    return _rest(low, node, "fmod", x, y)


def _rest(low: Lowering, node: Node, op: str, x: Operand, y: Operand) -> TensorValue:
    out = low.result(node)
    into = low.into if DTYPES[out.dtype].is_float else partial(integer_division, low)
    return into(node, out, lambda a, b: a.op(op, b), x, y)


@rule("aten.maximum.default", "aten.max.other", "prims.maximum.default")
def maximum(low: Lowering, node: Node, x: Operand, y: Operand) -> TensorValue:
    return low.pointwise(node, largest, x, y)


@rule("aten.minimum.default", "aten.min.other", "prims.minimum.default")
def minimum(low: Lowering, node: Node, x: Operand, y: Operand) -> TensorValue:
    return low.pointwise(node, smallest, x, y)


def _limit(low: Lowering, v: Value, bound: Operand) -> Value | Scalar:
    return bound if isinstance(bound, int | float) else low.operand(v.builder, bound, v.dtype)


@rule(
    *("aten.clamp.default", "aten.clamp.Tensor"),
    *("aten.clamp_min.default", "aten.clamp_min.Tensor"),
)
def clamp(
    low: Lowering, node: Node, x: TensorValue, min: Operand | None = None, max: Operand | None = None
) -> TensorValue:
    if any(isinstance(bound, float) and bound != bound for bound in (min, max)):
        raise Decline("what eager makes of a bound that is not a number depends on how torch was built")

    def body(v: Value) -> Value:
        if min is not None:
            v = not_below(v, _limit(low, v, min))
        return v if max is None else not_above(v, _limit(low, v, max))

    low.plain(*(t.dtype for t in (min, max) if isinstance(t, TensorValue)))
    low.require_fit(x.dtype, *(bound for bound in (min, max) if bound is not None))
    return low.pointwise(node, body, x)


@rule("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(low: Lowering, node: Node, x: TensorValue, max: Operand) -> TensorValue:
    return clamp(low, node, x, None, max)


_SMALL_POWERS = {0.5: "sqrt", -0.5: "rsqrt"}


_FEW_PRODUCTS = range(-8, 9)
"""Powers for which a float is multiplied by itself: four roundings at most instead of a logarithm and more."""


def powered(x: Value, exponent: Operand, exact: bool = True) -> Value | None:
    """``x ** exponent`` for the exponents that eager, too, computes without ``pow``; else ``None``.

    If not ``exact``, also for a few more, with some roundings.
    """
    if not isinstance(exponent, int | float):
        return None
    is_float = DTYPES[x.dtype].is_float
    if is_float and exponent in _SMALL_POWERS:
        return x.op(_SMALL_POWERS[exponent])
    if is_float and not exact and abs(exponent) in (1.5, 2.5):
        return _between_whole_powers(x, exponent)
    if not abs(exponent) < 64 or exponent != int(exponent):
        return None
    count = int(exponent)
    if is_float and not -2 <= count <= 3 and (exact or count not in _FEW_PRODUCTS):
        return None
    if count < 0:
        product = powered(x, -count, exact) if is_float else None
        return None if product is None else 1.0 / product
    if count == 0:
        return x.builder.constant(1, x.dtype)
    result: Value | None = None
    square = x
    while True:
        if count & 1:
            result = square if result is None else multiplied(result, square)
        count >>= 1
        if not count:
            assert result is not None
            return result
        square = multiplied(square, square)


def _between_whole_powers(x: Value, exponent: float) -> Value:
    """``x`` to the power of 1.5, 2.5 or less than nothing as much: products with a square root."""
    kept = x.builder.where(x == -math.inf, math.inf, x)  # which has no square root, but its power is infinite or zero
    result = kept * kept.op("sqrt")
    result = result * kept.op("abs") if abs(exponent) == 2.5 else result
    return result if exponent > 0 else 1.0 / result


def power(low: Lowering, node: Node, out: TensorValue, x: Operand, y: Operand) -> TensorValue:
    """``x ** y`` into ``out``."""
    is_root = isinstance(y, float) and y in _SMALL_POWERS
    exact = is_root and isinstance(x, TensorValue) and x.dtype == "float16" and not low.on_gpu(x)  # -0.0 ** 0.5 is 0.0

    def body(a: Value) -> Value:
        short = None if exact else powered(a, y, low.numerics == "eager")
        return a.op("pow", low.operand(a.builder, y, a.dtype)) if short is None else short

    is_float = DTYPES[out.dtype].is_float
    if is_float and isinstance(x, int | float) and x == 2 and low.numerics != "eager":
        return low.into(node, out, lambda b: b.op("exp2"), y)
    if not is_float and (not isinstance(y, int) or not 0 <= y < 64):
        raise Decline("integer power with an exponent known only at run time")
    return low.into(node, out, body, x)


@rule("aten.pow.Tensor_Tensor", "aten.pow.Tensor_Scalar", "aten.pow.Scalar", "prims.pow.default")
def pow(low: Lowering, node: Node, x: Operand, y: Operand) -> TensorValue:
    return power(low, node, low.result(node), x, y)


def lerped(a: Value, b: Value, weight: Value) -> Value:
    """``a`` towards ``b`` by ``weight``, exact at both ends."""
    step = b - a
    near = a + weight * step
    return a.builder.where(weight.op("abs") < 0.5, near, b - step * (1.0 - weight))


@rule("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(low: Lowering, node: Node, x: Operand, end: Operand, weight: Operand) -> TensorValue:
    return low.pointwise(node, lerped, x, end, weight)


def added_scaled(x: Value, a: Value, b: Value, scale: Value, *, divide: bool, on_cpu: bool) -> Value:
    """``x`` and the scaled product or quotient of ``a`` and ``b``, scaled where eager's kernels do so.

    It matters where the product or the quotient overflows: ATen's kernels for CPUs scale ``a``, those for GPUs what
    is made of both (aten/src/ATen/native/cpu/PointwiseOpsKernel.cpp and cuda/PointwiseOpsKernel.cu).
    """
    if on_cpu:
        return x + (scale * a / b if divide else scale * a * b)
    return x + scale * (a / b if divide else a * b)


def _on_cpu(node: Node) -> bool:
    return kind_of(node.meta["val"]).host


@rule("aten.addcmul.default")
def addcmul(low: Lowering, node: Node, x: Operand, a: Operand, b: Operand, value: Operand = 1) -> TensorValue:
    if value == 1:
        return low.pointwise(node, lambda x, a, b: x + a * b, x, a, b)
    return low.pointwise(node, partial(added_scaled, divide=False, on_cpu=_on_cpu(node)), x, a, b, value)


@rule("prims.fma.default")
def fma(low: Lowering, node: Node, a: Operand, b: Operand, x: Operand) -> TensorValue:
    return low.pointwise(node, lambda a, b, x: a * b + x, a, b, x)


@rule("aten.addcdiv.default")
def addcdiv(low: Lowering, node: Node, x: Operand, a: Operand, b: Operand, value: Operand = 1) -> TensorValue:
    if value == 1:
        return low.pointwise(node, lambda x, a, b: x + a / b, x, a, b)
    return low.pointwise(node, partial(added_scaled, divide=True, on_cpu=_on_cpu(node)), x, a, b, value)


@rule("aten.addr.default")
def addr(
    low: Lowering, node: Node, x: Operand, left: TensorValue, right: TensorValue, beta: Any = 1, alpha: Any = 1
) -> TensorValue:
    out = low.result(node)
    low.plain(out.dtype)
    if not DTYPES[out.dtype].is_float:
        raise Decline("outer product of integers")
    column = left.view([left.shape[0], as_expr(1)], [as_expr(fresh_dims([left.shape[0]])[0])])

    def body(a: Value, b: Value, c: Value) -> Value:
        product = b * c if alpha == 1 else b * c * alpha
        return product if beta == 0 else a * beta + product

    return low.into(node, out, body, x, column, right)
