"""Elementwise operations: arithmetic, comparison, casts."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from lamina.lower.builder import Value, opmath
from lamina.lower.context import Lowering, Operand
from lamina.lower.rules import rule
from lamina.lower.values import TensorValue

__all__: list[str] = []


@rule("aten.add.Tensor", "aten.add.Scalar")
def add(low: Lowering, node: Node, x: Operand, y: Operand, alpha: Any = 1) -> TensorValue:
    return low.pointwise(node, lambda a, b: a + (b if alpha == 1 else b * alpha), x, y)


@rule("aten.mul.Tensor", "aten.mul.Scalar")
def mul(low: Lowering, node: Node, x: Operand, y: Operand) -> TensorValue:
    return low.pointwise(node, lambda a, b: a * b, x, y)


@rule("aten.gelu.default")
def gelu(low: Lowering, node: Node, x: TensorValue, approximate: str = "none") -> TensorValue:
    def body(v: Value) -> Value:
        if approximate == "tanh":
            inner = (v + v * v * v * 0.044715) * 0.7978845608028654
            return v * 0.5 * (inner.op("tanh") + 1.0)
        return v * 0.5 * ((v * 0.7071067811865476).op("erf") + 1.0)

    return low.pointwise(node, body, x, dtype=opmath(x.dtype))
