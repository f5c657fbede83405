"""Windows given by raw strides: ``as_strided`` counts elements of eager's memory, which ours must then mirror."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from lamina.ir.index import Expr, as_expr, prod
from lamina.ir.loops import Buffer
from lamina.lower.context import Lowering
from lamina.lower.positions import shape_of
from lamina.lower.reshaping import divided
from lamina.lower.rules import CannotLower, Decline, rule
from lamina.lower.sizes import expr_of, stride_of
from lamina.lower.values import TensorValue, fresh_dims, is_dense, linear_view

__all__: list[str] = []


def _mirrored_start(low: Lowering, node: Node, x: TensorValue) -> Expr:
    """Where ``x``'s buffer starts in eager's storage; raises where its strides are not eager's."""
    source = node.args[0]
    assert isinstance(source, Node)
    val = source.meta["val"]
    window = linear_view(x)
    theirs = [stride_of(s) for s in val.stride()]
    if window is None or any(n != 1 and s != t for n, s, t in zip(window.shape, window.strides, theirs, strict=True)):
        raise CannotLower(f"{node.target} of a value that is laid out otherwise than in eager")
    return expr_of(val.storage_offset()) - window.offset


def _flat(position: Sequence[Expr], strides: Sequence[Any], offset: Any, start: Expr) -> Expr:
    flat = as_expr(offset) - start
    for p, s in zip(position, strides, strict=True):
        flat = flat + p * as_expr(s)
    return flat


def _offset(node: Node, offset: Any) -> Expr:
    """The given offset, or by default the operand's own."""
    source = node.args[0]
    assert isinstance(source, Node)
    return expr_of(source.meta["val"].storage_offset()) if offset is None else as_expr(offset)


def _place(buffer: Buffer, flat: Expr) -> tuple[Expr, ...]:
    """The index of the element ``flat`` elements from the buffer's start. Declines what may be no element of it."""
    index = divided(flat, buffer.shape, buffer.strides)
    if index is None:
        raise Decline("a window onto memory whose rows overlap")
    if is_dense(buffer.shape, buffer.strides):
        inside, guessed = flat.nonnegative() and flat.below(prod(buffer.shape)), buffer.kind != "input" and flat.axes()
        if not (inside or guessed):
            raise Decline("a window that may reach beyond the tensor it is onto")
    elif not all(e.nonnegative() and e.below(n) for e, n in zip(index, buffer.shape, strict=True)):
        raise Decline("a window that may reach beyond the tensor it is onto")
    elif flat != sum((e * s for e, s in zip(index, buffer.strides, strict=True)), as_expr(0)):
        raise Decline("a window onto the gaps in a tensor's memory")
    return index


def _require_input(low: Lowering, node: Node, x: TensorValue) -> None:
    """A library call counts from the start of the storage, which only an input of the program shares with eager."""
    if low.buffers[x.buffer].kind != "input":
        raise CannotLower(f"{node.target} of a value that kernels made")


@rule("aten.as_strided.default")
def as_strided(
    low: Lowering, node: Node, x: TensorValue, size: Sequence[Any], strides: Sequence[Any], offset: Any = None
) -> TensorValue:
    start = _mirrored_start(low, node, x)
    shape = shape_of(node)
    dims = fresh_dims(shape)
    flat = _flat([as_expr(d) for d in dims], strides, _offset(node, offset), start)
    try:
        return TensorValue(x.buffer, x.dtype, dims, _place(low.buffers[x.buffer], flat), flat)
    except Decline:
        _require_input(low, node, x)
        raise


@rule("aten.as_strided_scatter.default")
def as_strided_scatter(
    low: Lowering,
    node: Node,
    x: TensorValue,
    source: TensorValue,
    size: Sequence[Any],
    strides: Sequence[Any],
    offset: Any = None,
) -> TensorValue:
    start = _mirrored_start(low, node, x)
    out = low.result(node)
    low.plain(x.dtype)
    buffer = low.buffers[out.buffer]
    if list(buffer.strides) != list(low.buffers[x.buffer].strides) or buffer.shape != low.buffers[x.buffer].shape:
        raise CannotLower(f"{node.target} of part of a tensor")
    low.into(node, out, lambda v: v, x, dtype=x.dtype)
    b = low.nest(node, source.shape)
    try:
        place = _place(buffer, _flat(b.axes, strides, _offset(node, offset), start))
    except Decline:
        _require_input(low, node, x)
        raise
    b.store(out, b.load(source), place)
    low.finish(b)
    return out
