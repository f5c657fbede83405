"""Random numbers made inside kernels, and what dropout makes of them."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from lamina.ir.index import as_expr
from lamina.lower.context import Lowering
from lamina.lower.rules import rule
from lamina.lower.values import TensorValue

__all__: list[str] = []


@rule("aten.native_dropout_backward.default")
def native_dropout_backward(
    low: Lowering, node: Node, grad: TensorValue, mask: TensorValue, scale: float
) -> TensorValue:
    return low.pointwise(node, lambda g, m: g * (m * scale), grad, mask)


@rule("lamina.philox_uniform.default")
def philox_uniform(
    low: Lowering, node: Node, size: Any, seed: TensorValue, offset: int, dtype: Any, device: Any
) -> TensorValue:
    """Element number ``k`` of the result is a function of seed, ``offset`` and ``k`` alone."""
    out = low.result(node)
    b = low.nest(node, out.shape)
    number = as_expr(0)
    for axis, extent in zip(b.axes, out.shape, strict=True):
        number = number * extent + axis
    b.store(out, b.random(b.load(seed), offset, number))
    low.finish(b)
    return out
