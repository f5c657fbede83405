"""Activations that the vendor's library applies to a product while it has it, on a GPU in half precision.

cuBLAS adds a bias and applies ReLU or the tanh form of GELU, cuDNN adds a bias and another image and applies ReLU, at
almost no cost (H100: 44 us for a product with bias and GELU, 39 without; an activation of its own takes another 17).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from lamina.base.decision import Decision
from lamina.base.devices import Where, kind_of, with_cublas
from lamina.base.fx.copying import Write
from lamina.base.fx.editing import call_for, used_once, written_anew
from lamina.ops import overloads
from lamina.ops.row import RESHAPED
from lamina.rewrite import reasons
from lamina.rewrite.fold_norms import NormParameters, folded_shift, folded_weight

__all__ = ["library_epilogues"]

aten = torch.ops.aten

_RESHAPES = overloads(lambda row: row.elements == RESHAPED)
_FEWEST_CHANNELS = 8
"""Channels below which cuDNN's kernels with epilogues are slower than those without."""
_COPY, _LAUNCH = 3e12, 4e-6
"""Bytes a second and seconds of a launch of a large GPU."""


def library_epilogues(
    gm: GraphModule,
    note: Callable[[Decision], None] = lambda decision: None,
    where: Where = with_cublas,
    finite: bool = False,
) -> GraphModule:
    """Hand activations to the products and convolutions before them, on devices ``where`` that pays; ``gm`` itself if
    none is.

    Only where nothing else needs what the activation is applied to, and ReLU, with which the libraries do not promise
    to keep NaN, only with ``finite``. ``note`` is told of each.
    """
    returned = set(gm.graph.output_node().all_input_nodes)
    found: dict[Node, Write] = {}
    for target in (aten.relu.default, aten.gelu.default):
        for node in gm.graph.find_nodes(op="call_function", target=target):
            made = _product(node, where, returned) or _convolution(node, where, returned)
            if made is None:
                continue
            kept = target is aten.relu.default and not finite
            if not kept:
                found[node] = made[1]
            reason = reasons.LOSES_NAN() if kept else reasons.EPILOGUE()
            note(Decision("library epilogue", (made[0].name, node.name), not kept, reason))
    for node in gm.graph.find_nodes(op="call_function", target=aten.max_pool2d_with_indices.default):
        pooled = _pooled(node, where, returned)
        if pooled is not None and node.args[0] not in found:
            source, largest = pooled
            found[largest] = functools.partial(_shifted, largest, source)
            note(Decision("library epilogue", (source.call.name, largest.name), True, reasons.SHIFT_AFTER_POOLING()))
    return written_anew(gm, found)


Found = tuple[Node, Write]


def _half(node: Any, where: Where) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(value, Tensor) or not where(kind_of(value)):
        return False
    return value.dtype in (torch.bfloat16, torch.float16)


def _product(node: Node, where: Where, returned: set[Node]) -> Found | None:
    """A product with a bias for each column under ReLU or the tanh form of GELU, reshaped in between or not."""
    gelu = node.target is aten.gelu.default
    if gelu and node.kwargs.get("approximate") != "tanh":
        return None
    chain: list[Node] = []
    source: Any = node.args[0]
    while used_once(source, returned) and source.target in _RESHAPES:
        chain.append(source)
        source = source.args[0]
    if not isinstance(source, Node) or source.target is not aten.addmm.default or not used_once(source, returned):
        return None
    product: Any = source
    bias, left, right = product.args
    if product.kwargs or not all(_half(n, where) for n in (source, bias, left, right)):
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


@dataclass(frozen=True, slots=True)
class _Made:
    """A convolution whose result nothing else reads, with the batch norm of fixed statistics after it, if any."""

    call: Node
    norm: Node | None

    def argument(self, position: int) -> Any:
        return self.call.args[position]

    def parameters(self, made: Mapping[Node, Node]) -> NormParameters:
        """The norm's, as nodes of the new graph."""
        assert self.norm is not None
        scale, shift, mean, variance = (made[n] if isinstance(n, Node) else None for n in self.norm.args[1:5])
        eps: Any = self.norm.args[6]
        return NormParameters(mean, variance, scale, shift, eps)

    def weight(self, graph: Graph, made: Mapping[Node, Node]) -> Node:
        """Its weight in the new graph, with the norm's factor."""
        weight = made[self.argument(1)]
        if self.norm is None:
            return weight
        value = weight.meta["val"]
        call = functools.partial(call_for, graph, self.norm)
        return folded_weight(call, self.parameters(made), weight, value.dim(), value.dtype)  # type: ignore[no-any-return]

    def shift(self, graph: Graph, made: Mapping[Node, Node]) -> Node | None:
        """What it adds to each channel in the new graph; in float32 where that holds the norm's share."""
        bias = self.argument(2)
        bias = made[bias] if isinstance(bias, Node) else None
        if self.norm is None:
            return bias
        call = functools.partial(call_for, graph, self.norm)
        return folded_shift(call, self.parameters(made), bias)  # type: ignore[no-any-return]


def _made(node: Any, where: Where, returned: set[Node]) -> _Made | None:
    """The convolution that the value is, with the norm in between, of channels-last images in half precision."""
    norm: Any = None
    if used_once(node, returned) and node.target is operator.getitem and node.args[1] == 0:
        norm = node.args[0]
        if norm.target is not aten._native_batch_norm_legit_no_training.default or not used_once(norm, returned):
            return None
        node = norm.args[0]
    if not used_once(node, returned) or node.target is not aten.convolution.default or not _last(node):
        return None
    x, weight, _, _, _, _, transposed, _, _ = node.args
    if transposed or not all(_half(n, where) for n in (node, x, weight)):
        return None
    if norm is not None and not (weight.meta["val"].dtype == torch.bfloat16 and _pays(node, weight)):
        return None
    return _Made(node, norm)


