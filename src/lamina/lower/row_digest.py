"""Digests of rows, and rows that are computed again where the digest is another one, as nests."""

from __future__ import annotations

from torch.fx import Node

from lamina.base.row_digest import FIRST_MIX, PLACE, SECOND_MIX
from lamina.lower.builder import NestBuilder, Value
from lamina.lower.context import Lowering
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue

__all__: list[str] = []


def _mixed(value: Value, factor: int, shift: int) -> Value:
    value = value * factor
    return value.op("bitwise_xor", value.op("shr", shift).op("bitwise_and", (1 << (32 - shift)) - 1))


def _digest(b: NestBuilder, value: Value) -> Value:
    """The digest of the row of ``value``, along the nest's last axis."""
    last = len(b.axes) - 1
    place = b.index(b.axes[last], "int32") * PLACE
    first = _mixed(value.op("bits").to("int32").op("bitwise_xor", place), *FIRST_MIX)
    second = _mixed(first, *SECOND_MIX)
    return b.reduce("sum", second.to("int64").op("shl", 32) + first.to("int64"), [last])


def _on_gpu(low: Lowering, value: TensorValue) -> None:
    if low.buffers[value.buffer].device == "cpu":
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
