"""Convolutions of each channel with a filter of its own (depthwise) on a GPU, as nests.

There is nothing for tensor cores in them; cuDNN's kernels for the channels innermost read every tap of every window
from memory's caches, and ATen's for float32 with the pixels innermost are slower still. A nest has the taps written
out, those of a row where the filter is large; neighbours along a row that share a point
(``schedule.window_coarsening``) share what they read: four outputs of a 7x7 filter read 70 elements instead of 196.
What comes after fuses with it. The gradient of the image is such a nest as well; that of the filter is the library's.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from torch.fx import Node

from lamina.ir.index import Expr, as_expr
from lamina.lower.builder import NestBuilder, Value
from lamina.lower.context import Lowering
from lamina.lower.positions import all_of, shape_of
from lamina.lower.values import TensorValue, linear_view
from lamina.lower.windows import Fixed, Number, Sliding, filter_spans

__all__ = ["filter_gradient", "filtered", "filtered_backward", "has_own_filter_gradient", "is_depthwise"]

_HALVES = ("bfloat16", "float16")
_MOST_TAPS = 49
"""Taps of a filter, rows of seven at most."""
_LONGEST_ROW = 11
"""Taps of a row of a filter whose gradient is a nest at most."""
_FEWEST_CHANNELS = 16
"""Channels that fill a vector, where they are innermost."""
_KIN = "float32"


def is_depthwise(low: Lowering, image: TensorValue, weight: TensorValue, settings: Sequence[Any]) -> bool:
    """Whether the convolution is one that this module writes as a nest.

    ``settings`` are the arguments of ``aten.convolution`` after the bias. Its image and its filter have one channel a
    group, float32 or half precision, sizes known but for the batch's, and lie on a GPU; of half precision the image's
    channels are innermost. Not where results are to be rounded as eager's: ATen rounds the library's before it adds
    the bias.
    """
    _, _, _, transposed, _, groups = settings
    buffer = low.buffers[image.buffer]
    if not buffer.on_gpu or low.numerics != "fast":
        return False
    if weight.dtype != image.dtype or not (
        image.dtype == _KIN or (image.dtype in _HALVES and _channels_innermost(image))
    ):
        return False
    channels, *taps = (weight.shape[0], *weight.shape[2:])
    if transposed or weight.shape[1] != 1 or image.rank != weight.rank or image.shape[1] != channels:
        return False
    if groups != channels or not all(n.is_int for n in (*image.shape[1:], *taps)):
        return False
    return 1 < prod(int(n) for n in taps) <= _MOST_TAPS


def _taps(low: Lowering, node: Node, weight: TensorValue) -> TensorValue:
    """The filter in float32, one row of channels for each tap: [*taps, channels]."""
    channels, _, *taps = weight.shape
    rows = low.buffer(f"{node.name}_taps", _KIN, [*taps, channels], device=low.buffers[weight.buffer].device)
    b = low.nest(node, rows.shape)
    b.store(rows, b.load(weight, [b.axes[-1], as_expr(0), *b.axes[:-1]]).to(_KIN))
    low.finish(b)
    return rows


def filtered(
    low: Lowering, node: Node, x: TensorValue, weight: TensorValue, bias: TensorValue | None, settings: Sequence[Any]
) -> TensorValue:
    """The convolution, summed in float32."""
    out = low.result(node)
    spans = filter_spans(weight.shape[2:], settings, x.shape[2:], out.shape[2:])
    rows = _taps(low, node, weight)
    s = Sliding(low, node, out.shape, [span.size for span in spans], by_rows=True)
    b, channel = s.b, s.at[1]
    values = [
        s.element(x, spans, number, 0).to(_KIN) * b.load(rows, [*map(as_expr, number), channel]) for number in s.numbers
    ]
    value = s.total("add", values)
    b.store(out, value if bias is None else value + b.load(bias, [channel]).to(_KIN), s.at)
    low.finish(b)
    return out


def filtered_backward(
    low: Lowering, node: Node, grad: TensorValue, weight: TensorValue, settings: Sequence[Any]
) -> TensorValue | None:
    """The gradient of the image: each element's sum over the windows that hold it; ``None`` where windows have gaps."""
    shape = shape_of(node, 0)
    spans = filter_spans(weight.shape[2:], settings, shape[2:], grad.shape[2:])
    if any(span.dilation != 1 for span in spans):
        return None
    out = low.result(node, 0)
    rows = _taps(low, node, weight)
    s = Sliding(low, node, shape, [span.covers for span in spans], by_rows=True)
    values = [_part(s, spans, number, grad, rows) for number in s.numbers]
    s.b.store(out, s.total("add", values), s.at)
    low.finish(s.b)
    return out


