"""Reading elements at computed places, and embeddings. Out-of-range indices raise what eager's CPU kernels raise."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from torch.fx import Node

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Expr, as_expr, prod
from lamina.lower.builder import NestBuilder, opmath
from lamina.lower.context import Lowering
from lamina.lower.positions import (
    at_least_1d,
    bounded_index,
    dimension,
    filled,
    integer,
    moved,
    replaced,
    shape_of,
    wrapped_index,
)
from lamina.lower.rules import Decline, rule
from lamina.lower.sums import rounded_sums, sums_of_halves
from lamina.lower.values import TensorValue, broadcast_index

__all__ = ["advanced_position", "in_dimension", "out_of_range", "unravelled"]

OUT_OF_RANGE = "index out of range in self"
_LONG_ROW = 16
"""Elements of a row from which on one remainder a row is little beside moving it."""

_SHORT_ROW = range(3, 17)
"""Lengths of a last dimension whose places, turned, are a pattern that vectors repeat: of two elements the pieces are
of one each, and need no pattern."""

_FEW_ROWS = 2
"""Rows of an embedding whose gradients are sums of their own: each takes registers for a tile."""


def out_of_range(dim: int, size: Expr) -> str:
    """What indexing says; eager also names the index, which a kernel does not report."""
    return f"index is out of bounds for dimension {dim}" + (f" with size {size}" if size.is_int else "")


def in_dimension(b: NestBuilder, x: TensorValue, dim: int, index: TensorValue, place: Sequence[Expr]) -> list[Expr]:
    """The nest's position ``place`` in ``x``, with the element of ``index`` there as the place in dimension ``dim``."""
    size = x.shape[dim]
    found = bounded_index(b, b.load(index, place), size, out_of_range(dim, size), "RuntimeError")
    return replaced(place, dim, found)


@rule("aten.gather.default")
def gather(
    low: Lowering, node: Node, x: TensorValue, dim: int, index: TensorValue, *, sparse_grad: bool = False
) -> TensorValue:
    out = low.result(node)
    low.plain(x.dtype)
    if any(n == 0 for n in index.shape):  # such an index may have any number of dimensions
        return out
    source, places = at_least_1d(x), at_least_1d(index)
    b = low.nest(node, places.shape)
    position = in_dimension(b, source, dimension(dim, source.rank), places, b.axes)
    b.store(at_least_1d(out), b.load(source, position))
    low.finish(b)
    return out


@rule("aten.index_select.default")
def index_select(low: Lowering, node: Node, x: TensorValue, dim: int, index: TensorValue) -> TensorValue:
    out = low.result(node)
    low.plain(x.dtype)
    dim, source, places, target = dimension(dim, x.rank), at_least_1d(x), at_least_1d(index), at_least_1d(out)
    b = low.nest(node, target.shape)
    # Eager has a kernel of its own for the second dimension, with an error of its own.
    wrong = ("INDICES element is out of DATA bounds", "RuntimeError") if dim == 1 else (OUT_OF_RANGE, "IndexError")
    found = bounded_index(b, b.load(places, [b.axes[dim]]), source.shape[dim], *wrong)
    b.store(target, b.load(source, replaced(b.axes, dim, found)))
    low.finish(b)
    return out


