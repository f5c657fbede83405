"""Group normalisation: one nest forward, one backward; sums of each channel first where channels are innermost.

The elements of a group are then a few of each pixel's, too few to fill vectors, while the sums of all channels over the
pixels are sums of whole vectors. A group's mean and deviations follow from those of its channels without loss: the
squares of the distances between the channels' means are added, one for each pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from lamina.ir.access import SHORT_ROW
from lamina.ir.index import Expr, prod
from lamina.lower.builder import NestBuilder, Value, opmath
from lamina.lower.context import Lowering
from lamina.lower.norms import absent_bias, affine, input_gradient, normalised, optional_results
from lamina.lower.reduction import count
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue

__all__: list[str] = []


def _channels_first(low: Lowering, x: TensorValue, groups: int) -> bool:
    """Whether each channel is to be added up for itself: innermost in a CPU's memory, few of a group, many pixels."""
    if low.on_gpu(x) or groups == 1 or x.strides is None or x.strides[1] != 1 or not x.shape[1].is_int:
        return False
    width, pixels = x.shape[1].const // groups, prod(x.shape[2:])
    return 0 < width < SHORT_ROW and (not pixels.is_int or pixels.const >= width)


class _Groups:
    """The nest of a group norm: axes are sample, group, channel of the group, then the spatial axes."""

    def __init__(self, low: Lowering, node: Node, x: TensorValue, groups: int) -> None:
        self.width = x.shape[1] // groups
        self.shape = [x.shape[0], x.shape[1] * 0 + groups, self.width, *x.shape[2:]]
        self.b = low.nest(node, self.shape)
        n, g, c, *space = self.b.axes
        self.channel = g * self.width + c
        self.position = [n, self.channel, *space]
        self.group = [n, g]
        self.inside = list(range(2, len(self.shape)))

    def per_channel(self, source: TensorValue | None, dtype: str) -> Value | None:
        """A vector with one element for each channel."""
        return None if source is None else self.b.load(source, [self.channel]).to(dtype)


@rule("aten.native_group_norm.default")
def group_norm(
    low: Lowering,
    node: Node,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    samples: Any,
    channels: Any,
    area: Any,
    groups: int,
    eps: float,
) -> list[TensorValue]:
    if x.rank < 2:
        raise Decline("group norm of fewer than two dimensions")
    low.plain(x.dtype)
    if _channels_first(low, x, groups):
        return _by_channels(low, node, x, (weight, bias), groups, eps)
    out, mean, rstd = (low.result(node, k) for k in range(3))
    low.plain(out.dtype)
    kin = opmath(x.dtype)
    grouped = _Groups(low, node, x, groups)
    b = grouped.b
    v = b.load(x, grouped.position).to(kin)
    average, scale = normalised(b, v, grouped.inside, eps, grouped.shape)
    factor = grouped.per_channel(weight, kin)
    term: Value | float | None = grouped.per_channel(bias, kin)
    if factor is not None and term is None:
        term = absent_bias(low, out)
    b.store(out, affine((v - average) * scale, factor, term), grouped.position)
    b.store(mean, average, grouped.group)
    b.store(rstd, scale, grouped.group)
    low.finish(b)
    return [out, mean, rstd]


@rule("aten.native_group_norm_backward.default")
def group_norm_backward(
    low: Lowering,
    node: Node,
    grad: TensorValue,
    x: TensorValue,
    mean: TensorValue,
    rstd: TensorValue,
    weight: TensorValue | None,
    samples: Any,
    channels: Any,
    area: Any,
    groups: int,
    mask: Sequence[bool],
) -> list[TensorValue | None]:
    if x.rank < 2:
        raise Decline("group norm of fewer than two dimensions")
    outs = optional_results(low, node, mask)
    low.plain(x.dtype)
    if _channels_first(low, x, groups):
        _backward_by_channels(low, node, (grad, x, weight), (mean, rstd), outs, groups)
        return outs
    kin = opmath(x.dtype)
    grouped = _Groups(low, node, x, groups)
    b = grouped.b
    g = b.load(grad, grouped.position).to(kin)
    average, scale = (b.load(t, grouped.group).to(kin) for t in (mean, rstd))
    unit = (b.load(x, grouped.position).to(kin) - average) * scale
    if outs[0] is not None:
        factor = grouped.per_channel(weight, kin)
        weighted = g if factor is None else g * factor
        value = input_gradient(b, weighted, unit, scale, grouped.inside, grouped.shape)
        b.store(outs[0], value, grouped.position)
    across = [0, *range(3, len(grouped.shape))]
    for out, value in ((outs[1], g * unit if outs[1] is not None else g), (outs[2], g)):
        if out is not None:
            b.store(out, b.reduce("sum", value, across), [grouped.channel])
    low.finish(b)
    return outs


