"""Batch normalisation: one nest for the statistics of each channel, one pointwise nest, one backward nest.

The statistics are kept in float32 for the pointwise nest even where the results that report them are half types.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from lamina.ir.index import Expr, as_expr
from lamina.lower.builder import NestBuilder, Value, opmath
from lamina.lower.context import Lowering
from lamina.lower.norms import optional_results
from lamina.lower.reduction import count
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue

__all__: list[str] = []


class _Batch:
    """The operands of one batch norm: ``x`` is [N, C, ...], the vectors have one element for each channel."""

    def __init__(self, low: Lowering, node: Node, x: TensorValue, eps: float) -> None:
        if x.rank < 2:
            raise Decline("batch norm of fewer than two dimensions")
        low.plain(x.dtype)
        self.low, self.node, self.x, self.eps = low, node, x, eps
        self.kin = opmath(x.dtype)
        self.across = [0, *range(2, x.rank)]

    def channel(self, b: NestBuilder, source: TensorValue) -> Value:
        """One channel's element of a vector."""
        return b.load(source, [b.axes[1]]).to(self.kin)

    def statistics(
        self,
        momentum: float,
        old: tuple[TensorValue | None, TensorValue | None],
        saved: Sequence[TensorValue],
        new: Sequence[TensorValue],
    ) -> tuple[TensorValue, TensorValue]:
        """Store the batch's mean and reciprocal deviation, and the running statistics; returns the first two."""
        low, x, kin = self.low, self.x, self.kin
        b = low.nest(self.node, x.shape)
        at = [b.axes[1]]
        average, deviation = b.reduce_many("welford", b.load(x).to(kin), self.across)
        number = count(b, [x.shape[d] for d in self.across], kin)
        scale = (deviation / number + self.eps).op("rsqrt")
        exact = list(saved)
        for k, value in enumerate((average, scale)):
            if saved[k].dtype != kin:
                exact[k] = low.buffer(f"{self.node.name}_exact", kin, [x.shape[1]], device=low.buffers[x.buffer].device)
                b.store(exact[k], value, at)
            b.store(saved[k], value, at)
        for source, target, value in zip(old, new, (average, deviation / (number - 1.0)), strict=False):
            if source is not None:
                before = self.channel(b, source)
                b.store(target, value * momentum + before * (1.0 - momentum), at)
        low.finish(b)
        return exact[0], exact[1]

    def reported(self, mean: TensorValue, variance: TensorValue, saved: Sequence[TensorValue]) -> None:
        """Store the running mean and reciprocal deviation as the statistics used; on a CPU eager reports none."""
        if any(0 in s.shape for s in saved):
            return
        b = self.low.nest(self.node, saved[0].shape)
        b.store(saved[0], b.load(mean).to(self.kin))
        b.store(saved[1], (b.load(variance).to(self.kin) + self.eps).op("rsqrt"))
        self.low.finish(b)

    def apply(
        self,
        out: TensorValue,
        mean: TensorValue,
        spread: TensorValue,
        weight: TensorValue | None,
        bias: TensorValue | None,
        spread_is_variance: bool,
    ) -> TensorValue:
        """The normalised ``x``, scaled and shifted, into ``out``."""
        b = self.low.nest(self.node, self.x.shape)
        scale = self.channel(b, spread)
        if spread_is_variance:
            scale = (scale + self.eps).op("rsqrt")
        value = (b.load(self.x).to(self.kin) - self.channel(b, mean)) * scale
        value = value if weight is None else value * self.channel(b, weight)
        value = value + (0.0 if bias is None else self.channel(b, bias))  # eager adds zeros, which have no minus
        b.store(out, value)
        self.low.finish(b)
        return out


def _forward(
    low: Lowering,
    node: Node,
    x: TensorValue,
    affine: tuple[TensorValue | None, TensorValue | None],
    running: tuple[TensorValue | None, TensorValue | None],
    training: bool,
    momentum: float,
    eps: float,
    new: Sequence[TensorValue] = (),
) -> list[TensorValue]:
    out, saved = low.result(node, 0), [low.result(node, 1), low.result(node, 2)]
    batch = _Batch(low, node, x, eps)
    if training:
        mean, scale = batch.statistics(momentum, running, saved, new)
        batch.apply(out, mean, scale, *affine, spread_is_variance=False)
    else:
        mean_, variance = running
        if mean_ is None or variance is None:
            raise Decline("evaluation without running statistics")
        batch.reported(mean_, variance, saved)
        batch.apply(out, mean_, variance, *affine, spread_is_variance=True)
    return [out, *saved]


