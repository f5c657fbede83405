"""Views: no code, only another way to index the same buffer."""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from lamina.ir.index import Expr, as_expr
from lamina.lower.context import Lowering
from lamina.lower.rules import rule
from lamina.lower.sizes import expr_of
from lamina.lower.values import TensorValue, fresh_dims, reshape_index

__all__: list[str] = []


@rule("aten.view.default", "aten._unsafe_view.default")
def view(low: Lowering, node: Node, x: TensorValue, shape: Sequence[int | Expr]) -> TensorValue:
    target = [expr_of(n) for n in node.meta["val"].shape]
    return x.view(target, reshape_index(x.shape, target))


@rule("aten.permute.default")
def permute(low: Lowering, node: Node, x: TensorValue, order: Sequence[int]) -> TensorValue:
    order = [d % x.rank for d in order] if x.rank else []
    shape = [x.shape[d] for d in order]
    dims = fresh_dims(shape)
    position = [as_expr(dims[order.index(d)]) for d in range(x.rank)]
    return x.view(shape, position)