class _Channels:
    """The nests of a group norm that adds up each channel for itself; statistics are spread to [samples, channels]."""

    def __init__(self, low: Lowering, node: Node, x: TensorValue, groups: int) -> None:
        self.low, self.node, self.x, self.kin = low, node, x, opmath(x.dtype)
        self.rows = [x.shape[0], x.shape[1]]
        self.width = x.shape[1] // groups
        self.grouped = [x.shape[0], x.shape[1] * 0 + groups, self.width]
        self.pixels = list(range(2, x.rank))

    def made(self, hint: str) -> TensorValue:
        """A number for each channel of each sample."""
        device = self.low.buffers[self.x.buffer].device
        return self.low.buffer(f"{self.node.name}_{hint}", self.kin, self.rows, device=device)

    def elements(self) -> NestBuilder:
        """A nest over all elements."""
        return self.low.nest(self.node, self.x.shape)

    def of_channel(self, b: NestBuilder, source: TensorValue | None) -> Value | None:
        """Of a vector with one element for each channel, that of an element's."""
        return None if source is None else b.load(source, [b.axes[1]]).to(self.kin)

    def of_row(self, b: NestBuilder, source: TensorValue) -> Value:
        """What was made for an element's sample and channel."""
        return b.load(source, b.axes[:2])

    def groups(self) -> tuple[NestBuilder, list[Expr], list[Expr]]:
        """A nest over samples, groups and the channels of a group; the positions of a channel and of a group."""
        b = self.low.nest(self.node, self.grouped)
        n, g, c = b.axes
        return b, [n, g * self.width + c], [n, g]

    def spread(self, *sources: TensorValue) -> list[TensorValue]:
        """Numbers of groups, for each of their channels."""
        b, channel, group = self.groups()
        outs = [self.made("spread") for _ in sources]
        for source, out in zip(sources, outs, strict=True):
            b.store(out, b.load(source, group).to(self.kin), channel)
        self.low.finish(b)
        return outs

    def statistics(self, eps: float, mean: TensorValue, rstd: TensorValue) -> tuple[TensorValue, TensorValue]:
        """Store each group's mean and reciprocal deviation; returns them spread to the channels."""
        b = self.elements()
        centres, squares = self.made("centres"), self.made("squares")
        for target, value in zip((centres, squares), b.reduce_many("welford", self._x(b), self.pixels), strict=True):
            b.store(target, value, b.axes[:2])
        self.low.finish(b)
        b, channel, group = self.groups()
        number = count(b, self.x.shape[2:], self.kin)
        average, between = b.reduce_many("welford", b.load(centres, channel), [2])
        inside = b.reduce("sum", b.load(squares, channel), [2])
        scale = ((inside + between * number) / (number * count(b, [self.width], self.kin)) + eps).op("rsqrt")
        average_of, scale_of = self.made("mean"), self.made("scale")
        for out, kept, value in ((mean, average_of, average), (rstd, scale_of, scale)):
            b.store(out, value, group)
            b.store(kept, value, channel)
        self.low.finish(b)
        return average_of, scale_of

    def _x(self, b: NestBuilder) -> Value:
        return b.load(self.x).to(self.kin)

    def sums(self, grad: TensorValue, average: TensorValue, scale: TensorValue) -> tuple[TensorValue, TensorValue]:
        """Each channel's sums over the pixels: of the gradient, and of the gradient times the normalised element."""
        b = self.elements()
        offset, slope = self.made("offset"), self.made("slope")
        g = b.load(grad).to(self.kin)
        apart = self._x(b) - self.of_row(b, average)
        b.store(offset, b.reduce("sum", g, self.pixels), b.axes[:2])
        b.store(slope, b.reduce("sum", g * apart, self.pixels) * self.of_row(b, scale), b.axes[:2])
        self.low.finish(b)
        return offset, slope

    def input_gradient(
        self,
        out: TensorValue,
        grad: TensorValue,
        weight: TensorValue | None,
        sums: Sequence[TensorValue],
        statistics: Sequence[TensorValue],
    ) -> None:
        """The gradient of ``x``, without its mean over the group and its part along the normalised ``x``."""
        b, channel, _ = self.groups()
        means = [self.made("mean") for _ in sums]
        number = count(b, [self.width, *self.x.shape[2:]], self.kin)
        factor = None if weight is None else b.load(weight, [channel[1]]).to(self.kin)
        for source, target in zip(sums, means, strict=True):
            b.store(target, b.reduce("sum", affine(b.load(source, channel), factor, None), [2]) / number, channel)
        self.low.finish(b)
        b = self.elements()
        average, scale, offset, slope = (self.of_row(b, t) for t in (*statistics, *means))
        weighted = affine(b.load(grad).to(self.kin), self.of_channel(b, weight), None)
        unit = (self._x(b) - average) * scale
        b.store(out, (weighted - offset - unit * slope) * scale)
        self.low.finish(b)

    def over_samples(self, out: TensorValue, source: TensorValue) -> None:
        """Store the sums of ``source`` over the samples."""
        b = self.low.nest(self.node, self.rows)
        b.store(out, b.reduce("sum", b.load(source), [0]), [b.axes[1]])
        self.low.finish(b)


def _by_channels(
    low: Lowering, node: Node, x: TensorValue, affine_of: Sequence[TensorValue | None], groups: int, eps: float
) -> list[TensorValue]:
    out, mean, rstd = (low.result(node, k) for k in range(3))
    channels = _Channels(low, node, x, groups)
    statistics = channels.statistics(eps, mean, rstd)
    b = channels.elements()
    average, scale = (channels.of_row(b, t) for t in statistics)
    factor, bias = (channels.of_channel(b, t) for t in affine_of)
    term = absent_bias(low, out) if bias is None and factor is not None else bias
    b.store(out, affine((b.load(x).to(channels.kin) - average) * scale, factor, term))
    low.finish(b)
    return [out, mean, rstd]


def _backward_by_channels(
    low: Lowering,
    node: Node,
    operands: tuple[TensorValue, TensorValue, TensorValue | None],
    saved: Sequence[TensorValue],
    outs: Sequence[TensorValue | None],
    groups: int,
) -> None:
    grad, x, weight = operands
    channels = _Channels(low, node, x, groups)
    statistics = channels.spread(*saved)
    offset, slope = channels.sums(grad, statistics[0], statistics[1])
    if outs[0] is not None:
        channels.input_gradient(outs[0], grad, weight, (offset, slope), statistics)
    for out, source in zip(outs[1:], (slope, offset), strict=True):
        if out is not None:
            channels.over_samples(out, source)
