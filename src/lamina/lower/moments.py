"""Variances and standard deviations, with and without the mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch.fx import Node

from lamina.base.dtypes import DTYPES
from lamina.lower.builder import NestBuilder, Value, opmath
from lamina.lower.context import Lowering
from lamina.lower.reduction import Dims, count, over, reduced_dims, store_reduced
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue

__all__: list[str] = []


def _moments(
    low: Lowering, node: Node, x: TensorValue, dim: Dims, correction: float, outs: Sequence[TensorValue], root: bool
) -> None:
    """Variance (or its root) into ``outs[0]`` and, where there is one, the mean into ``outs[1]``."""
    low.plain(x.dtype)
    dims = reduced_dims(x, dim)
    kin = opmath(x.dtype)
    if not DTYPES[kin].is_float:
        raise Decline("variance of integers")
    b = low.nest(node, x.shape)
    v = b.load(x).to(kin)
    size = count(b, [x.shape[d] for d in dims], kin)
    degrees = (size - correction).op("maximum", 0.0)
    average, squares = b.reduce_many("welford", v, dims) if dims else (v + 0.0, v - v)
    if root and dims and x.dtype in ("float32", "bfloat16") and not low.on_gpu(x):
        rows = x.strides is not None and 1 in [x.strides[d] for d in dims]
        found = _root(b, v, _FirstPass(average, squares, size, degrees), dims, rows)
    else:
        found = squares / degrees
        found = found.op("sqrt") if root else found
    store_reduced(b, outs[0], found, dims)
    if len(outs) > 1:
        store_reduced(b, outs[1], average, dims)
    low.finish(b)


class _FirstPass(NamedTuple):
    average: Value
    squares: Value
    size: Value
    degrees: Value


def _root(b: NestBuilder, v: Value, first: _FirstPass, dims: list[int], rows: bool) -> Value:
    """The root of the sum of squares of the distances of ``v`` from its average, divided by the degrees of freedom.

    A CPU's own kernels add up in double precision. Squares that single precision has not, as the ``first`` pass tells,
    are those of scaled distances; the largest are scaled by more, so that none is infinite while the sum of the values
    and the distances are not. Of the others the first pass's sum is as good where deviations are large beside the
    rounding of the mean that it began with: ``rows``, which lie side by side in memory, are not read again for these.
    """
    far, large = 2.0**63, 1 / 64
    tiny, fits = first.squares.op("lt", 1 / far), first.squares.op("lt", far * far)

    def chosen(small: float, great: float) -> Value:
        one, other = b.constant(1.0, "float32"), b.constant(great, "float32")
        return b.where(tiny, b.constant(small, "float32"), b.where(fits, one, other))

    scale, back = chosen(far, 2.0**-96), chosen(1 / far, 2.0**96)
    apart = (v - first.average) * scale
    if not rows:
        return (over(b, "sum", apart * apart, dims) / first.degrees).op("sqrt") * back
    part = first.average * large
    again = tiny.op("not").op("and", fits).op("and", (part * part * first.size).op("le", first.squares)).op("not")
    found = over(b, "sum", b.where(again, apart * apart, 0.0), dims)
    return (b.where(again, found, first.squares) / first.degrees).op("sqrt") * back


def _correction(correction: Any) -> float:
    return 1.0 if correction is None else float(correction)


@rule("aten.var.correction", "aten.std.correction")
def var(
    low: Lowering, node: Node, x: TensorValue, dim: Dims = None, correction: Any = None, keepdim: bool = False
) -> TensorValue:
    out = low.result(node)
    _moments(low, node, x, dim, _correction(correction), [out], ".std." in str(node.target))
    return out


@rule("aten.var.default", "aten.std.default")
def var_all(low: Lowering, node: Node, x: TensorValue, unbiased: bool = True) -> TensorValue:
    return var(low, node, x, None, int(unbiased))


@rule("aten.var.dim", "aten.std.dim")
def var_dim(
    low: Lowering, node: Node, x: TensorValue, dim: Dims, unbiased: bool = True, keepdim: bool = False
) -> TensorValue:
    return var(low, node, x, dim, int(unbiased))


@rule("prims.var.default")
def prims_var(
    low: Lowering, node: Node, x: TensorValue, dims: Dims, correction: Any = 1, **options: Any
) -> TensorValue:
    return var(low, node, x, dims, correction)


@rule("aten.var_mean.correction", "aten.std_mean.correction")
def var_mean(
    low: Lowering, node: Node, x: TensorValue, dim: Dims = None, correction: Any = None, keepdim: bool = False
) -> list[TensorValue]:
    outs = [low.result(node, 0), low.result(node, 1)]
    _moments(low, node, x, dim, _correction(correction), outs, ".std_mean." in str(node.target))
    return outs


@rule("aten.var_mean.default", "aten.std_mean.default")
def var_mean_all(low: Lowering, node: Node, x: TensorValue, unbiased: bool = True) -> list[TensorValue]:
    return var_mean(low, node, x, None, int(unbiased))


@rule("aten.var_mean.dim", "aten.std_mean.dim")
def var_mean_dim(
    low: Lowering, node: Node, x: TensorValue, dim: Dims, unbiased: bool = True, keepdim: bool = False
) -> list[TensorValue]:
    return var_mean(low, node, x, dim, int(unbiased))
