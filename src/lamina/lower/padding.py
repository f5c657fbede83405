"""Padding by a constant, by reflection and by repetition of the edge, and the gradients of the last two."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch.fx import Node

from lamina.base.dtypes import DTYPES
from lamina.ir.access import writes
from lamina.ir.index import Expr, as_expr
from lamina.ir.loops import Nest
from lamina.lower.builder import NestBuilder, Scalar, Value
from lamina.lower.context import Lowering, Operand
from lamina.lower.positions import Positions, all_of, filled, inside
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue
from lamina.ops import row_of
from lamina.ops.row import PERMUTED, PRODUCT

__all__: list[str] = []

Fold = Callable[[Value, Value], Value]
"""A place outside ``[0, last]`` to the place that stands for it; ``last`` is the last place."""


def _literal(value: Operand, dtype: str) -> Scalar:
    """The number as an element of ``dtype``."""
    if not isinstance(value, int | float):
        raise Decline("padding by a number known only at run time")
    kind = DTYPES[dtype].kind
    if kind == "float":
        return float(value)
    if kind == "bool":
        return bool(value)
    if value != int(value):
        raise Decline(f"{value} as padding of {dtype}")
    return int(value)


@rule("aten.constant_pad_nd.default")
def constant_pad_nd(
    low: Lowering, node: Node, x: TensorValue, pad: Sequence[int | Expr], value: Operand = 0
) -> TensorValue:
    out = low.result(node)
    low.plain(x.dtype)
    fill = _literal(value, x.dtype)
    before = [as_expr(0)] * x.rank
    for k in range(len(pad) // 2):
        before[x.rank - 1 - k] = as_expr(pad[2 * k])
    grows = all(isinstance(n, int) and n >= 0 for n in pad)
    if grows and _for_the_library_only(node) and any(x.buffer in writes(s) for s in low.steps if isinstance(s, Nest)):
        _apart(low, node, x, out, before, fill)
        return out
    b = low.nest(node, out.shape)
    place = [axis - left for axis, left in zip(b.axes, before, strict=True)]
    valid = all_of([inside(b, p, n) for p, n in zip(place, x.shape, strict=True)])
    b.store(out, b.load(x, place, valid, fill))
    low.finish(b)
    return out


def _for_the_library_only(node: Node) -> bool:
    """Whether only library calls read what ``node`` makes, transposed or not."""
    rows = {user: row_of(user.target) for user in node.users}
    return all(
        row is not None and (row.kind == PRODUCT or (row.elements == PERMUTED and _for_the_library_only(user)))
        for user, row in rows.items()
    )


def _apart(low: Lowering, node: Node, x: TensorValue, out: TensorValue, before: Sequence[Expr], fill: Scalar) -> None:
    """The values and what is around them in nests of their own: what computes the values can write them in place.

    A dimension's two sides span all of the dimensions before it, and of those after it only where the values are.
    """
    b = low.nest(node, x.shape)
    b.store(out, b.load(x, b.axes), [axis + left for axis, left in zip(b.axes, before, strict=True)])
    low.finish(b)
    for dim, (left, inner, outer) in enumerate(zip(before, x.shape, out.shape, strict=True)):
        for start, extent in ((as_expr(0), left), (left + inner, outer - left - inner)):
            if extent == 0:
                continue
            shape = [*out.shape[:dim], extent, *x.shape[dim + 1 :]]
            b = low.nest(node, shape)
            offsets = [as_expr(0)] * dim + [start, *before[dim + 1 :]]
            b.store(out, b.constant(fill, x.dtype), [axis + at for axis, at in zip(b.axes, offsets, strict=True)])
            low.finish(b)


def _reflected(place: Value, last: Value) -> Value:
    return last - (last - place.op("abs")).op("abs")


def _replicated(place: Value, last: Value) -> Value:
    return place.op("maximum", 0).op("minimum", last)


def _folded(
    b: NestBuilder,
    shape: Sequence[Expr],
    pad: Sequence[int | Expr],
    fold: Fold,
    skipped: int = 0,
    at: Sequence[Expr] | None = None,
) -> list[Expr]:
    """For a position in the padded tensor, by default the nest's, the place in one of ``shape`` that it copies.

    The last ``skipped`` dimensions are left as they are.
    """
    place = list(b.axes if at is None else at)
    for k in range(skipped, len(pad) // 2):
        dim = len(shape) - 1 - k
        shifted = place[dim] - as_expr(pad[2 * k])
        size = shape[dim]
        if shifted.nonnegative() and shifted.below(size):
            place[dim] = shifted
            continue
        last = b.constant(int(size) - 1, "int64") if size.is_int else b.index(size - 1)
        place[dim] = b.loaded(fold(b.index(shifted), last), size)
    return place


def _padded_piece(
    low: Lowering,
    node: Node,
    x: TensorValue,
    out: TensorValue,
    pad: Sequence[int | Expr],
    fold: Fold,
    start: Expr,
    length: Expr,
    along: Positions | None,
) -> TensorValue:
    """``length`` columns of the result from ``start`` on; ``along`` gives a column's source without loading it."""
    b = low.nest(node, [*out.shape[:-1], length])
    if along is None:
        b.store(out, b.load(x, _folded(b, x.shape, pad, fold)))
    else:
        rows = _folded(b, x.shape, pad, fold, skipped=1)
        b.store(out, b.load(x, [*rows[:-1], *along(b.axes[-1:])]), [*b.axes[:-1], b.axes[-1] + start])
    low.finish(b)
    return out


