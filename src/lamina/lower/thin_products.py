"""Products of float32 matrices with one small dimension on a GPU: each large operand is read once, as it is stored.

The library's kernels for such shapes do little at a time (H200, 8192 x 1024 by 1024 x 8: 24 us and 12 for widening the
operands; its weight's gradient 68), and read both operands in float32. A point of these nests holds all results of the
small dimension, or all its terms, so that they share what they read and widening fuses with it.
"""

from __future__ import annotations

from torch.fx import Node

from lamina.ir.index import Expr, as_expr
from lamina.lower.builder import NestBuilder, Value, added_up
from lamina.lower.context import Lowering
from lamina.lower.values import TensorValue
from lamina.ops.thin_products import thin_dimension

__all__ = ["thin_product"]


def thin_product(
    low: Lowering, node: Node, a: TensorValue, b: TensorValue, added: TensorValue | None
) -> TensorValue | None:
    """The product and what is added to it as a nest, or ``None`` for one that is not thin."""
    small = thin_dimension(node)
    if small is None:
        return None
    (rows, inner), columns = a.shape, b.shape[1]
    out = low.result(node)
    if small == "inner":
        nest = low.nest(node, [rows, columns])
        i, j = nest.axes
        terms = [_term(nest, a, b, i, as_expr(k), j) for k in range(inner.const)]
        _store(nest, out, added_up(terms), i, j, added)
    elif small == "columns":
        nest = low.nest(node, [rows, inner])
        i, k = nest.axes
        for column in range(columns.const):
            j = as_expr(column)
            _store(nest, out, nest.reduce("sum", _term(nest, a, b, i, k, j), [1]), i, j, added)
    else:
        nest = low.nest(node, [inner, columns])
        k, j = nest.axes
        for row in range(rows.const):
            i = as_expr(row)
            _store(nest, out, nest.reduce("sum", _term(nest, a, b, i, k, j), [0]), i, j, added)
    low.finish(nest)
    return out


def _term(nest: NestBuilder, a: TensorValue, b: TensorValue, i: Expr, k: Expr, j: Expr) -> Value:
    return nest.load(a, [i, k]) * nest.load(b, [k, j])


def _store(nest: NestBuilder, out: TensorValue, value: Value, i: Expr, j: Expr, added: TensorValue | None) -> None:
    if added is not None:
        at = [as_expr(0) if n == 1 else p for p, n in zip([i, j][2 - added.rank :], added.shape, strict=True)]
        value = value + nest.load(added, at).to(value.dtype)
    nest.store(out, value, [i, j])
