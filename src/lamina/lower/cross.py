"""Vector products of three elements along one dimension."""

from __future__ import annotations

from torch.fx import Node

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Expr, as_expr
from lamina.lower.context import Lowering
from lamina.lower.positions import dimension
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue, broadcast_index

__all__: list[str] = []


@rule("aten.linalg_cross.default")
def linalg_cross(low: Lowering, node: Node, a: TensorValue, b: TensorValue, *, dim: int = -1) -> TensorValue:
    """The three elements are made at one point, so that each operand's is read once."""
    out = low.result(node)
    low.plain(out.dtype)
    if DTYPES[out.dtype].size < 4:
        raise Decline("eager rounds each product of a 16-bit type")
    along = dimension(dim, out.rank)
    nest = low.nest(node, [n for k, n in enumerate(out.shape) if k != along])

    def place(k: int) -> tuple[Expr, ...]:
        axes = list(nest.axes)
        return (*axes[:along], as_expr(k % 3), *axes[along:])

    ours, theirs = ([nest.load(x, broadcast_index(x.shape, place(k))).to(out.dtype) for k in range(3)] for x in (a, b))
    for k in range(3):
        after, last = (k + 1) % 3, (k + 2) % 3
        nest.store(out, ours[after] * theirs[last] - ours[last] * theirs[after], place(k))
    low.finish(nest)
    return out
