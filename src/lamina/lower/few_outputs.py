"""Convolutions of a CPU with few output channels, as products of matrices and sums of shifted planes.

The library makes vectors of output channels: of one channel fifteen of sixteen lanes are empty. Here each tap of a
filter makes a plane of the whole image, all of them in one product of matrices (taps by channels, channels by
pixels), and an output is the sum of its taps' planes, shifted, in a nest that fuses with what is around it. A filter
of one tap is a nest by itself, and so are its gradients.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from lamina.base.dtypes import torch_dtype
from lamina.ir.index import Axis, Expr, as_expr, prod
from lamina.ir.loops import BufferView
from lamina.lower.builder import NestBuilder, Value, added_up
from lamina.lower.context import Lowering
from lamina.lower.positions import all_of, inside
from lamina.lower.values import TensorValue, fresh_dims, linear_view
from lamina.lower.windows import Sliding, filter_spans, spread
from lamina.ops.few_outputs import MOST_GRADIENTS, has_few_outputs

__all__ = ["few_outputs", "few_outputs_backward", "has_few_outputs_backward", "has_few_outputs_forward"]

_KIN = "float32"
"""What planes, products and sums are of: results are rounded once, as the library's are."""
_FEW_PIXELS = 2048
"""Up to so many pixels next to each other in float32 a nest adds up channels as fast as the library."""
_REASON = "the taps of a convolution with few output channels are one product of matrices"


def _suits(low: Lowering, image: TensorValue, weight: TensorValue, settings: Sequence[Any]) -> bool:
    """Whether the convolution is one that this module writes.

    ``settings`` are the arguments of ``aten.convolution`` after the bias. Sizes are known, and the image lies on a CPU
    with pixels or channels innermost and no gaps.
    """
    steps, pads, _, transposed, _, groups = settings
    if not low.buffers[image.buffer].on_cpu or low.numerics != "fast" or weight.dtype != image.dtype:
        return False
    if not all(n.is_int for n in (*image.shape, *weight.shape)) or _view_of(image) is None:
        return False
    shapes = [int(n) for n in image.shape], [int(n) for n in weight.shape]
    return has_few_outputs(torch_dtype(image.dtype), *shapes, steps, pads, transposed, groups)


def has_few_outputs_forward(low: Lowering, image: TensorValue, weight: TensorValue, settings: Sequence[Any]) -> bool:
    """The same, where nests are as fast for one tap: the library reads float32 at the speed of memory."""
    if not _suits(low, image, weight, settings):
        return False
    pixels = prod(image.shape[2:])
    return (
        _count(weight) != weight.shape[0]
        or image.dtype != _KIN
        or _channels_innermost(image)
        or int(pixels) <= _FEW_PIXELS
    )


def has_few_outputs_backward(low: Lowering, x: TensorValue, weight: TensorValue, settings: Sequence[Any]) -> bool:
    """The same of its gradients."""
    return _suits(low, x, weight, settings) and int(_count(weight)) <= MOST_GRADIENTS


def few_outputs(
    low: Lowering, node: Node, x: TensorValue, weight: TensorValue, bias: TensorValue | None, settings: Sequence[Any]
) -> TensorValue:
    """The convolution, ``[batch, outputs, *size]``."""
    out = low.result(node)
    if _count(weight) == weight.shape[0]:
        return _added_channels(low, node, x, weight, bias, out)
    batch, _, *size = x.shape
    spans = filter_spans(weight.shape[2:], settings, size, out.shape[2:])
    made = _buffer(low, node, "planes", x, [batch, _count(weight), prod(size)])
    low.library(node, "aten.bmm.default", (_by_taps(low, node, weight, batch), _view_of(x)), {}, (made,), _REASON)
    planes = _unfolded(made, weight, size)
    s = Sliding(low, node, out.shape, [span.size for span in spans])
    values = []
    for number in s.numbers:
        places = [span.place(at, j) for span, at, j in zip(spans, s.inner, number, strict=True)]
        values.append(s.b.load(planes, [*s.outer, *map(as_expr, number), *places], s.valid(spans, number), 0))
    value = s.total("add", values)
    s.b.store(out, value if bias is None else value + s.b.load(bias, [s.at[1]]), s.at)
    low.finish(s.b)
    return out


def few_outputs_backward(
    low: Lowering,
    node: Node,
    grad: TensorValue,
    x: TensorValue,
    weight: TensorValue,
    settings: Sequence[Any],
    wanted: Sequence[bool],
) -> list[TensorValue | None]:
    """The gradients of image and filter, those ``wanted``. What is beyond the edges is left out, not multiplied."""
    return [
        _image_gradient(low, node, grad, weight, settings) if wanted[0] else None,
        _filter_gradient(low, node, grad, x, weight, settings) if wanted[1] else None,
    ]


def _added_channels(
    low: Lowering, node: Node, x: TensorValue, weight: TensorValue, bias: TensorValue | None, out: TensorValue
) -> TensorValue:
    """A convolution of one tap."""
    b = low.nest(node, [x.shape[0], *x.shape[2:], x.shape[1]])
    n, *at, c = b.axes
    given = b.load(x, [n, c, *at]).to(_KIN)
    for output in map(as_expr, range(int(weight.shape[0]))):
        factor = b.load(weight, [output, c, *(as_expr(0) for _ in at)]).to(_KIN)
        value = b.reduce("sum", given * factor, [len(b.axes) - 1])
        value = value if bias is None else value + b.load(bias, [output]).to(_KIN)
        b.store(out, value, [n, output, *at])
    low.finish(b)
    return out


