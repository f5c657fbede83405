"""Convolutions: the library's products, without the biases that the library would add in a pass of its own.
Those of each channel with a filter of its own are nests (``lower.depthwise``).

cuDNN's convolutions are called without a bias by ATen, which then reads and writes the whole result once more to add
it, and reads the whole gradient once more to sum it. As nests both fuse with what is around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.fx import Node

from lamina.ir.index import Expr, as_expr
from lamina.ir.loops import BufferView
from lamina.lower.builder import opmath
from lamina.lower.context import Lowering
from lamina.lower.depthwise import filter_gradient, filtered, filtered_backward, has_own_filter_gradient, is_depthwise
from lamina.lower.few_outputs import (
    few_outputs,
    few_outputs_backward,
    has_few_outputs_backward,
    has_few_outputs_forward,
)
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue, linear_view

__all__: list[str] = []

_REASON = "convolutions are faster in the vendor's library than in nests"


@rule("aten.convolution.default")
def convolution(
    low: Lowering, node: Node, x: TensorValue, weight: TensorValue, bias: TensorValue | None, *rest: Any
) -> TensorValue:
    if is_depthwise(low, x, weight, rest):
        return filtered(low, node, x, weight, bias, rest)
    if has_few_outputs_forward(low, x, weight, rest):
        return few_outputs(low, node, x, weight, bias, rest)
    if (turned := _of_one_channel(low, node, [x], node.meta["val"])) is not None:
        out = low.result(node)
        low.library(node, str(node.target), (*turned, weight, bias, *rest), {}, (out,), _REASON)
        return out
    if bias is None or not _adds_apart(low, x, weight):
        raise Decline(_REASON)
    product = low.result(node)
    low.library(node, str(node.target), (x, weight, None, *rest), {}, (product,), _REASON)
    out = low.result(node)
    kin = opmath(out.dtype)
    b = low.nest(node, out.shape)
    b.store(out, b.load(product).to(kin) + b.load(bias, [b.axes[1]]).to(kin))
    low.finish(b)
    return out


@rule("lamina.convolution_relu.default")
def convolution_relu(low: Lowering, node: Node, x: TensorValue, *rest: Any) -> TensorValue:
    turned = _of_one_channel(low, node, [x], node.meta["val"])
    if turned is None:
        raise Decline("the library applies the activation to its result at hand")
    out = low.result(node)
    low.library(node, str(node.target), (*turned, *rest), {}, (out,), _REASON)
    return out


@rule("aten.convolution_backward.default")
def convolution_backward(
    low: Lowering,
    node: Node,
    gradient: TensorValue,
    x: TensorValue,
    weight: TensorValue,
    bias_size: Sequence[int | Expr] | None,
    *rest: Any,
) -> list[TensorValue | None]:
    *settings, (for_x, for_weight, for_bias) = rest
    own: TensorValue | None = None
    if for_x and is_depthwise(low, x, weight, settings) and is_depthwise(low, gradient, weight, settings):
        own = filtered_backward(low, node, gradient, weight, settings)
    taps: TensorValue | None = None
    if (for_x or for_weight) and has_few_outputs_backward(low, x, weight, settings):
        own, taps = few_outputs_backward(low, node, gradient, x, weight, settings, (for_x, for_weight))
    elif for_weight and has_own_filter_gradient(low, x, weight, settings):
        taps = filter_gradient(low, node, gradient, x, weight, settings)
    turned = _of_one_channel(low, node, [gradient, x], node.meta["val"][0])
    if own is None and taps is None and turned is None and (not for_bias or not _on_gpu(low, x)):
        raise Decline(_REASON)
    by_library = [for_x and own is None, for_weight and taps is None]
    products = [low.result(node, k) if wanted else None for k, wanted in enumerate(by_library)]
    if any(by_library):
        given = (*(turned or (gradient, x)), weight, None, *settings, (*by_library, False))
        low.library(node, str(node.target), given, {}, (*products, None), _REASON, True)
    products = [products[0] if own is None else own, products[1] if taps is None else taps]
    if not for_bias:
        return [*products, None]
    out = low.result(node, 2)
    b = low.nest(node, gradient.shape)
    across = [0, *range(2, gradient.rank)]
    b.store(out, b.reduce("sum", b.load(gradient).to(opmath(out.dtype)), across), [b.axes[1]])
    low.finish(b)
    return [*products, out]


def _of_one_channel(
    low: Lowering, node: Node, images: Sequence[TensorValue], result: Tensor | None
) -> list[BufferView] | None:
    """Images of a CPU with the strides of innermost channels, if that takes no copy and one of them has one channel.

    Such an image has its channels innermost and outermost, and the strides that tracing gives it say the latter, on
    which the library is two to eight times slower.
    """
    if len(images[0].shape) != 4 or any(not low.buffers[x.buffer].on_cpu for x in images):
        return None
    if low.numerics != "fast" or all(x.shape[1] != 1 for x in images):
        return None
    if result is not None and result.shape[1] != 1 and result.stride(1) != 1:
        return None
    views = [linear_view(x) for x in images]
    found = [view for view in views if view is not None and (view.shape[1] == 1 or view.strides[1] == 1)]
    if len(found) < len(views):
        return None
    return [replace(view, strides=(view.strides[0], as_expr(1), *view.strides[2:])) for view in found]


def _on_gpu(low: Lowering, x: TensorValue) -> bool:
    low.plain(x.dtype)
    return not low.buffers[x.buffer].on_cpu


def _adds_apart(low: Lowering, x: TensorValue, weight: TensorValue) -> bool:
    """Whether ATen adds the bias apart from the convolution: on GPUs, but for its own kernel for one channel a group.

    That takes images with the pixels innermost.
    """
    if not _on_gpu(low, x):
        return False
    window = linear_view(x)
    return weight.shape[1] != 1 or (window is not None and window.strides[1] == 1)
