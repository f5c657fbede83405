"""What max pooling keeps for its backward: how far maxima are from their windows' corners, in two bytes, and no image.

PyTorch keeps the place of each maximum in the image, eight bytes, and the image itself, of which the backward reads
only the shape. (The stem of ResNet-50, batch 128: 392 MiB become 49.)
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from lamina.rewrite.rebuild import Write, call_for, written_anew

__all__ = ["short_pool_places"]

aten = torch.ops.aten

_FORWARD = aten.max_pool2d_with_indices.default
_BACKWARD = aten.max_pool2d_with_indices_backward.default
_FARTHEST = torch.iinfo(torch.int16).max
"""Places from a window's corner that two bytes can number."""


def short_pool_places(gm: GraphModule, device: str = "cuda") -> GraphModule:
    """Keep places within windows for the backwards of max pooling on ``device`` (a type); ``gm`` itself if none is."""
    found: dict[Node, Write] = {}
    for node in gm.graph.find_nodes(op="call_function", target=_BACKWARD):
        pool = _pool(node, device)
        if pool is not None:
            found[node] = functools.partial(_written, node, pool)
    return written_anew(gm, found)


def _pool(node: Node, device: str) -> Node | None:
    """The pooling of which this is the backward, if nothing else reads its places and all sizes are known."""
    places: Any = node.args[-1]
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.device.type != device or node.kwargs:
        return None
    if not isinstance(places, Node) or places.target is not operator.getitem or list(places.users) != [node]:
        return None
    pool: Any = places.args[0]
    if pool.target is not _FORWARD or pool.args[0] is not node.args[1]:
        return None
    size, _, _, dilation = _window(node.args[2:7])
    if not all(isinstance(n, int) for n in (*value.shape, *places.meta["val"].shape)):
        return None
    farthest = (size[0] - 1) * dilation[0] * value.shape[-1] + (size[1] - 1) * dilation[1]
    return pool if farthest <= _FARTHEST else None


def _window(args: Sequence[Any]) -> list[tuple[int, int]]:
    """Size, step, padding and dilation of windows, each for rows and columns."""
    size, step, pad, dilation = (list(a) for a in args[:4])
    both = [part * 2 if len(part) == 1 else part for part in (size, step or size, pad, dilation)]
    return [(a, b) for a, b in both]


def _written(node: Node, pool: Node, graph: Graph, made: Mapping[Node, Node]) -> Node:
    """Write the backward behind the places in short and in full again."""
    gradient, image, *window, places = cast("list[Node]", node.args)
    value = node.meta["val"]

    def corners(call: Callable[..., Node]) -> Node:
        """The place of each window's corner, which may lie in the padding."""
        lines = []
        _, step, pad, _ = _window(window)
        with value.fake_mode:
            for d, row in enumerate((value.shape[-1], 1)):
                count = places.meta["val"].shape[d - 2]
                first, last = -pad[d] * row, (count * step[d] - pad[d]) * row
                lines.append(call(aten.arange.start_step, first, last, step[d] * row, device=value.device))
            return call(aten.add.Tensor, call(aten.view.default, lines[0], [-1, 1]), lines[1])

    forward, backward = (functools.partial(call_for, graph, n) for n in (pool, node))
    short = forward(aten.sub.Tensor, made[places], corners(forward))
    short = forward(aten._to_copy.default, short, dtype=torch.int16)
    full = backward(aten._to_copy.default, short, dtype=torch.int64)
    full = backward(aten.add.Tensor, full, corners(backward))
    args = (made[gradient], made[_kept_anyway(image)], *window, full)
    result = graph.call_function(_BACKWARD, cast("tuple[Any, ...]", args))
    result.meta = {**node.meta}
    return result


def _kept_anyway(image: Node) -> Node:
    """An image of the same shape and layout that a batch norm's backward reads, before the norm and ReLU; or itself."""
    source: Any = image
    if source.target is aten.relu.default:
        source = source.args[0]
    if source.target is not operator.getitem or source.args[1] != 0 or "batch_norm" not in str(source.args[0].target):
        return image
    before: Node = source.args[0].args[0]
    kept, value = before.meta["val"], image.meta["val"]
    return before if kept.stride() == value.stride() and kept.dtype == value.dtype else image
