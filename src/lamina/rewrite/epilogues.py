"""Activations that the vendor's library applies to a product while it has it, on a GPU in half precision.

cuBLAS adds a bias and applies ReLU or the tanh form of GELU, cuDNN adds a bias and another image and applies ReLU, at
almost no cost (H100: 44 us for a product with bias and GELU, 39 without; an activation of its own takes another 17).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from lamina.base.decision import Decision
from lamina.rewrite.rebuild import Write, written_anew

__all__ = ["library_epilogues"]

aten = torch.ops.aten

_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_FEWEST_CHANNELS = 8
"""Channels below which cuDNN's kernels with epilogues are slower than those without."""


def library_epilogues(
    gm: GraphModule, note: Callable[[Decision], None] = lambda decision: None, device: str = "cuda"
) -> GraphModule:
    """Hand activations to the products and convolutions on ``device`` (a type) before them; ``gm`` itself if none is.

    Only where nothing else needs what the activation is applied to. ``note`` is told of each.
    """
    returned = set(gm.graph.output_node().all_input_nodes)
    found: dict[Node, Write] = {}
    for target in (aten.relu.default, aten.gelu.default):
        for node in gm.graph.find_nodes(op="call_function", target=target):
            made = _product(node, device, returned) or _convolution(node, device, returned)
            if made is not None:
                found[node] = made[1]
                reason = "the library applies it to the result at hand"
                note(Decision("library epilogue", (made[0].name, node.name), True, reason))
    return written_anew(gm, found)


Found = tuple[Node, Write]


def _half(node: Any, device: str) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(value, Tensor) or value.device.type != device:
        return False
    return value.dtype in (torch.bfloat16, torch.float16)


def _alone(node: Any, returned: set[Node]) -> bool:
    return isinstance(node, Node) and node.op == "call_function" and len(node.users) == 1 and node not in returned


def _product(node: Node, device: str, returned: set[Node]) -> Found | None:
    """A product with a bias for each column under ReLU or the tanh form of GELU, reshaped in between or not."""
    gelu = node.target is aten.gelu.default
    if gelu and node.kwargs.get("approximate") != "tanh":
        return None
    chain: list[Node] = []
    source: Any = node.args[0]
    while _alone(source, returned) and source.target in _RESHAPES:
        chain.append(source)
        source = source.args[0]
    if not isinstance(source, Node) or source.target is not aten.addmm.default or not _alone(source, returned):
        return None
    product: Any = source
    bias, left, right = product.args
    if product.kwargs or not all(_half(n, device) for n in (source, bias, left, right)):
        return None
    if bias.meta["val"].dim() != 1 or bias.meta["val"].shape[0] == 1:
        return None

    def write(graph: Graph, made: Mapping[Node, Node]) -> Node:
        args = tuple(made[n] for n in (bias, left, right))
        result = graph.call_function(aten._addmm_activation.default, args, {"use_gelu": gelu})
        result.meta = {**node.meta, "val": product.meta["val"]}
        for view in reversed(chain):
            shape = torch.fx.node.map_arg(view.args[1:], made.__getitem__)
            reshape: Any = view.target
            result = graph.call_function(reshape, (result, *shape))
            result.meta = {**view.meta}
        return result

    return product, write


def _convolution(node: Node, device: str, returned: set[Node]) -> Found | None:
    """A convolution of channels-last images with a bias under ReLU, an image of the same layout added before or not."""
    if node.target is not aten.relu.default or not _last(node):
        return None
    source: Any = node.args[0]
    other: Any = None
    if _alone(source, returned) and source.target is aten.add.Tensor and not source.kwargs:
        operands = source.args
        both = [n for n in operands if isinstance(n, Node) and n.target is aten.convolution.default]
        source = next((n for n in both if _alone(n, returned)), None)
        other = next((n for n in operands if n is not source), None)
        if not isinstance(other, Node) or source is None or not _half(other, device) or not _last(other):
            return None
        if other.meta["val"].shape != node.meta["val"].shape:
            return None
    if not _alone(source, returned) or source.target is not aten.convolution.default:
        return None
    call: Any = source
    x, weight, bias, steps, pad, dilation, transposed, _, groups = call.args
    if transposed or not all(_half(n, device) for n in (node, source, x, weight)) or not _last(source):
        return None
    if weight.meta["val"].shape[1] == 1 or x.meta["val"].shape[1] < _FEWEST_CHANNELS:
        return None

    def write(graph: Graph, made: Mapping[Node, Node]) -> Node:
        first = (made[x], made[weight])
        shift = made[bias] if isinstance(bias, Node) else None
        more = (steps, pad, dilation, groups)
        if other is None:
            result = graph.call_function(aten.cudnn_convolution_relu.default, (*first, shift, *more))
        else:
            args = (*first, made[other], 1.0, shift, *more)
            result = graph.call_function(aten.cudnn_convolution_add_relu.default, args)
        result.meta = {**node.meta, "val": call.meta["val"]}
        return result

    return call, write


def _last(node: Node) -> bool:
    """Whether the value is a channels-last image of known size, and not one that could be seen either way."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.dim() != 4 or not all(isinstance(n, int) for n in value.shape):
        return False
    return value.is_contiguous(memory_format=torch.channels_last) and not value.is_contiguous()