def _part(s: Sliding, spans: Sequence[Fixed], number: Number, grad: TensorValue, rows: TensorValue) -> Value:
    """What the window ``number`` of those that may hold an element gives it."""
    exists = s.holds(spans, number)
    windows = [span.output(at, j) for span, at, j in zip(spans, s.inner, number, strict=True)]
    taps = [(at + span.pad) % span.step + j * span.step for span, at, j in zip(spans, s.inner, number, strict=True)]
    value = s.b.load(grad, [*s.outer, *windows], exists).to(_KIN)
    return value * s.b.load(rows, [*taps, s.at[1]], _within(s.b, spans, taps))


def _within(b: NestBuilder, spans: Sequence[Fixed], taps: Sequence[Expr]) -> Value | None:
    beyond = [None if tap.below(span.size) else b.index(tap) < span.size for span, tap in zip(spans, taps, strict=True)]
    return all_of(beyond)


def has_own_filter_gradient(low: Lowering, image: TensorValue, weight: TensorValue, settings: Sequence[Any]) -> bool:
    """Whether the gradient of the filter is one that this module writes as a nest: on a CPU, of a filter for each
    channel whose sizes are known, in float32 or bfloat16. For filters of three taps the library has a kernel.
    """
    _, _, _, transposed, _, groups = settings
    if not low.buffers[image.buffer].on_cpu or low.numerics != "fast" or transposed:
        return False
    if image.dtype not in ("float32", "bfloat16") or weight.dtype != image.dtype or image.rank != weight.rank:
        return False
    if not all(n.is_int for n in (*image.shape, *weight.shape)):
        return False
    taps = [int(n) for n in weight.shape[2:]]
    one_each = weight.shape[1] == 1 and image.shape[1] == weight.shape[0] == groups
    if not one_each or all(n in (1, 3) for n in taps) or max(taps) > _LONGEST_ROW:
        return False
    return not _channels_innermost(image) or int(image.shape[1]) >= _FEWEST_CHANNELS


def filter_gradient(
    low: Lowering, node: Node, grad: TensorValue, x: TensorValue, weight: TensorValue, settings: Sequence[Any]
) -> TensorValue:
    """The gradient of the filter, summed in float32: for each row of taps one pass over images and places, in which
    each tap of the row has a sum. (All taps in one pass took the compiler up to 18 s, and not much less time.)
    """
    steps, pads, dilations = (_of_each(numbers, x.rank - 2) for numbers in settings[:3])
    out = low.result(node, 1)
    image = _with_margins(low, node, x, pads) if any(pads) else x
    *rows, row = weight.shape[2:]
    b = low.nest(node, [*rows, *grad.shape])
    channel, places = b.axes[len(rows) + 1], b.axes[len(rows) + 2 :]
    given = b.load(grad, b.axes[len(rows) :]).to(_KIN)
    over = [k for k in range(len(rows), len(b.axes)) if k != len(rows) + 1]
    for number in range(int(row)):
        tap = [*b.axes[: len(rows)], as_expr(number)]
        at = [a * s + k * d for a, s, k, d in zip(places, steps, tap, dilations, strict=True)]
        value = given * b.load(image, [*b.axes[len(rows) : len(rows) + 2], *at]).to(_KIN)
        b.store(out, b.reduce("sum", value, over), [channel, as_expr(0), *tap])
    low.finish(b)
    return out


def _channels_innermost(x: TensorValue) -> bool:
    window = linear_view(x)
    return window is not None and window.strides[1] == 1


def _of_each(numbers: Sequence[int], rank: int) -> list[int]:
    """A number for each dimension of the image; one stands for all."""
    return [int(n) for n in (numbers if len(numbers) == rank else [numbers[0]] * rank)]


def _with_margins(low: Lowering, node: Node, x: TensorValue, pads: Sequence[int]) -> TensorValue:
    """The image in float32 with zeros around it, laid out as it is: no tap then has to ask whether it is inside."""
    shape = [*x.shape[:2], *(n + 2 * p for n, p in zip(x.shape[2:], pads, strict=True))]
    order = [0, *range(2, x.rank), 1] if _channels_innermost(x) else list(range(x.rank))
    strides, running = [as_expr(1)] * x.rank, as_expr(1)
    for dim in reversed(order):
        strides[dim] = running
        running = running * shape[dim]
    made = low.buffer(f"{node.name}_image", _KIN, shape, strides)
    zeros = low.nest(node, made.shape)
    zeros.store(made, zeros.constant(0.0, _KIN))
    low.finish(zeros)
    b = low.nest(node, x.shape)
    b.store(made, b.load(x).to(_KIN), [*b.axes[:2], *(a + p for a, p in zip(b.axes[2:], pads, strict=True))])
    low.finish(b)
    return made
