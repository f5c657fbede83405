"""Elementary functions of one or two tensors, elementwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch.fx import Node

from lamina.base.dtypes import DTYPES, torch_dtype
from lamina.base.symbolic.torch_private import is_true
from lamina.lower.builder import Value
from lamina.lower.context import Lowering, Operand
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue

__all__ = ["UNARY", "Unary"]

Unary: TypeAlias = Callable[[Value], Value]

_WORTH_A_CALL = 4096
"""Elements from which on a function that the library computes faster is worth a call, and a pass over memory."""

_SMALLEST = 1e-30
"""The logarithm of 1 and a number below this is the number."""


def _op(name: str) -> Unary:
    return lambda v: v.op(name)


def _on_floats(name: str) -> Unary:
    """The operation on floats; on integers and booleans the value itself."""
    return lambda v: v.op(name) if DTYPES[v.dtype].is_float else v


def _on_signed(name: str) -> Unary:
    return lambda v: v if DTYPES[v.dtype].kind in ("uint", "bool") else v.op(name)


def _sign(v: Value) -> Value:
    if DTYPES[v.dtype].kind == "bool":
        return v
    if DTYPES[v.dtype].kind == "uint":
        return (v > 0).to(v.dtype)
    return v.op("sign")


def _frac(v: Value) -> Value:
    return v - v.op("trunc")


def _sinc(v: Value) -> Value:
    scaled = v * math.pi
    return v.builder.where(v.equals(0), v.builder.constant(1, v.dtype), scaled.op("sin") / scaled)


def _entr(v: Value) -> Value:
    where = v.builder.where
    inside = where(v.equals(0), v.builder.constant(0, v.dtype), where(v < 0, -math.inf, -v * v.op("log")))
    return where(v.op("isnan"), v, inside)


def _angle(v: Value) -> Value:
    where = v.builder.where
    return where(v.op("isnan"), v, where(v < 0, v.builder.constant(math.pi, v.dtype), 0))


UNARY: dict[str, Unary] = {
    **{name: _op(name) for name in ("neg", "reciprocal", "rsqrt", "sqrt", "sigmoid")},
    **{name: _op(name) for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "erf", "erfc", "erfinv")},
    **{name: _op(name) for name in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh")},
    **{name: _op(name) for name in ("asinh", "acosh", "atanh", "lgamma", "digamma")},
    **{name: _on_floats(name) for name in ("floor", "ceil", "trunc", "round")},
    "reciprocal": lambda v: 1.0 / v,
    "abs": _on_signed("abs"),
    "sign": _sign,
    "sgn": _sign,
    "positive": lambda v: v,
    "square": lambda v: v & v if v.dtype == "bool" else v * v,
    "frac": _frac,
    "deg2rad": lambda v: v * (math.pi / 180),
    "rad2deg": lambda v: v * (180 / math.pi),
    "sinc": _sinc,
    "special_entr": _entr,
    "angle": _angle,
}
"""Functions of one operand by their ATen name, on a value of the arithmetic type of the result."""

_ALIASES = {"special_erf": "erf", "special_erfc": "erfc", "special_erfinv": "erfinv", "special_expit": "sigmoid"}
_ALIASES |= {"fix": "trunc", "special_digamma": "digamma", "special_gammaln": "lgamma", "special_round": "round"}
_PRIMS = (
    *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "digamma", "erf", "erfc"),
    *("exp", "exp2", "expm1", "floor", "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round"),
    *("rsqrt", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"),
)


def _better_called(low: Lowering, node: Node, name: str, x: TensorValue) -> bool:
    """Whether MKL, by which ATen computes the function, is faster: erfc of doubles 0.86 of the time of the vector
    function with AVX-512 and 0.51 with AVX2, which is more than another pass over memory takes.
    """
    if name != "erfc" or x.dtype != "float64" or low.buffers[x.buffer].device != "cpu":
        return False
    held: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return held and not is_true(node.meta["val"].numel() < _WORTH_A_CALL)


def _register(target: str, name: str) -> None:
    @rule(target)
    def unary(low: Lowering, node: Node, x: TensorValue) -> TensorValue:
        if _better_called(low, node, name, x):
            raise Decline(f"{name} of doubles, which MKL computes faster")
        return low.pointwise(node, UNARY[name], x)


for _name in UNARY:
    _register(f"aten.{_name}.default", _name)
for _alias, _name in _ALIASES.items():
    _register(f"aten.{_alias}.default", _name)
for _name in _PRIMS:
    _register(f"prims.{_name}.default", _name)
_register("prims.erf_inv.default", "erfinv")


@rule("aten.round.decimals")
def round_decimals(low: Lowering, node: Node, x: TensorValue, decimals: int) -> TensorValue:
    if not DTYPES[x.dtype].is_float or not -15 <= decimals <= 15:
        raise Decline("rounding of integers to decimals")
    scale = 10.0 ** abs(decimals)

    def body(v: Value) -> Value:
        return (v / scale).op("round") * scale if decimals < 0 else (v * scale).op("round") / scale

    return low.pointwise(node, body if decimals else UNARY["round"], x)


_BINARY = {"copysign": "copysign", "atan2": "atan2", "arctan2": "atan2", "hypot": "hypot"}
_BINARY |= {"nextafter": "nextafter", "fmin": "fmin", "fmax": "fmax"}


@rule(
    *("aten.copysign.Tensor", "aten.copysign.Scalar", "aten.atan2.default", "aten.arctan2.default"),
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


def _x_times(function: Unary) -> Callable[[Value, Value], Value]:
    def body(a: Value, b: Value) -> Value:
        where = a.builder.where
        return where(b.op("isnan"), b, where(a.equals(0), a.builder.constant(0, a.dtype), a * function(b)))

    return body


@rule("aten.xlogy.Tensor", "aten.xlogy.Scalar_Other", "aten.xlogy.Scalar_Self")
def xlogy(low: Lowering, node: Node, x: Operand, y: Operand) -> TensorValue:
    return low.pointwise(node, _x_times(UNARY["log"]), x, y)


@rule("aten.special_xlog1py.default", "aten.special_xlog1py.other_scalar", "aten.special_xlog1py.self_scalar")
def xlog1py(low: Lowering, node: Node, x: Operand, y: Operand) -> TensorValue:
    return low.pointwise(node, _x_times(_log1p_of_subnormal), x, y)


def _log1p_of_subnormal(y: Value) -> Value:
    """``log1p``, of which vector code gives 0 for a subnormal number: times infinity that is not a number."""
    return y.builder.where(y.op("abs") < _SMALLEST, y, UNARY["log1p"](y))


def _log_add(exp: str, log1p: Unary) -> Callable[[Value, Value], Value]:
    def body(a: Value, b: Value) -> Value:
        where = a.builder.where
        high = a.op("maximum", b)
        infinite = a.op("isinf") & a.equals(b)
        return where(infinite, a, high + log1p((-((a - b).op("abs"))).op(exp)))

    return body


@rule("aten.logaddexp.default")
def logaddexp(low: Lowering, node: Node, x: TensorValue, y: TensorValue) -> TensorValue:
    return low.pointwise(node, _log_add("exp", UNARY["log1p"]), x, y)


@rule("aten.logaddexp2.default")
def logaddexp2(low: Lowering, node: Node, x: TensorValue, y: TensorValue) -> TensorValue:
    return low.pointwise(node, _log_add("exp2", lambda v: v.op("log1p") * (1 / math.log(2))), x, y)


@rule("aten.heaviside.default")
def heaviside(low: Lowering, node: Node, x: TensorValue, values: TensorValue) -> TensorValue:
    def body(a: Value, b: Value) -> Value:
        if a.dtype == "bool":
            return a | b
        return a.builder.where(a.equals(0), b, (a > 0).to(a.dtype))

    return low.pointwise(node, body, x, values)


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


@rule("aten.logit.default")
def logit(low: Lowering, node: Node, x: TensorValue, eps: float | None = None) -> TensorValue:
    def body(v: Value) -> Value:
        if eps is not None:
            v = v.op("maximum", eps).op("minimum", 1.0 - eps)
        return (v / (1.0 - v)).op("log")

    return low.pointwise(node, body, x)


@rule("aten.logit_backward.default")
def logit_backward(
    low: Lowering, node: Node, grad: TensorValue, x: TensorValue, eps: float | None = None
) -> TensorValue:
    def body(g: Value, v: Value) -> Value:
        low_end, high_end = (0.0, 1.0) if eps is None else (eps, 1.0 - eps)
        outside = (v < low_end) | (v > high_end)
        return v.builder.where(outside, math.nan if eps is None else 0.0, g / (v * (1.0 - v)))

    return low.pointwise(node, body, grad, x)


@rule("aten.ldexp.Tensor")
def ldexp(low: Lowering, node: Node, x: TensorValue, exponent: TensorValue) -> TensorValue:
    def body(a: Value, b: Value) -> Value:
        return a * (b.builder.constant(2, b.dtype).op("pow", b) if low.numerics == "eager" else b.op("exp2"))

    return low.pointwise(node, body, x, exponent)