def _gathered_edges(
    low: Lowering,
    node: Node,
    grad: TensorValue,
    shape: Sequence[Expr],
    pad: Sequence[int | Expr],
    fold: Fold,
    mirror: int,
) -> TensorValue:
    """The gradient: that of the middle, to which each dimension's edges are added, the last dimension's first.

    What is beyond an edge of a dimension covers the whole of those before it and the middle of those behind it, so
    that all but the last dimension's edges are rows in memory.
    """
    out, rank = low.result(node), len(shape)
    low_edge = [as_expr(0)] * (rank - len(pad) // 2) + [as_expr(p) for p in reversed(pad[::2])]
    high_edge = [as_expr(0)] * (rank - len(pad) // 2) + [as_expr(p) for p in reversed(pad[1::2])]
    b = low.nest(node, shape)
    middle = b.load(grad, [a + e for a, e in zip(b.axes, low_edge, strict=True)])
    b.store(out, middle + 0.0)  # eager adds to zeros
    low.finish(b)
    for dim in reversed(range(rank - len(pad) // 2, rank)):
        for start, length, above in (
            (as_expr(0), low_edge[dim], False),
            (low_edge[dim] + shape[dim], high_edge[dim], True),
        ):
            if length == 0:
                continue
            b = low.nest(node, [*grad.shape[:dim], length, *shape[dim + 1 :]])
            behind = [b.axes[k] + low_edge[k] for k in range(dim + 1, rank)]
            at = [*b.axes[:dim], b.axes[dim] + start, *behind]
            place = _folded(b, shape, pad, fold, rank - 1 - dim + mirror, at)
            place[dim + 1 :] = b.axes[dim + 1 :]
            if mirror:
                place[dim] = shape[dim] - 2 - b.axes[dim] if above else low_edge[dim] - b.axes[dim]
            b.store(out, b.load(grad, at), place, "add")
            low.finish(b)
    return out


def _register(name: str, rank: int, fold: Fold, mirror: int) -> None:
    """``mirror``: 1 where what lies beyond an edge runs backwards from it, 0 where the edge is repeated."""

    @rule(f"aten.{name}_pad{rank}d.default")
    def pad_edges(low: Lowering, node: Node, x: TensorValue, pad: Sequence[int | Expr]) -> TensorValue:
        out = low.result(node)
        low.plain(x.dtype)
        left, right, last = as_expr(pad[0]), as_expr(pad[1]), x.shape[-1] - 1
        if low.on_gpu(x) or not (left.nonnegative() and right.nonnegative()):
            return _padded_piece(low, node, x, out, pad, fold, as_expr(0), out.shape[-1], None)
        pieces: list[tuple[Expr, Expr, Positions]] = [
            (as_expr(0), left, lambda at: [(left - at[0]) * mirror]),
            (left, x.shape[-1], lambda at: [at[0]]),
            (left + x.shape[-1], right, lambda at: [last - (at[0] + 1) * mirror]),
        ]
        for start, length, along in pieces:
            if length != 0:
                _padded_piece(low, node, x, out, pad, fold, start, length, along)
        return out

    @rule(f"aten.{name}_pad{rank}d_backward.default")
    def pad_edges_backward(
        low: Lowering, node: Node, grad: TensorValue, x: TensorValue, pad: Sequence[int | Expr]
    ) -> TensorValue:
        low.plain(grad.dtype)
        if low.numerics != "eager" and all(as_expr(p).nonnegative() for p in pad):  # sums in another order
            return _gathered_edges(low, node, grad, x.shape, pad, fold, mirror)
        out = filled(low, node)
        b = low.nest(node, grad.shape)
        b.store(out, b.load(grad), _folded(b, x.shape, pad, fold), "add")
        low.finish(b)
        return out


for _rank in (1, 2, 3):
    _register("reflection", _rank, _reflected, 1)
    _register("replication", _rank, _replicated, 0)
