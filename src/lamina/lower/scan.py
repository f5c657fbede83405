"""Running sums, products, logarithms of sums, and extremes with their places, along one dimension."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from lamina.lower.builder import NestBuilder, Value, opmath
from lamina.lower.context import Lowering
from lamina.lower.positions import dimension
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue

__all__: list[str] = []

_IN_32_BITS = 2**30
"""Points of a scan below which places are counted in 32 bits, with room for a tile beyond the end."""


def _register(target: str, op: str) -> None:
    @rule(target)
    def scan(low: Lowering, node: Node, x: TensorValue, dim: int, *, dtype: Any = None) -> TensorValue:
        out = low.result(node)
        low.plain(x.dtype, out.dtype)
        if out.dtype == "bool":
            raise Decline("eager has no running sums of booleans that are booleans")
        b = low.nest(node, out.shape)
        v = b.load(x).to(opmath(out.dtype))
        b.store(out, b.scan(op, v, dimension(dim, x.rank)) if x.rank else v)
        low.finish(b)
        return out


_register("aten.cumsum.default", "sum")
_register("aten.cumprod.default", "prod")
_register("aten.logcumsumexp.default", "logaddexp")


def _register_extreme(target: str, op: str) -> None:
    @rule(target)
    def extreme(low: Lowering, node: Node, x: TensorValue, dim: int) -> list[TensorValue]:
        values, places = low.result(node, 0), low.result(node, 1)
        low.plain(x.dtype)
        b = low.nest(node, x.shape)
        value = b.load(x).to("uint8" if x.dtype == "bool" else opmath(x.dtype))
        best, place = _extreme(b, op, value, dimension(dim, x.rank)) if x.rank else (value, b.constant(0, "int64"))
        b.store(values, best)
        b.store(places, place)
        low.finish(b)
        return [values, places]


def _extreme(b: NestBuilder, op: str, value: Value, along: int) -> tuple[Value, Value]:
    """The greatest or least value so far, and the last place that had it; NaN is beyond every number.

    Places that were the best when their turn came are greater than those before them: they are a running maximum.
    """
    extent = b.axis_list[along].extent
    best = b.scan(op, value, along)
    place = b.index(b.axes[along], "int32" if extent.is_int and extent.const < _IN_32_BITS else "int64")
    here = value.equals(best)
    if value.dtype.startswith("float"):
        here = here.op("or", value.op("isnan"))
    return best, b.scan("max", b.where(here, place, 0), along).to("int64")


_register_extreme("aten.cummax.default", "max")
_register_extreme("aten.cummin.default", "min")
