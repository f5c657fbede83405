"""Rearranging blocks: patches to columns and back, pixels to channels and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch.fx import Node

from lamina.ir.index import Expr, as_expr
from lamina.lower.builder import NestBuilder, Value, opmath
from lamina.lower.context import Lowering
from lamina.lower.positions import all_of, inside
from lamina.lower.rules import rule
from lamina.lower.values import TensorValue
from lamina.lower.windows import Fixed, Sliding, fixed_spans

__all__: list[str] = []


def _grid(image: Sequence[Expr], spans: Sequence[Fixed]) -> list[Expr]:
    """How many patches there are along each dimension of an image."""
    return [(n + 2 * s.pad - s.dilation * (s.size - 1) - 1) // s.step + 1 for n, s in zip(image, spans, strict=True)]


def _aligned(b: NestBuilder, start: Expr, step: int, patches: Expr) -> Value | None:
    """Whether a patch starts ``start`` elements into the padded image."""
    hit = b.index(start % step).equals(0) if step > 1 else None
    return all_of([hit, inside(b, start // step, patches)])


@rule("aten.pixel_shuffle.default")
def pixel_shuffle(low: Lowering, node: Node, x: TensorValue, factor: int) -> TensorValue:
    out = low.result(node)
    low.plain(x.dtype)
    *batch, channels, height, width = x.shape
    b = low.nest(node, [*batch, channels // (factor * factor), height, as_expr(factor), width, as_expr(factor)])
    *outer, c, h, i, w, j = b.axes
    value = b.load(x, [*outer, (c * factor + i) * factor + j, h, w])
    b.store(out, value, [*outer, c, h * factor + i, w * factor + j])
    low.finish(b)
    return out


@rule("aten.pixel_unshuffle.default")
def pixel_unshuffle(low: Lowering, node: Node, x: TensorValue, factor: int) -> TensorValue:
    out = low.result(node)
    low.plain(x.dtype)
    *batch, channels, height, width = x.shape
    f = as_expr(factor)
    b = low.nest(node, [*batch, channels, f, f, height // factor, width // factor])
    *outer, c, i, j, h, w = b.axes
    value = b.load(x, [*outer, c, h * factor + i, w * factor + j])
    b.store(out, value, [*outer, (c * factor + i) * factor + j, h, w])
    low.finish(b)
    return out


@rule("aten.channel_shuffle.default", "aten.native_channel_shuffle.default")
def channel_shuffle(low: Lowering, node: Node, x: TensorValue, groups: int) -> TensorValue:
    out = low.result(node)
    low.plain(x.dtype)
    samples, channels, *space = x.shape
    width = channels // groups
    b = low.nest(node, [samples, width, as_expr(groups), *space])
    n, c, g, *at = b.axes
    b.store(out, b.load(x, [n, g * width + c, *at]), [n, c * groups + g, *at])
    low.finish(b)
    return out


@rule("aten.im2col.default")
def im2col(
    low: Lowering,
    node: Node,
    x: TensorValue,
    size: Sequence[int],
    dilation: Sequence[int],
    pad: Sequence[int],
    step: Sequence[int],
) -> TensorValue:
    """Each patch as a column: rows are channels, then places in the patch; columns are patches."""
    out = low.result(node)
    low.plain(x.dtype)
    spans = fixed_spans(x.shape[-2:], x.shape[-2:], size, step, pad, dilation)
    grid = _grid(x.shape[-2:], spans)
    kernel = [as_expr(s.size) for s in spans]
    b = low.nest(node, [*x.shape[:-2], *kernel, *grid])
    *outer, c, i, j, h, w = b.axes
    places = [spans[0].place(h, i), spans[1].place(w, j)]
    exists = all_of([spans[0].valid(b, h, i), spans[1].valid(b, w, j)])
    value = b.load(x, [*outer, c, *places], exists)
    b.store(out, value, [*outer, (c * kernel[0] + i) * kernel[1] + j, h * grid[1] + w])
    low.finish(b)
    return out


@rule("aten.col2im.default")
def col2im(
    low: Lowering,
    node: Node,
    x: TensorValue,
    shape: Sequence[int | Expr],
    size: Sequence[int],
    dilation: Sequence[int],
    pad: Sequence[int],
    step: Sequence[int],
) -> TensorValue:
    """Each pixel sums the places in the columns that came from it."""
    out = low.result(node)
    low.plain(x.dtype)
    spans = fixed_spans(out.shape[-2:], out.shape[-2:], size, step, pad, dilation)
    grid = _grid(out.shape[-2:], spans)
    if all(span.dilation == 1 for span in spans):
        return _sum_of_patches(low, node, x, out, [replace(n, result=m) for n, m in zip(spans, grid, strict=True)])
    s = Sliding(low, node, out.shape, [span.size for span in spans])
    b, (*batch, channel) = s.b, s.outer
    values = []
    for i, j in s.numbers:
        starts = [a + n.pad - as_expr(k) * n.dilation for a, n, k in zip(s.inner, spans, (i, j), strict=True)]
        patches = [start // span.step for start, span in zip(starts, spans, strict=True)]
        row = (channel * spans[0].size + i) * spans[1].size + j
        exists = all_of([_aligned(b, at, n.step, m) for at, n, m in zip(starts, spans, grid, strict=True)])
        values.append(b.load(x, [*batch, row, patches[0] * grid[1] + patches[1]], exists).to(opmath(x.dtype)))
    b.store(out, s.total("add", values), s.at)
    low.finish(b)
    return out


def _sum_of_patches(low: Lowering, node: Node, x: TensorValue, out: TensorValue, spans: Sequence[Fixed]) -> TensorValue:
    """Each pixel looks at the few patches that it is in: one, where they do not overlap."""
    s = Sliding(low, node, out.shape, [span.covers for span in spans])
    *batch, channel = s.outer
    values = []
    for number in s.numbers:
        patches = [span.output(a, k) for span, a, k in zip(spans, s.inner, number, strict=True)]
        i, j = (span.within(a, k) for span, a, k in zip(spans, s.inner, number, strict=True))
        row = (channel * spans[0].size + i) * spans[1].size + j
        place = [*batch, row, patches[0] * spans[1].result + patches[1]]
        values.append(s.b.load(x, place, s.holds(spans, number)).to(opmath(x.dtype)))
    s.b.store(out, s.total("add", values), s.at)
    low.finish(s.b)
    return out