def _pays(call: Node, weight: Node) -> bool:
    """Whether a norm's own pass over the image takes longer than scaling the weights does."""
    image, filters = call.meta["val"], weight.meta["val"]
    return bool(2 * (_nbytes(image) - _nbytes(filters)) / _COPY > _LAUNCH)


def _nbytes(value: Tensor) -> int:
    return value.numel() * value.element_size()


def _convolution(node: Node, where: Where, returned: set[Node]) -> Found | None:
    """A convolution of channels-last images under ReLU, an image of the same layout added before or not.

    A batch norm in between goes into its weights. Of two images that are such convolutions each the second one's
    shifts are added with those of the first.
    """
    if node.target is not aten.relu.default or not _last(node):
        return None
    source, other = _addends(node, where, returned)
    first = _made(source, where, returned)
    if first is None or first.argument(1).meta["val"].shape[1] == 1:
        return None
    if first.argument(0).meta["val"].shape[1] < _FEWEST_CHANNELS:
        return None
    second = _made(other, where, returned) if other is not None else None
    if second is not None and second.norm is None:
        second = None
    return first.call, functools.partial(_fused, node, first, other, second)


def _addends(node: Node, where: Where, returned: set[Node]) -> tuple[Any, Node | None]:
    """What ReLU is applied to: a convolution's result, and the image added to it, if any."""
    source: Any = node.args[0]
    if not used_once(source, returned) or source.target is not aten.add.Tensor or source.kwargs:
        return source, None
    operands = source.args
    source = next((n for n in operands if _made(n, where, returned) is not None), None)
    other = next((n for n in operands if n is not source), None)
    if not isinstance(other, Node) or not _half(other, where) or not _last(other):
        return None, None
    return (source, other) if other.meta["val"].shape == node.meta["val"].shape else (None, None)


def _fused(
    node: Node, first: _Made, other: Node | None, second: _Made | None, graph: Graph, made: Mapping[Node, Node]
) -> Node:
    """Write the library's call for ``node``; ``second`` is what makes ``other``, where its norm goes into weights."""
    call = functools.partial(call_for, graph, node)
    weight, shift = first.weight(graph, made), first.shift(graph, made)
    steps, pad, dilation, _, _, groups = first.call.args[3:]
    image = made[other] if other is not None else None
    if second is not None:
        operands = made[second.argument(0)], second.weight(graph, made), None
        image = call_for(graph, second.call, aten.convolution.default, *operands, *second.call.args[3:])
        more = second.shift(graph, made)
        shift = call(aten.add.Tensor, shift, more) if shift is not None else more
    held = node.meta["val"].dtype
    if shift is not None and shift.meta["val"].dtype != held:
        shift = call(aten._to_copy.default, shift, dtype=held)
    args: tuple[Any, ...] = (made[first.argument(0)], weight)
    target = aten.cudnn_convolution_relu.default if image is None else aten.cudnn_convolution_add_relu.default
    args += (shift,) if image is None else (image, 1.0, shift)
    result = graph.call_function(target, (*args, steps, pad, dilation, groups))
    result.meta = {**node.meta, "val": first.call.meta["val"]}
    return result


def _pooled(node: Node, where: Where, returned: set[Node]) -> tuple[_Made, Node] | None:
    """A convolution with a norm under ReLU and max pooling, of which only the maxima are read; and those.

    Adding a number to a channel, rounding and ReLU keep the order of values: they may come after pooling.
    """
    if len(node.users) != 1 or (largest := next(iter(node.users))).args[1] != 0:
        return None
    dilation: Any = node.args[4] if len(node.args) > 4 else 1
    opened: Any = node.args[0]
    if not used_once(opened, returned) or opened.target is not aten.relu.default:
        return None
    if any(n != 1 for n in ([dilation] if isinstance(dilation, int) else dilation)):
        return None  # a window could hold padding only
    made = _made(opened.args[0], where, returned)
    return (made, largest) if made is not None and made.norm is not None else None


def _shifted(node: Node, made: _Made, graph: Graph, new: Mapping[Node, Node]) -> Node:
    """Write the maxima of the convolution with the norm's factor, its shift added, under ReLU."""
    pool: Any = node.args[0]
    call = functools.partial(call_for, graph, node)
    operands = new[made.argument(0)], made.weight(graph, new), None
    image = call_for(graph, made.call, aten.convolution.default, *operands, *made.call.args[3:])
    found = call_for(graph, pool, aten.max_pool2d_with_indices.default, image, *pool.args[1:])
    maxima = call(operator.getitem, found, 0)
    shift = made.shift(graph, new)
    assert shift is not None
    wide = call(aten._to_copy.default, maxima, dtype=torch.float32)
    moved = call(aten.add.Tensor, wide, call(aten.view.default, shift, [-1, 1, 1]))
    result = call(aten.relu.default, call(aten._to_copy.default, moved, dtype=node.meta["val"].dtype))
    result.meta["val"] = node.meta["val"]
    return result


def _last(node: Node) -> bool:
    """Whether the value is a channels-last image of known size, and not one that could be seen either way."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor) or value.dim() != 4 or not all(isinstance(n, int) for n in value.shape):
        return False
    return value.is_contiguous(memory_format=torch.channels_last) and not value.is_contiguous()
