"""Reductions and what is made of them: sums, softmax, norms, losses, and their backward passes."""

from __future__ import annotations

from torch.fx import Node

from lamina.lower.builder import opmath
from lamina.lower.context import Lowering
from lamina.lower.rules import rule
from lamina.lower.values import TensorValue

__all__: list[str] = []


@rule("aten._softmax.default")
def softmax(low: Lowering, node: Node, x: TensorValue, dim: int, half_to_float: bool = False) -> TensorValue:
    out = low.result(node)
    low.plain(x.dtype)
    b = low.nest(node, out.shape)
    v = b.load(x).to(opmath(x.dtype))
    if x.rank == 0:
        b.store(out, b.constant(1, out.dtype))
    else:
        axis = [dim % x.rank]
        e = (v - b.reduce("max", v, axis)).op("exp")
        b.store(out, e / b.reduce("sum", e, axis))
    low.finish(b)
    return out
