"""Statistics that the backward keeps: of variances and of group norms.

The gradient of a variance needs the mean, which eager finds by reading everything again. Where both are asked for, one
reduction gives both.

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

from lamina.base.devices import Where, in_grids, kind_of
from lamina.base.fx.copying import Write
from lamina.base.fx.editing import call_for, written_anew

__all__ = ["open_group_norm", "share_means"]

aten = torch.ops.aten

_WITH_MEAN = {
    aten.var.correction: aten.var_mean.correction,
    aten.std.correction: aten.std_mean.correction,
}
_BACKWARD = aten.native_group_norm_backward.default


def share_means(gm: GraphModule) -> GraphModule:
    """Each variance or deviation over the dimensions of a mean of the same tensor, with that mean from one reduction;
    ``gm`` itself if there is none.
    """
    means: dict[Any, list[Node]] = {}
    for node in gm.graph.find_nodes(op="call_function", target=aten.mean.dim):
        if node.kwargs.get("dtype") is None and node.args[0].meta["val"].is_floating_point():
            means.setdefault(_reduced(node), []).append(node)
    writes: dict[Node, Write] = {}
    for target in _WITH_MEAN if means else ():
        for node in gm.graph.find_nodes(op="call_function", target=target):
            found = means.pop(_reduced(node), None)
            if found is not None:
                pair = _Pair(node)
                writes[node] = functools.partial(pair.result, 0, node)
                writes |= {mean: functools.partial(pair.result, 1, mean) for mean in found}
    return written_anew(gm, writes)


def _reduced(node: Node) -> tuple[Any, frozenset[int]]:
    """What the reduction reads and over which dimensions."""
    source = node.args[0]
    assert isinstance(source, Node)
    rank = source.meta["val"].dim()
    dims: Any = (node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")) or range(rank)
    return source, frozenset(d % max(rank, 1) for d in ([dims] if isinstance(dims, int) else dims))


class _Pair:
    """A variance with its mean, written where the first of the two stood."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.made: Node | None = None

    def result(self, which: int, old: Node, graph: Graph, made: Mapping[Node, Node]) -> Node:
        """The variance or the mean in the shape of ``old``."""
        call = functools.partial(call_for, graph, old)
        source, dims = _reduced(self.node)
        if self.made is None:
            options = {name: self.node.kwargs.get(name) for name in ("correction", "keepdim")}
            target = _WITH_MEAN[self.node.target]  # type: ignore[index]
            self.made = call(target, made[source], sorted(dims), **options | {"keepdim": bool(options["keepdim"])})
        value = call(operator.getitem, self.made, which)
        if value.meta["val"].dim() > old.meta["val"].dim():
            return call(aten.squeeze.dims, value, sorted(dims))
        if value.meta["val"].dim() < old.meta["val"].dim():
            for dim in sorted(dims):
                value = call(aten.unsqueeze.default, value, dim)
        return value


def open_group_norm(gm: GraphModule, where: Where = in_grids) -> GraphModule:
    """Each group norm of known sizes that has a backward and whose result is read, on devices ``where`` it pays, as
    statistics and arithmetic; ``gm`` itself if there is none.
    """
    writes: dict[Node, Write] = {}
    for node in gm.graph.find_nodes(op="call_function", target=aten.native_group_norm.default):
        if _opens(node, where):
            opened = _Opened(node)
            writes |= {user: functools.partial(opened.result, _place(user)) for user in node.users}
    return written_anew(gm, writes)


def _opens(node: Node, where: Where) -> bool:
    """Whether the norm has a backward and its result is read beside it."""
    out, mean, _ = node.meta["val"]
    results = {_place(user): user for user in node.users if user.target is operator.getitem}
    sizes = (*out.shape, *node.args[3:7])
    return (
        where(kind_of(out))
        and all(isinstance(n, int) and n > 0 for n in sizes)
        and mean.numel() > 0
        and len(results) == len(node.users)
        and {0, 1, 2} <= set(results)
        and any(user.target is _BACKWARD for user in results[1].users)
        and any(user.op == "call_function" for user in results[0].users)
    )


def _place(item: Node) -> int:
    """Which result of a call the node takes."""
    assert isinstance(item.args[1], int)
    return item.args[1]


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
