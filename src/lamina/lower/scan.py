"""Running sums, products and logarithms of sums along one dimension."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from lamina.lower.builder import opmath
from lamina.lower.context import Lowering
from lamina.lower.positions import dimension
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue

__all__: list[str] = []


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
