"""Digests of rows, and rows that are computed again where the digest is another one, as nests."""

from __future__ import annotations

from torch.fx import Node

from lamina.base.dtypes import DTYPES
from lamina.base.row_digest import MIXES, PLACE
from lamina.lower.builder import NestBuilder, Value
from lamina.lower.context import Lowering
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue

__all__: list[str] = []


def _mixed(value: Value, shift: int, factor: int) -> Value:
    moved = value.op("shr", shift).op("bitwise_and", (1 << (32 - shift)) - 1)
    return value.op("bitwise_xor", moved) * factor


def _unsigned(value: Value, bits: int) -> Value:
    """The lowest ``bits`` bits of an integer as an int64 that is not negative."""
    return value.to("int64").op("bitwise_and", (1 << bits) - 1)


def _digest(b: NestBuilder, value: Value) -> Value:
    """The digest of the row of ``value``, along the nest's last axis."""
    last = len(b.axes) - 1
    low = _mixed(b.index(b.axes[last] + 1, "int32") * PLACE, *MIXES[0])
    high = _mixed(_mixed(low, *MIXES[1]), *MIXES[2])
    factor = high.to("int64").op("shl", 32) + _unsigned(low, 32)
    return b.reduce("sum", _unsigned(value.op("bits"), 8 * DTYPES[value.dtype].size) * factor, [last])


def _on_gpu(low: Lowering, value: TensorValue) -> None:
    if low.buffers[value.buffer].on_cpu:
        raise Decline("kernels for a CPU do not read the bits of a number")


@rule("lamina.row_digest.default")
def row_digest(low: Lowering, node: Node, rows: TensorValue) -> TensorValue:
    _on_gpu(low, rows)
    out = low.result(node)
    b = low.nest(node, rows.shape)
    b.store(out, _digest(b, b.load(rows)), [*b.axes[:-1], b.axes[-1] * 0])
    low.finish(b)
    return out


@rule("lamina.unless_changed.default")
def unless_changed(
    low: Lowering, node: Node, seen: TensorValue, digest: TensorValue, again: TensorValue
) -> TensorValue:
    _on_gpu(low, seen)
    out = low.result(node)
    b = low.nest(node, again.shape)
    value = b.load(seen)
    same = _digest(b, value).equals(b.load(digest, [*b.axes[:-1], b.axes[-1] * 0]))
    b.store(out, b.where(same, value, b.load(again)))
    low.finish(b)
    return out
