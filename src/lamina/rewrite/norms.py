"""Group norms in training as statistics and arithmetic on them.

Eager keeps what a group norm wrote whenever something after it, an activation, asks for it in the backward. Computed
again whole, the norm reads its input once more only to find its statistics. Opened, the result is arithmetic on the
input and on two numbers for each group, which the forward has anyway: those are kept, the rest is computed again where
it is read.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.rewrite.rebuild import Write, call_for, written_anew

__all__ = ["open_group_norm"]

aten = torch.ops.aten

_BACKWARD = aten.native_group_norm_backward.default


def open_group_norm(gm: GraphModule, device: str = "cuda") -> GraphModule:
    """Each group norm of known sizes on that type of device that has a backward and whose result is read, as statistics
    and arithmetic; ``gm`` itself if there is none.
    """
    writes: dict[Node, Write] = {}
    for node in gm.graph.find_nodes(op="call_function", target=aten.native_group_norm.default):
        if _opens(node, device):
            opened = _Opened(node)
            writes |= {user: functools.partial(opened.result, int(user.args[1])) for user in node.users}  # type: ignore[call-overload]
    return written_anew(gm, writes)


def _opens(node: Node, device: str) -> bool:
    """Whether the norm has a backward and its result is read beside it."""
    out, mean, _ = node.meta["val"]
    results = {int(user.args[1]): user for user in node.users if user.target is operator.getitem}  # type: ignore[call-overload]
    sizes = (*out.shape, *node.args[3:7])
    return (
        out.device.type == device
        and all(isinstance(n, int) and n > 0 for n in sizes)
        and mean.numel() > 0
        and len(results) == len(node.users)
        and {0, 1, 2} <= set(results)
        and any(user.target is _BACKWARD for user in results[1].users)
        and any(user.op == "call_function" for user in results[0].users)
    )


class _Opened:
    """One group norm; its values are written where the first of its results stood."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.made: tuple[Node, Node, Node] | None = None

    def result(self, which: int, graph: Graph, made: Mapping[Node, Node]) -> Node:
        """The normalised tensor, the mean or the reciprocal deviation of each group."""
        if self.made is None:
            self.made = self.written(graph, made)
        return self.made[which]

    def written(self, graph: Graph, made: Mapping[Node, Node]) -> tuple[Node, Node, Node]:
        """As in eager's kernel, in float32 or wider; all on a view with the groups as a dimension."""
        call = functools.partial(call_for, graph, self.node)
        x, weight, bias = (made[a] if isinstance(a, Node) else None for a in self.node.args[:3])
        groups, eps = self.node.args[6:]
        out, *kept = self.node.meta["val"]
        assert x is not None
        assert isinstance(groups, int)
        wide = torch.float64 if out.dtype == torch.float64 else torch.float32

        def widened(value: Node, shape: list[int]) -> Node:
            value = value if value.meta["val"].dtype == wide else call(aten._to_copy.default, value, dtype=wide)
            return call(aten.view.default, value, shape)

        def rounded(value: Node, like: Any) -> Node:
            value = call(aten.view.default, value, list(like.shape))
            return value if like.dtype == wide else call(aten._to_copy.default, value, dtype=like.dtype)

        samples, channels, *space = out.shape
        width = channels // groups
        grouped = widened(x, [samples, groups, width, *space])
        inside = list(range(2, len(space) + 3))
        pair = call(aten.var_mean.correction, grouped, inside, correction=0, keepdim=True)
        variance, mean = (call(operator.getitem, pair, k) for k in range(2))
        scale = call(aten.rsqrt.default, call(aten.add.Scalar, variance, eps))
        result = call(aten.mul.Tensor, call(aten.sub.Tensor, grouped, mean), scale)
        channel = [1, groups, width, *(1 for _ in space)]
        if weight is not None:
            result = call(aten.mul.Tensor, result, widened(weight, channel))
        if bias is not None:
            result = call(aten.add.Tensor, result, widened(bias, channel))
        return rounded(result, out), rounded(mean, kept[0]), rounded(scale, kept[1])