def _image_gradient(
    low: Lowering, node: Node, grad: TensorValue, weight: TensorValue, settings: Sequence[Any]
) -> TensorValue:
    """For each pixel and channel the sum of what the windows that hold it give it."""
    out = low.result(node, 0)
    outputs, _, *taps = (int(n) for n in weight.shape)
    b = low.nest(node, out.shape)
    n, c, *pixels = b.axes
    values = []
    for o, *tap in itertools.product(*([as_expr(k) for k in range(size)] for size in (outputs, *taps))):
        given, exists = _given(b, grad, [n, o], pixels, tap, settings)
        value = given * b.load(weight, [o, c, *tap]).to(_KIN)
        values.append(value if exists is None else b.where(exists, value, 0.0))
    b.store(out, added_up(values))
    low.finish(b)
    return out


def _filter_gradient(
    low: Lowering, node: Node, grad: TensorValue, x: TensorValue, weight: TensorValue, settings: Sequence[Any]
) -> TensorValue:
    """For each row of taps one pass over the image, in which each tap of the row has a sum."""
    out = low.result(node, 1)
    outputs, _, *rows, row = weight.shape
    b = low.nest(node, [outputs, *rows, *x.shape])
    o, *at = b.axes[: 1 + len(rows)]
    n, c, *pixels = b.axes[1 + len(rows) :]
    image = b.load(x, [n, c, *pixels]).to(_KIN)
    over = [k for k in range(1 + len(rows), len(b.axes)) if k != 2 + len(rows)]
    for number in range(int(row)):
        tap = [*at, as_expr(number)]
        given, exists = _given(b, grad, [n, o], pixels, tap, settings)
        value = image * given if exists is None else b.where(exists, image * given, 0.0)
        b.store(out, b.reduce("sum", value, over), [o, c, *tap])
    low.finish(b)
    return out


def _given(
    b: NestBuilder,
    grad: TensorValue,
    outer: Sequence[Expr],
    pixels: Sequence[Expr],
    tap: Sequence[Expr],
    settings: Sequence[Any],
) -> tuple[Value, Value | None]:
    """The gradient of the output whose window has a pixel at ``tap``, and whether there is one."""
    _, pads, dilations = (spread(numbers, len(pixels)) for numbers in settings[:3])
    places = [at + pad - k * gap for at, pad, k, gap in zip(pixels, pads, tap, dilations, strict=True)]
    exists = all_of([inside(b, place, size) for place, size in zip(places, grad.shape[2:], strict=True)])
    return b.load(grad, [*outer, *places], exists).to(_KIN), exists


def _by_taps(low: Lowering, node: Node, weight: TensorValue, batch: Expr) -> BufferView:
    """The filter as matrices of taps by channels, the same for each image of the batch."""
    outputs, inputs, *taps = weight.shape
    rows = _buffer(low, node, "taps", weight, [_count(weight), inputs])
    b = low.nest(node, [outputs, *taps, inputs])
    o, *at, c = b.axes
    dims = fresh_dims([outputs, *taps, inputs])
    b.store(
        rows.view([d.extent for d in dims], [_number(dims[:-1]), as_expr(dims[-1])]),
        b.load(weight, [o, c, *at]),
    )
    low.finish(b)
    return BufferView(rows.buffer, (batch, *rows.shape), (as_expr(0), inputs, as_expr(1)), as_expr(0))


def _unfolded(rows: TensorValue, weight: TensorValue, rest: Sequence[Expr]) -> TensorValue:
    """Matrices ``[batch, outputs and taps, rest]`` as ``[batch, outputs, *taps, *rest]``."""
    shape = [rows.shape[0], weight.shape[0], *weight.shape[2:], *rest]
    split = weight.rank
    dims = fresh_dims(shape)
    return rows.view(shape, [as_expr(dims[0]), _number(dims[1:split]), _number(dims[split:])])


def _number(dims: Sequence[Axis]) -> Expr:
    """Which element it is of all that these dimensions have, the last one innermost."""
    number = as_expr(0)
    for dim in dims:
        number = number * dim.extent + as_expr(dim)
    return number


def _view_of(x: TensorValue) -> BufferView | None:
    """The image as matrices of channels by pixels; None if its pixels do not follow each other in even steps."""
    view = linear_view(x)
    if view is None:
        return None
    first = next((s for n, s in zip(reversed(view.shape[2:]), reversed(view.strides[2:]), strict=True) if n != 1), None)
    step = first = as_expr(1) if first is None else first
    for size, stride in zip(reversed(view.shape[2:]), reversed(view.strides[2:]), strict=True):
        if size != 1 and stride != step:
            return None
        step = step * size
    if first != 1 and view.strides[1] != 1:
        return None
    return BufferView(view.buffer, (*view.shape[:2], prod(view.shape[2:])), (*view.strides[:2], first), view.offset)


def _channels_innermost(x: TensorValue) -> bool:
    view = _view_of(x)
    return view is not None and view.strides[1] == 1 and view.strides[2] != 1


def _buffer(low: Lowering, node: Node, what: str, like: TensorValue, shape: Sequence[Expr]) -> TensorValue:
    return low.buffer(f"{node.name}_{what}", _KIN, shape, device=low.buffers[like.buffer].device)


def _count(weight: TensorValue) -> Expr:
    """Outputs times taps."""
    return prod([weight.shape[0], *weight.shape[2:]])
