"""Elementary functions of one or two tensors, elementwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch.fx import Node

from lamina.base.dtypes import DTYPES, torch_dtype
from lamina.base.symbolic.torch_private import is_true
from lamina.lower.builder import Value
from lamina.lower.context import Lowering, Operand
from lamina.lower.formulas import formula_of
from lamina.lower.rules import Decline, rule
from lamina.lower.torch_private import computed
from lamina.lower.values import TensorValue

__all__: list[str] = []

_WORTH_A_CALL = 4096
"""Elements from which on a function that the library computes faster is worth a call, and a pass over memory."""


def _better_called(low: Lowering, node: Node, x: TensorValue) -> bool:
    """Whether MKL, by which ATen computes the function, is faster: erfc of doubles 0.86 of the time of the vector
    function with AVX-512 and 0.51 with AVX2, which is more than another pass over memory takes.
    """
    if x.dtype != "float64" or not low.buffers[x.buffer].on_cpu:
        return False
    held: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return held and not is_true(node.meta["val"].numel() < _WORTH_A_CALL)


@rule("aten.erfc.default", "prims.erfc.default")
def erfc(low: Lowering, node: Node, x: TensorValue) -> TensorValue:
    if _better_called(low, node, x):
        raise Decline("erfc of doubles, which MKL computes faster")
    return low.pointwise(node, formula_of("aten.erfc.default"), x)


@rule("aten.round.decimals")
def round_decimals(low: Lowering, node: Node, x: TensorValue, decimals: int) -> TensorValue:
    if not DTYPES[x.dtype].is_float or not -15 <= decimals <= 15:
        raise Decline("rounding of integers to decimals")
    scale = 10.0 ** abs(decimals)

    def body(v: Value) -> Value:
        return (v / scale).op("round") * scale if decimals < 0 else (v * scale).op("round") / scale

    return low.pointwise(node, body if decimals else formula_of("aten.round.default"), x)


_BINARY = {"copysign": "copysign", "atan2": "atan2", "hypot": "hypot"}
_BINARY |= {"nextafter": "nextafter", "fmin": "fmin", "fmax": "fmax"}


@rule(
    *("aten.copysign.Tensor", "aten.copysign.Scalar", "aten.atan2.default"),
    *("aten.hypot.default", "aten.fmin.default", "aten.fmax.default"),
    *("prims.atan2.default", "prims.hypot.default", "prims.fmin.default", "prims.fmax.default"),
)
def binary(low: Lowering, node: Node, x: Operand, y: Operand) -> TensorValue:
    name = _BINARY[str(node.target).split(".")[1]]
    out = low.result(node)
    if name in ("fmin", "fmax") and not DTYPES[out.dtype].is_float:
        name = {"fmin": "minimum", "fmax": "maximum"}[name]
        if out.dtype == "bool":
            name = {"minimum": "and", "maximum": "or"}[name]
    if name in ("fmin", "fmax") and out.dtype == "bfloat16":
        x, y = y, x  # of 0.0 and -0.0 eager takes the first, and of this dtype the second
    return low.into(node, out, lambda a, b: a.op(name, b), x, y)


@rule("aten.nextafter.default", "prims.nextafter.default")
def nextafter(low: Lowering, node: Node, x: Operand, y: Operand) -> TensorValue:
    out = low.result(node)
    if out.dtype not in ("float32", "float64"):
        raise Decline("the neighbour of a half-precision number")
    return low.into(node, out, lambda a, b: a.op("nextafter", b), x, y)


def _x_times(function: Callable[..., Value]) -> Callable[[Value, Value], Value]:
    def body(a: Value, b: Value) -> Value:
        where = a.builder.where
        return where(b.op("isnan"), b, where(a.equals(0), a.builder.constant(0, a.dtype), a * function(b)))

    return body


@rule("aten.xlogy.Tensor", "aten.xlogy.Scalar_Other", "aten.xlogy.Scalar_Self")
def xlogy(low: Lowering, node: Node, x: Operand, y: Operand) -> TensorValue:
    return low.pointwise(node, _x_times(formula_of("aten.log.default")), x, y)


@rule("aten.special_xlog1py.default", "aten.special_xlog1py.other_scalar", "aten.special_xlog1py.self_scalar")
def xlog1py(low: Lowering, node: Node, x: Operand, y: Operand) -> TensorValue:
    return low.pointwise(node, _x_times(_log1p_of_subnormal), x, y)


_SMALLEST = 1e-30
"""The logarithm of 1 and a number below this is the number."""


def _log1p_of_subnormal(y: Value) -> Value:
    """``log1p``, of which vector code gives 0 for a subnormal number: times infinity that is not a number."""
    return y.builder.where(y.op("abs") < _SMALLEST, y, y.op("log1p"))


@rule("aten.nan_to_num.default")
def nan_to_num(
    low: Lowering,
    node: Node,
    x: TensorValue,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> TensorValue:
    if not DTYPES[x.dtype].is_float:
        return low.pointwise(node, lambda v: v, x)
    limit = torch.finfo(torch_dtype(x.dtype))
    high, least = limit.max if posinf is None else posinf, limit.min if neginf is None else neginf

    def body(v: Value) -> Value:
        where = v.builder.where
        v = where(v.equals(math.inf), high, where(v.equals(-math.inf), least, v))
        return where(v.op("isnan"), 0.0 if nan is None else nan, v)

    return low.pointwise(node, body, x)


@cache
def _scales_by_steps() -> bool:
    """Whether this torch's ldexp gives what a whole exponent gives, however great: older ones multiply by its power."""
    return bool(computed(lambda: torch.ldexp(torch.zeros((), device="cpu"), torch.tensor(1000, device="cpu"))) == 0)


def _scaled(a: Value, exponent: Value) -> Value:
    """``a`` times a power of two, which may be beyond the type of ``a`` where the product is not."""
    most = 700.0 if a.dtype == "float64" else 100.0  # three times that leads from one end of the type to the other
    for _ in range(3):
        step = exponent.op("maximum", -most).op("minimum", most)
        a, exponent = a * step.op("exp2"), exponent - step
    return a


@rule("aten.ldexp.Tensor")
def ldexp(low: Lowering, node: Node, x: TensorValue, exponent: TensorValue) -> TensorValue:
    scaled = not DTYPES[exponent.dtype].is_float and _scales_by_steps()

    def body(a: Value, b: Value) -> Value:
        if scaled:
            return _scaled(a, b)
        return a * (b.builder.constant(2, b.dtype).op("pow", b) if low.numerics == "eager" else b.op("exp2"))

    return low.pointwise(node, body, x, exponent)