def unravelled(flat: Expr, shape: Sequence[Expr]) -> list[Expr]:
    """The position of the element with number ``flat`` in row-major order."""
    position: list[Expr] = []
    inner = as_expr(1)
    for k in range(len(shape) - 1, -1, -1):
        position.append(flat // inner if k == 0 else (flat // inner) % shape[k])
        inner = inner * shape[k]
    return position[::-1]


@rule("aten.take.default")
def take(low: Lowering, node: Node, x: TensorValue, index: TensorValue) -> TensorValue:
    out = low.result(node)
    low.plain(x.dtype)
    b = low.nest(node, out.shape)
    found = wrapped_index(b, b.load(index), x.numel(), "out of range: tried to access an index beyond the elements")
    b.store(out, b.load(x, unravelled(found, x.shape)))
    low.finish(b)
    return out


def advanced_position(
    b: NestBuilder, x: TensorValue, indices: Sequence[TensorValue | None], rank: int, checked: bool = True
) -> list[Expr]:
    """Where in ``x`` the element at the nest's position comes from, for ``x[indices]`` with result rank ``rank``.

    ``rank`` counts the broadcast dimensions of the index tensors. These come first in the result, unless the index
    tensors stand next to each other; then they take the place of the dimensions that are indexed.
    """
    used = [k for k, index in enumerate(indices) if index is not None]
    for k in used:
        index = indices[k]
        assert index is not None
        if DTYPES[index.dtype].kind == "bool" or index.dtype == "uint8":
            raise Decline("a mask as index: the size of the result depends on its values")
    together = used[-1] - used[0] + 1 == len(used)
    at = used[0] if together else 0
    shared = b.axes[at : at + rank]
    plain = iter([*b.axes[:at], *b.axes[at + rank :]])
    position: list[Expr] = []
    for k, size in enumerate(x.shape):
        index = indices[k] if k < len(indices) else None
        if index is None:
            position.append(next(plain))
            continue
        loaded = b.load(index, broadcast_index(index.shape, shared))
        position.append(wrapped_index(b, loaded, size, out_of_range(k, size) if checked else None))
    return position


def _broadcast_rank(indices: Sequence[TensorValue | None]) -> int:
    return max(index.rank for index in indices if index is not None)


@rule("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index_(low: Lowering, node: Node, x: TensorValue, indices: Sequence[TensorValue | None]) -> TensorValue:
    out = low.result(node)
    low.plain(x.dtype)
    if all(index is None for index in indices):
        return low.into(node, out, lambda v: v, x, dtype=x.dtype)
    b = low.nest(node, out.shape)
    position = advanced_position(b, x, indices, _broadcast_rank(indices), "_unsafe" not in str(node.target))
    b.store(out, b.load(x, position))
    low.finish(b)
    return out


@rule("aten.embedding.default")
def embedding(
    low: Lowering,
    node: Node,
    weight: TensorValue,
    indices: TensorValue,
    padding_idx: int | Expr = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> TensorValue:
    out = low.result(node)
    low.plain(weight.dtype)
    b = low.nest(node, out.shape)
    row = bounded_index(b, b.load(indices, b.axes[: indices.rank]), weight.shape[0], OUT_OF_RANGE)
    b.store(out, b.load(weight, [row, *b.axes[indices.rank :]]))
    low.finish(b)
    return out


@rule("aten.embedding_dense_backward.default")
def embedding_dense_backward(
    low: Lowering,
    node: Node,
    grad: TensorValue,
    indices: TensorValue,
    rows: int | Expr,
    padding_idx: int | Expr,
    scale_grad_by_freq: bool,
) -> TensorValue:
    """Zeros, then each row of the gradient added to the row of its index; none for the padding index."""
    if scale_grad_by_freq:
        raise Decline("gradients divided by the frequency of each index")
    low.plain(grad.dtype)
    padding = integer(padding_idx, "the padding index is")
    size = shape_of(node)[0]
    if size.is_int and size.const <= _FEW_ROWS and indices.rank and padding < 0 and all(n != 0 for n in grad.shape):
        return _rows_of_sums(low, node, grad, indices, size.const)
    sums = sums_of_halves(low, node)
    out = filled(low, node) if sums is None else sums
    b = low.nest(node, grad.shape)
    index = b.load(indices, b.axes[: indices.rank]).to("int64")
    counted = (index >= 0) & (index < (b.constant(int(size), "int64") if size.is_int else b.index(size)))
    if padding >= 0:
        counted = counted & index.op("ne", padding)
    row = b.loaded(b.where(counted, index, 0), size)
    b.store(out, b.load(grad).to(out.dtype), [row, *b.axes[indices.rank :]], "add", counted)
    low.finish(b)
    return out if sums is None else rounded_sums(low, node, sums)


def _rows_of_sums(low: Lowering, node: Node, grad: TensorValue, indices: TensorValue, rows: int) -> TensorValue:
    """Each row as a sum over all places, of what is there if the index is the row's.

    Of few rows each is hit by so many places that they would wait for one another (an H200: 16384 of 768 elements
    into two rows, of which one was hit, took 172 us; the sums read the gradient once).
    """
    out = low.result(node)
    b = low.nest(node, grad.shape)
    index = b.load(indices, b.axes[: indices.rank]).to("int64")
    value = b.load(grad).to(opmath(grad.dtype))
    for row in range(rows):
        total = b.reduce("sum", b.where(index.equals(row), value, 0), range(indices.rank))
        b.store(out, total, [as_expr(row), *b.axes[indices.rank :]])
    low.finish(b)
    return out


@rule("aten.flip.default", "prims.rev.default")
def flip(low: Lowering, node: Node, x: TensorValue, dims: Sequence[int]) -> TensorValue:
    turned = {dimension(d, x.rank) for d in dims}
    return moved(low, node, x, lambda at: [x.shape[k] - 1 - p if k in turned else p for k, p in enumerate(at)])


@rule("aten.rot90.default")
def rot90(low: Lowering, node: Node, x: TensorValue, k: int = 1, dims: Sequence[int] = (0, 1)) -> TensorValue:
    first, second = (d % x.rank for d in dims)

    def position(at: Sequence[Expr]) -> list[Expr]:
        place = list(at)
        i, j = at[first], at[second]
        if k % 4 == 1:
            i, j = j, x.shape[second] - 1 - i
        elif k % 4 == 2:
            i, j = x.shape[first] - 1 - i, x.shape[second] - 1 - j
        elif k % 4 == 3:
            i, j = x.shape[first] - 1 - j, i
        place[first], place[second] = i, j
        return place

    return moved(low, node, x, position)


@rule("aten.roll.default")
def roll(
    low: Lowering, node: Node, x: TensorValue, shifts: Sequence[int | Expr] | int, dims: Sequence[int] = ()
) -> TensorValue:
    steps: list[int | Expr] = [shifts] if isinstance(shifts, int | Expr) else list(shifts)
    if any(n == 0 for n in x.shape):
        return low.result(node)
    if not dims:
        total = x.numel()

        def flat(at: Sequence[Expr]) -> Sequence[Expr]:
            number = as_expr(0)
            for p, n in zip(at, x.shape, strict=True):
                number = number * n + p
            return unravelled((number - steps[0]) % total, x.shape)

        return moved(low, node, x, flat)

    turns = [as_expr(0)] * x.rank
    for shift, dim in zip(steps, dims, strict=True):
        turns[dim % x.rank] = turns[dim % x.rank] + shift
    return _rolled(low, node, x, [turn % n for turn, n in zip(turns, x.shape, strict=True)])


def _rolled(low: Lowering, node: Node, x: TensorValue, turns: Sequence[Expr]) -> TensorValue:
    """Long rows are taken from where they were, by a remainder, so that a reader takes them there too without a copy.

    On CPUs a dimension of short steps is in two pieces, the end moved to the front: within vectors no place has a
    remainder. A last dimension of few elements stays whole: rows are then joined, and the places repeat after each
    row. So does one of many: in most vectors its elements lie side by side.
    """
    out, whole = low.result(node), low.on_gpu(x)
    low.plain(x.dtype)
    parts = []
    for dim, (turn, n) in enumerate(zip(turns, x.shape, strict=True)):
        row = prod(x.shape[dim + 1 :])
        last = dim == len(x.shape) - 1 and n.is_int and (n.const in _SHORT_ROW or n.const >= 4 * _LONG_ROW)
        if whole or turn == 0 or not row.is_int or row.const >= _LONG_ROW or last:
            parts.append([(n - turn, as_expr(0), n)])
        else:
            parts.append([(n - turn, as_expr(0), turn), (as_expr(0), turn, n - turn)])
    for piece in product(*parts):
        b = low.nest(node, [length for _, _, length in piece])
        rows = zip(b.axes, piece, turns, x.shape, strict=True)
        place = [
            axis if turn == 0 else (axis + source) % n if length == n else axis + source
            for axis, (source, _, length), turn, n in rows
        ]
        value = b.load(x, place)
        b.store(out, value, [axis + target for axis, (_, target, _) in zip(b.axes, piece, strict=True)])
        low.finish(b)
    return out


@rule("aten.repeat.default")
def repeat(low: Lowering, node: Node, x: TensorValue, repeats: Sequence[int | Expr]) -> TensorValue:
    if any(n == 0 for n in shape_of(node)):
        return low.result(node)
    lead = len(repeats) - x.rank
    return moved(low, node, x, lambda at: [p % n for p, n in zip(at[lead:], x.shape, strict=True)])


@rule("aten.diag_embed.default")
def diag_embed(
    low: Lowering, node: Node, x: TensorValue, offset: int = 0, dim1: int = -2, dim2: int = -1
) -> TensorValue:
    out = low.result(node)
    low.plain(x.dtype)
    dim1, dim2 = dim1 % out.rank, dim2 % out.rank
    b = low.nest(node, out.shape)
    i, j = b.axes[dim1], b.axes[dim2]
    others = [a for k, a in enumerate(b.axes) if k not in (dim1, dim2)]
    on_diagonal = b.index(i + offset).equals(b.index(j))
    b.store(out, b.load(x, [*others, i - max(-offset, 0)], on_diagonal, 0))
    low.finish(b)
    return out
