"""Products of a matrix and a vector: one pass over the matrix, as a nest that fuses with what is around it.

The library's kernels multiply matrices in tiles. With one row there is nothing to reuse, the time is that of reading
the matrix once, and a row reduction reads at the memory's full bandwidth. On a CPU the library's own do so too: there
it is done where a nest computes the matrix, which then is neither stored nor read. Products of a column and a row are
nests there as well, for what they make is as large as what reads it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from lamina.ir.access import writes
from lamina.ir.index import Expr, as_expr, prod
from lamina.ir.loops import LibraryCall
from lamina.lower.builder import NestBuilder, Value, added_up, opmath
from lamina.lower.context import Lowering
from lamina.lower.rules import Decline, rule
from lamina.lower.thin_products import thin_product
from lamina.lower.values import TensorValue
from lamina.ops.thin_products import LONG_SUM

__all__: list[str] = []

_REASON = "matrix products are faster in the vendor's library than in nests"
_FEW = 8
"""Columns that a program takes beside one another."""
_FLOATS = ("bfloat16", "float16", "float32")
_SMALL = 1024
"""Elements of a matrix that a nest has multiplied with a vector before a library is called."""
_MOVES = ("cat", "copy", "index_copy", "index_put")
"""What makes a matrix without computing it, besides scatters: often in place, as keys are added to a cache."""


@rule("aten.mm.default")
def mm(low: Lowering, node: Node, a: TensorValue, b: TensorValue, **more: Any) -> TensorValue:
    return _product(low, node, a, b, None, more)


@rule("aten.addmm.default")
def addmm(low: Lowering, node: Node, added: TensorValue, a: TensorValue, b: TensorValue, **more: Any) -> TensorValue:
    return _product(low, node, a, b, added, more)


@rule("aten.bmm.default")
def bmm(low: Lowering, node: Node, a: TensorValue, b: TensorValue) -> TensorValue:
    (batch, rows, inner), columns = a.shape, b.shape[2]
    if not _suits(low, a, b):
        raise Decline(_REASON)
    if _is_outer(low, a):
        return _outer(low, node, a, b, None)
    if not (rows == 1 or columns == 1) or not _is_at_hand(
        low, node, a if columns == 1 else b, 0 if columns == 1 else 1
    ):
        raise Decline(_REASON)
    out = low.result(node)
    nest = low.nest(node, [batch, rows, columns, inner])
    n, i, j, k = nest.axes
    term = _loaded(nest, a, [n, i, k], out.dtype) * _loaded(nest, b, [n, k, j], out.dtype)
    _store(low, nest, out, term, [n, i, j], None)
    return out


@rule("aten.mv.default")
def mv(low: Lowering, node: Node, a: TensorValue, x: TensorValue) -> TensorValue:
    if not _suits(low, a, x) or not _is_at_hand(low, node, a, 0):
        raise Decline(_REASON)
    out = low.result(node)
    b = low.nest(node, a.shape)
    i, k = b.axes
    _store(low, b, out, _loaded(b, a, [i, k], out.dtype) * _loaded(b, x, [k], out.dtype), [i], None)
    return out


@rule("aten.dot.default", "aten.vdot.default")
def dot(low: Lowering, node: Node, a: TensorValue, x: TensorValue) -> TensorValue:
    if not _suits(low, a, x) or not (_is_at_hand(low, node, a, 0) or _is_at_hand(low, node, x, 1)):
        raise Decline(_REASON)
    out = low.result(node)
    b = low.nest(node, a.shape)
    (k,) = b.axes
    _store(low, b, out, _loaded(b, a, [k], out.dtype) * _loaded(b, x, [k], out.dtype), [], None)
    return out


def _product(
    low: Lowering, node: Node, a: TensorValue, b: TensorValue, added: TensorValue | None, more: dict[str, Any]
) -> TensorValue:
    (rows, inner), columns = a.shape, b.shape[1]
    one = rows == 1 or columns == 1
    if more or not _suits(low, a, b):
        raise Decline(_REASON)
    if _is_outer(low, a):
        return _outer(low, node, a, b, added)
    if one and not _is_at_hand(low, node, a if columns == 1 else b, -2 if columns == 1 else -1):
        raise Decline(_REASON)
    if not (one or _few_columns(node, a, b)):
        if _on_cpu(low, a) or (thin := thin_product(low, node, a, b, added)) is None:
            raise Decline(_REASON)
        return thin
    out = low.result(node)
    nest = low.nest(node, [rows, columns, inner])
    i, j, k = nest.axes
    term = _loaded(nest, a, [i, k], out.dtype) * _loaded(nest, b, [k, j], out.dtype)
    _store(low, nest, out, term, [i, j], added)
    return out


def _few_columns(node: Node, a: TensorValue, b: TensorValue) -> bool:
    """Whether a float32 product of 16-bit numbers has few columns, as a router's of experts has.

    Both operands must lie along the summed axis, and be widened for this product alone: tensor cores then multiply the
    narrow ones, exactly. Without TF32 the library multiplies element by element, and reads both operands widened: 40 us
    for 8192 rows of 1024 in bfloat16 and 8 columns, whose bytes take 6. Others are ``thin_product``'s.
    """
    if not all(isinstance(n, Node) and _widened_for_this(n) for n in node.args[-2:]):
        return False
    if a.dtype != "float32" or torch.get_float32_matmul_precision() != "highest":
        return False
    few = b.shape[1].is_int and b.shape[1].const <= _FEW
    along = [n.meta["val"].stride(d) for n, d in zip(node.args[-2:], (1, 0), strict=True) if isinstance(n, Node)]
    long = all(n.is_int for n in (*a.shape, *b.shape)) and a.shape[1].const >= LONG_SUM
    return few and long and len(along) == 2 and all(type(s) is int and s == 1 for s in along)


def _widened_for_this(node: Node) -> bool:
    """Whether a value is one of 16 bits in float32, which nothing else reads, through views or not."""
    while len(node.users) == 1 and node.op == "call_function":
        source = node.args[0]
        if not isinstance(source, Node):
            return False
        if node.target is torch.ops.aten._to_copy.default:
            return source.meta["val"].dtype in (torch.bfloat16, torch.float16)
        if not getattr(node.target, "is_view", False):
            return False
        node = source
    return False


def _suits(low: Lowering, *factors: TensorValue) -> bool:
    """Whether the product's additions may be in another order than the library's."""
    alike = len({_on_cpu(low, f) for f in factors}) == 1
    return alike and low.numerics == "fast" and all(f.dtype in _FLOATS for f in factors)


def _on_cpu(low: Lowering, factor: TensorValue) -> bool:
    return low.buffers[factor.buffer].on_cpu


def _is_at_hand(low: Lowering, node: Node, matrix: TensorValue, position: int) -> bool:
    """Whether a nest may read the matrix, an argument of ``node``, as fast as the library does: on a GPU; on a CPU
    where it is small, or need not be read, since a nest computes it.
    """
    size = prod(matrix.shape)
    if not _on_cpu(low, matrix) or (size.is_int and size.const <= _SMALL):
        return True
    if low.buffers[matrix.buffer].kind == "input" or _is_moved(node.args[position]):
        return False
    return not any(matrix.buffer in writes(s) for s in low.steps if isinstance(s, LibraryCall))


def _is_moved(source: object) -> bool:
    while isinstance(source, Node) and getattr(source.target, "is_view", False):
        source = source.args[0]
    name = str(source.target).split(".")[-2:][0] if isinstance(source, Node) else ""
    return name in _MOVES or "scatter" in name


def _is_outer(low: Lowering, a: TensorValue) -> bool:
    """Whether a column is multiplied with a row, on a CPU."""
    return _on_cpu(low, a) and a.shape[-1] == 1


def _outer(low: Lowering, node: Node, a: TensorValue, b: TensorValue, added: TensorValue | None) -> TensorValue:
    """Each element of the column times each of the row, in each of a batch, and what is added."""
    out = low.result(node)
    nest = low.nest(node, out.shape)
    *batch, i, j = nest.axes
    zero = as_expr(0)
    value = _loaded(nest, a, [*batch, i, zero], out.dtype) * _loaded(nest, b, [*batch, zero, j], out.dtype)
    _finish(low, nest, out, added_up([value]), [*batch, i, j], added)
    return out


def _loaded(b: NestBuilder, source: TensorValue, at: list[Expr], dtype: str) -> Value:
    return b.load(source, at).to(opmath(dtype))


def _store(
    low: Lowering, b: NestBuilder, out: TensorValue, term: Value, at: list[Expr], added: TensorValue | None
) -> None:
    """Sum the terms over the last axis, add what is to be added, and finish the nest."""
    _finish(low, b, out, b.reduce("sum", term, [len(b.axes) - 1]), at, added)


def _finish(
    low: Lowering, b: NestBuilder, out: TensorValue, value: Value, at: list[Expr], added: TensorValue | None
) -> None:
    """Add what is to be added, store, and finish the nest."""
    if added is not None:
        place = at[len(at) - added.rank :]
        place = [p if n != 1 else p * 0 for p, n in zip(place, added.shape, strict=True)]
        value = value + b.load(added, place).to(value.dtype)
    b.store(out, value, at)
    low.finish(b)
