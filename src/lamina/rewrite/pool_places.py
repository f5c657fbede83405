"""What max pooling keeps for its backward: how far maxima are from their windows' corners, in one or two bytes.

PyTorch keeps the place of each maximum in the image, eight bytes, and the image itself, of which the backward reads
only the shape. (The stem of ResNet-50, batch 128: 392 MiB become 25.)

``lamina::max_pool2d_with_offsets`` is max pooling that gives these distances, counted as places in the image are: a row
is the image's width. ``lamina::max_pool2d_offsets_backward`` takes them. Their implementations here are the executable
specification; code generation puts them into kernels.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from lamina.base.devices import Where, in_grids, kind_of
from lamina.base.fx.copying import Write
from lamina.base.fx.editing import call_for, written_anew

__all__ = ["max_pool2d_offsets_backward", "max_pool2d_with_offsets", "short_pool_places"]

aten = torch.ops.aten

_FORWARD = aten.max_pool2d_with_indices.default
_BACKWARD = aten.max_pool2d_with_indices_backward.default
_DTYPES = (torch.uint8, torch.int16)
"""Types of distances, from the smallest."""

_WINDOW = "int[] kernel_size, int[] stride, int[] padding, int[] dilation, bool ceil_mode"
torch.library.define("lamina::max_pool2d_with_offsets", f"(Tensor x, {_WINDOW}, ScalarType dtype) -> (Tensor, Tensor)")
torch.library.define("lamina::max_pool2d_offsets_backward", f"(Tensor g, Tensor x, {_WINDOW}, Tensor o) -> Tensor")

Ints = Sequence[int]


def _corners(x: Tensor, places: Tensor, stride: Ints, padding: Ints) -> Tensor:
    """The place of each window's corner, which may lie in the padding."""
    rows, columns = (
        (torch.arange(n, device=x.device) * step - pad)
        for n, step, pad in zip(places.shape[-2:], stride, padding, strict=True)
    )
    return rows[:, None] * x.shape[-1] + columns


@torch.library.impl("lamina::max_pool2d_with_offsets", "default")
def _with_offsets(
    x: Tensor, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    result, places = aten.max_pool2d_with_indices(x, kernel, stride, padding, dilation, ceil_mode)
    return result, (places - _corners(x, places, stride, padding)).to(dtype)


@torch.library.impl("lamina::max_pool2d_offsets_backward", "default")
def _offsets_backward(
    g: Tensor, x: Tensor, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool, o: Tensor
) -> Tensor:
    places = o.long() + _corners(x, o, stride, padding)
    return cast("Tensor", _BACKWARD(g, x, kernel, stride, padding, dilation, ceil_mode, places))


def _fake_with_offsets(
    x: Tensor, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    result, places = aten.max_pool2d_with_indices(x, kernel, stride, padding, dilation, ceil_mode)
    return result, torch.empty_like(places, dtype=dtype)


def _fake_offsets_backward(
    g: Tensor, x: Tensor, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool, o: Tensor
) -> Tensor:
    places = torch.empty_like(o, dtype=torch.int64)
    return cast("Tensor", _BACKWARD(g, x, kernel, stride, padding, dilation, ceil_mode, places))


torch.library.register_fake("lamina::max_pool2d_with_offsets", _fake_with_offsets)
torch.library.register_fake("lamina::max_pool2d_offsets_backward", _fake_offsets_backward)

max_pool2d_with_offsets = torch.ops.lamina.max_pool2d_with_offsets.default
max_pool2d_offsets_backward = torch.ops.lamina.max_pool2d_offsets_backward.default


def short_pool_places(gm: GraphModule, where: Where = in_grids) -> GraphModule:
    """Keep places within windows for backwards of max pooling on devices ``where`` it pays; ``gm`` itself if none."""
    found: dict[Node, Write] = {}
    for node in gm.graph.find_nodes(op="call_function", target=_BACKWARD):
        pool = _pool(node, where)
        dtype = None if pool is None else _dtype(node)
        if pool is not None and dtype is not None:
            places = cast("Node", node.args[-1])
            window = (*_window(node.args[2:6]), node.args[6])
            found[pool] = functools.partial(_forward, pool, window, dtype)
            found[places] = functools.partial(_places, places, pool)
            found[node] = functools.partial(_backward, node, window)
    return written_anew(gm, found)


def _pool(node: Node, where: Where) -> Node | None:
    """The pooling of which this is the backward, if nothing else reads its places and all sizes are known."""
    places: Any = node.args[-1]
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or not where(kind_of(value)) or node.kwargs:
        return None
    if not isinstance(places, Node) or places.target is not operator.getitem or list(places.users) != [node]:
        return None
    pool: Any = places.args[0]
    if pool.target is not _FORWARD or pool.args[0] is not node.args[1]:
        return None
    return pool if all(isinstance(n, int) for n in (*value.shape, *places.meta["val"].shape)) else None


def _dtype(node: Node) -> torch.dtype | None:
    """The smallest type that holds the distances of a backward's windows."""
    size, _, _, dilation = _window(node.args[2:6])
    width = node.meta["val"].shape[-1]
    farthest = (size[0] - 1) * dilation[0] * width + (size[1] - 1) * dilation[1]
    return next((t for t in _DTYPES if farthest <= torch.iinfo(t).max), None)


def _window(args: Sequence[Any]) -> list[list[int]]:
    """Size, step, padding and dilation of windows, each for rows and columns."""
    size, step, pad, dilation = (list(a) for a in args)
    return [part * 2 if len(part) == 1 else part for part in (size, step or size, pad, dilation)]


def _forward(pool: Node, window: Sequence[Any], dtype: torch.dtype, graph: Graph, made: Mapping[Node, Node]) -> Node:
    return call_for(graph, pool, max_pool2d_with_offsets, made[cast("Node", pool.args[0])], *window, dtype)


def _places(places: Node, pool: Node, graph: Graph, made: Mapping[Node, Node]) -> Node:
    return call_for(graph, places, operator.getitem, made[pool], 1)


def _backward(node: Node, window: Sequence[Any], graph: Graph, made: Mapping[Node, Node]) -> Node:
    gradient, image, places = (cast("Node", node.args[k]) for k in (0, 1, -1))
    operands = made[gradient], made[_kept_anyway(image)], *window, made[places]
    return call_for(graph, node, max_pool2d_offsets_backward, *operands)


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
