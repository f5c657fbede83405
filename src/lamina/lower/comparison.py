"""Comparisons, truth functions, bit operations, tests for special values, and selection by a mask."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from torch.fx import Node

from lamina.base.dtypes import DTYPES
from lamina.lower.builder import NestBuilder, Value, opmath
from lamina.lower.context import Lowering, Operand
from lamina.lower.rules import rule
from lamina.lower.values import TensorValue

__all__ = ["rounded"]

_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")


def rounded(value: float, dtype: str) -> float:
    """The number of ``dtype`` that eager makes of a Python number: by way of float32 for the half types."""
    if dtype == "float64" or value != value or abs(value) == math.inf:
        return value
    try:
        (value,) = struct.unpack("<f", struct.pack("<f", value))
        if dtype == "float16":
            (value,) = struct.unpack("<e", struct.pack("<e", value))
    except OverflowError:
        return math.copysign(math.inf, value)
    if dtype == "bfloat16":
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        (value,) = struct.unpack("<f", struct.pack("<I", bits))
    return value


def compared(low: Lowering, b: NestBuilder, value: Operand, dtype: str) -> Value:
    """An operand of a comparison: rounded to the promoted ``dtype`` as eager does, then in its arithmetic type."""
    if isinstance(value, int | float) and DTYPES[dtype].is_float:
        return b.constant(rounded(float(value), dtype), opmath(dtype))
    return low.operand(b, value, dtype).to(opmath(dtype))


def _register_comparison(name: str) -> None:
    @rule(f"aten.{name}.Tensor", f"aten.{name}.Scalar", f"prims.{name}.default")
    def compare(low: Lowering, node: Node, x: Operand, y: Operand) -> TensorValue:
        out = low.result(node)
        kin = low.promoted(*node.args[:2])
        low.plain(kin)
        b = low.nest(node, out.shape)
        left, right = compared(low, b, x, kin), compared(low, b, y, kin)
        if kin == "bool":  # bytes, so that no order on truth values is asked of a code generator
            left, right = left.to("uint8"), right.to("uint8")
        b.store(out, left.op(name, right))
        low.finish(b)
        return out


def _truth(low: Lowering, node: Node, name: str, *inputs: Operand) -> TensorValue:
    def body(first: Value, *rest: Value) -> Value:
        return first.op(name, *rest)

    return low.pointwise(node, body, *inputs, dtype="bool")


def _register_truth(name: str) -> None:
    @rule(f"aten.logical_{name}.default")
    def logical(low: Lowering, node: Node, *inputs: Operand) -> TensorValue:
        return _truth(low, node, name, *inputs)


def _register_bits(name: str, *targets: str) -> None:
    @rule(*targets)
    def bitwise(low: Lowering, node: Node, *inputs: Operand) -> TensorValue:
        out = low.result(node)
        on_bool = out.dtype == "bool"

        def body(first: Value, *rest: Value) -> Value:
            return first.op(name if on_bool else f"bitwise_{name}", *rest)

        return low.into(node, out, body, *inputs)


for _name in _COMPARE:
    _register_comparison(_name)
for _name in ("and", "or", "xor", "not"):
    _register_truth(_name)
for _name in ("and", "or", "xor"):
    _overloads = [f"aten.bitwise_{_name}.{o}" for o in ("Tensor", "Scalar", "Scalar_Tensor")]
    _overloads += [f"aten.__{_name}__.{o}" for o in ("Tensor", "Scalar")]
    _register_bits(_name, *_overloads, f"prims.bitwise_{_name}.default")
_register_bits("not", "aten.bitwise_not.default", "prims.bitwise_not.default")


def _register_shift(op: str, *targets: str) -> None:
    @rule(*targets)
    def shift(low: Lowering, node: Node, x: Operand, y: Operand) -> TensorValue:
        return low.pointwise(node, lambda a, b: a.op(op, b), x, y)


_register_shift(
    "shl",
    *(f"aten.bitwise_left_shift.{o}" for o in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")),
    *("aten.__lshift__.Tensor", "aten.__lshift__.Scalar", "prims.shift_left.default"),
)
_register_shift(
    "shr",
    *(f"aten.bitwise_right_shift.{o}" for o in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")),
    *("aten.__rshift__.Tensor", "aten.__rshift__.Scalar", "prims.shift_right_arithmetic.default"),
)


def _special(on_float: Callable[[Value], Value], on_integer: bool) -> Callable[[Value], Value]:
    def body(v: Value) -> Value:
        return on_float(v) if DTYPES[v.dtype].is_float else v.builder.constant(on_integer, "bool")

    return body


_TESTS: dict[str, Callable[[Value], Value]] = {
    "isnan": _special(lambda v: v.op("isnan"), False),
    "isinf": _special(lambda v: v.op("isinf"), False),
    "isfinite": _special(lambda v: v.op("abs") < math.inf, True),
    "isposinf": _special(lambda v: v.equals(math.inf), False),
    "isneginf": _special(lambda v: v.equals(-math.inf), False),
    "signbit": lambda v: v.op("signbit") if DTYPES[v.dtype].is_float else _negative(v),
}


def _negative(v: Value) -> Value:
    return v < 0 if DTYPES[v.dtype].kind == "int" else v.builder.constant(False, "bool")


def _register_test(name: str, function: Callable[[Value], Value], *targets: str) -> None:
    @rule(*targets)
    def test(low: Lowering, node: Node, x: TensorValue) -> TensorValue:
        return low.pointwise(node, function, x, dtype=opmath(x.dtype))


for _name, _function in _TESTS.items():
    _prims = [f"prims.{_name}.default"] if _name in ("isfinite", "signbit") else []
    _register_test(_name, _function, f"aten.{_name}.default", *_prims)


@rule("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar", "prims.where.default")
def where(low: Lowering, node: Node, condition: TensorValue, x: Operand, y: Operand) -> TensorValue:
    return selected(low, node, condition, x, y)


def selected(low: Lowering, node: Node, condition: TensorValue, x: Operand, y: Operand) -> TensorValue:
    """``x`` where ``condition`` else ``y``, in the node's dtype."""
    out = low.result(node)
    low.plain(out.dtype, *(v.dtype for v in (x, y) if isinstance(v, TensorValue)))
    low.require_fit(out.dtype, x, y)
    b = low.nest(node, out.shape)
    kin = opmath(out.dtype)
    choice = b.load(condition).to("bool")
    b.store(out, b.where(choice, *(low.operand(b, v, kin, out.dtype) for v in (x, y))))
    low.finish(b)
    return out


@rule("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(low: Lowering, node: Node, x: TensorValue, mask: TensorValue, value: Operand) -> TensorValue:
    return selected(low, node, mask, value, x)
