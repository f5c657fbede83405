"""Vector products of three elements along one dimension."""

from __future__ import annotations

from torch.fx import Node

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Expr, as_expr
from lamina.lower.builder import Value, opmath
from lamina.lower.context import Lowering
from lamina.lower.positions import dimension
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue, broadcast_index

__all__: list[str] = []


@rule("aten.linalg_cross.default")
def linalg_cross(low: Lowering, node: Node, a: TensorValue, b: TensorValue, *, dim: int = -1) -> TensorValue:
    """The three elements are made at one point, so that each operand's is read once.

    Eager rounds each product of a 16-bit type.
    """
    out = low.result(node)
    low.plain(out.dtype)
    if DTYPES[out.dtype].size < 4 and not DTYPES[out.dtype].is_float:
        raise Decline("narrow integers are multiplied in their own type")
    wide = opmath(out.dtype)
    along = dimension(dim, out.rank)
    nest = low.nest(node, [n for k, n in enumerate(out.shape) if k != along])

    def place(k: int) -> tuple[Expr, ...]:
        axes = list(nest.axes)
        return (*axes[:along], as_expr(k % 3), *axes[along:])

    def product(x: Value, y: Value) -> Value:
        return (x.to(wide) * y.to(wide)).to(out.dtype).to(wide)

    ours, theirs = ([nest.load(x, broadcast_index(x.shape, place(k))).to(out.dtype) for k in range(3)] for x in (a, b))
    for k in range(3):
        after, last = (k + 1) % 3, (k + 2) % 3
        made = product(ours[after], theirs[last]) - product(ours[last], theirs[after])
        nest.store(out, made.to(out.dtype), place(k))
    low.finish(nest)
    return out