@rule("aten._native_batch_norm_legit_functional.default")
def batch_norm_functional(
    low: Lowering,
    node: Node,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    mean: TensorValue,
    variance: TensorValue,
    training: bool,
    momentum: float,
    eps: float,
) -> list[TensorValue]:
    new = [low.result(node, 3), low.result(node, 4)]
    results = _forward(low, node, x, (weight, bias), (mean, variance), training, momentum, eps, new)
    return [*results, *(new if training else (mean, variance))]


@rule("aten._batch_norm_with_update_functional.default")
def batch_norm_with_update(
    low: Lowering,
    node: Node,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    mean: TensorValue,
    variance: TensorValue,
    momentum: float,
    eps: float,
) -> list[TensorValue]:
    new = [low.result(node, 4), low.result(node, 5)]
    results = _forward(low, node, x, (weight, bias), (mean, variance), True, momentum, eps, new)
    return [*results, low.result(node, 3), *new]


@rule("aten._native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    low: Lowering,
    node: Node,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[TensorValue]:
    return _forward(low, node, x, (weight, bias), (None, None), training, momentum, eps)


@rule("aten._native_batch_norm_legit_no_training.default")
def batch_norm_no_training(
    low: Lowering,
    node: Node,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    mean: TensorValue,
    variance: TensorValue,
    momentum: float,
    eps: float,
) -> list[TensorValue]:
    return _forward(low, node, x, (weight, bias), (mean, variance), False, momentum, eps)


@rule("aten.native_batch_norm.default")
def native_batch_norm(
    low: Lowering,
    node: Node,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    mean: TensorValue | None,
    variance: TensorValue | None,
    training: bool,
    momentum: float,
    eps: float,
) -> list[TensorValue]:
    if training and mean is not None:
        raise Decline("running statistics updated in place")
    return _forward(low, node, x, (weight, bias), (mean, variance), training, momentum, eps)


@rule("aten.native_batch_norm_backward.default")
def batch_norm_backward(
    low: Lowering,
    node: Node,
    grad: TensorValue,
    x: TensorValue,
    weight: TensorValue | None,
    mean: TensorValue | None,
    variance: TensorValue | None,
    saved_mean: TensorValue | None,
    saved_scale: TensorValue | None,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> list[TensorValue | None]:
    """One nest: the two sums of each channel, which are the weights' gradients, serve the input's as well.

    As in eager the deviations are multiplied by the reciprocal deviation where they have been added up: of few values
    what is left of the input's gradient is rounding, of which there is less so.
    """
    outs = optional_results(low, node, mask)
    batch = _Batch(low, node, x, eps)
    kin = batch.kin
    centre, spread = (saved_mean, saved_scale) if training else (mean, variance)
    if centre is None or spread is None:
        raise Decline("no statistics were kept")
    b = low.nest(node, x.shape)
    g = b.load(grad).to(kin)
    scale = batch.channel(b, spread)
    if not training:
        scale = (scale + eps).op("rsqrt")
    apart = b.load(x).to(kin) - batch.channel(b, centre)
    factor = scale if weight is None else scale * batch.channel(b, weight)
    number = count(b, _sizes(x, batch.across), kin)
    _store_gradients(b, outs, g, apart, (scale, factor), number, batch.across, training)
    low.finish(b)
    return outs


def _sizes(x: TensorValue, dims: Sequence[int]) -> list[Expr]:
    return [as_expr(x.shape[d]) for d in dims]


def _store_gradients(
    b: NestBuilder,
    outs: Sequence[TensorValue | None],
    g: Value,
    apart: Value,
    scales: tuple[Value, Value],
    number: Value,
    across: list[int],
    training: bool,
) -> None:
    """``apart`` is each element's deviation, ``scales`` the reciprocal deviation without and with the weight."""
    need_sums = training and outs[0] is not None
    scale, factor = scales
    slope = b.reduce("sum", g * apart, across) if need_sums or outs[1] is not None else None
    offset = b.reduce("sum", g, across) if need_sums or outs[2] is not None else None
    if outs[0] is not None:
        if training:
            assert slope is not None
            assert offset is not None
            g = g - offset / number - apart * (slope * scale * scale / number)
        b.store(outs[0], g * factor)
    scaled = slope * scale if slope is not None and outs[1] is not None else None
    for out, value in zip(outs[1:], (scaled, offset), strict=True):
        if out is not None and value is not None:
            b.store(out, value, [b.axes[1]])
