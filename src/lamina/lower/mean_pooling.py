"""Pooling: the mean of each window, and the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.fx import Node

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Expr, as_expr, prod
from lamina.lower.builder import Value, opmath
from lamina.lower.context import Lowering
from lamina.lower.positions import shape_of
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue
from lamina.lower.windows import Adaptive, Fixed, Single, Sliding, Span, fixed_spans

__all__: list[str] = []

Ints = Sequence[int] | int

_MANY = 10
"""Elements of a window from which on sums over its rows are made by themselves."""


def _divided(total: Value, number: Value) -> Value:
    return total / number if DTYPES[total.dtype].is_float else total.op("trunc_div", number)


def _window_mean(
    low: Lowering, node: Node, x: TensorValue, spans: Sequence[Span], divisor: int | None = None
) -> TensorValue:
    out = low.result(node)
    low.plain(x.dtype)
    kin = opmath(x.dtype)
    if all(_is_whole(span, n) for span, n in zip(spans, x.shape[-len(spans) :], strict=True)):
        return _mean_of_all(low, node, x, out, spans, divisor)
    if divisor is None and _by_rows(low, node, x, spans):
        return _mean_of_row_sums(low, node, x, out, spans)
    s = Sliding(low, node, out.shape, [span.size for span in spans])
    total = s.total("add", [s.element(x, spans, number, 0).to(kin) for number in s.numbers])
    counts = [span.count(s.b, a, kin) for span, a in zip(spans, s.inner, strict=True)]
    number = s.area(counts, kin) if divisor is None else s.b.constant(divisor, kin)
    s.b.store(out, _divided(total, number), s.at)
    low.finish(s.b)
    return out


def _by_rows(low: Lowering, node: Node, x: TensorValue, spans: Sequence[Span]) -> bool:
    """Whether sums over rows, whose elements lie next to each other, come first, and then sums of those.

    On a CPU the first are of whole vectors, and take most of the additions where windows hardly share elements.
    """
    of, to = node.args[0], node.meta["val"]
    rows = isinstance(of, Node) and of.meta["val"].stride(-1) == 1 and to.stride(-1) == 1
    cpu = low.buffers[x.buffer].on_cpu
    return cpu and rows and len(spans) > 1 and prod(as_expr(s.size) for s in spans).const >= _MANY


def _is_whole(span: Span, source: Expr) -> bool:
    """Whether the only window is all of the dimension."""
    if isinstance(span, Adaptive):
        return span.result == 1
    return isinstance(span, Fixed) and span.pad == 0 and span.dilation == 1 and span.result == 1 and span.size == source


def _mean_of_all(
    low: Lowering, node: Node, x: TensorValue, out: TensorValue, spans: Sequence[Span], divisor: int | None
) -> TensorValue:
    """One sum for each image, over axes, so that loops run along them; windows are written out or sum row by row."""
    kin, split = opmath(x.dtype), x.rank - len(spans)
    b = low.nest(node, x.shape)
    total = b.reduce("sum", b.load(x).to(kin), list(range(split, x.rank)))
    area = prod(x.shape[split:])
    number = b.constant(divisor or int(area), kin) if divisor or area.is_int else b.index(area, kin)
    b.store(out, _divided(total, number), [*b.axes[:split], *(as_expr(0) for _ in spans)])
    low.finish(b)
    return out


def _mean_of_row_sums(
    low: Lowering, node: Node, x: TensorValue, out: TensorValue, spans: Sequence[Span]
) -> TensorValue:
    kin = opmath(x.dtype)
    *above, last = spans
    split = out.rank - 1
    rows = low.buffer(f"{node.name}_rows", kin, [*out.shape[:split], x.shape[-1]])
    s = Sliding(low, node, rows.shape, [*(span.size for span in above), 1])
    s.b.store(rows, s.total("add", [s.element(x, [*above, Single()], number, 0).to(kin) for number in s.numbers]), s.at)
    low.finish(s.b)
    s = Sliding(low, node, out.shape, [*(1 for _ in above), last.size])
    singles = [*(Single() for _ in above), last]
    total = s.total("add", [s.element(rows, singles, number, 0) for number in s.numbers])
    counts = [span.count(s.b, a, kin) for span, a in zip(spans, s.inner, strict=True)]
    s.b.store(out, _divided(total, s.area(counts, kin)), s.at)
    low.finish(s.b)
    return out


def _window_mean_backward(
    low: Lowering, node: Node, grad: TensorValue, spans: Sequence[Span], divisor: int | None = None
) -> TensorValue:
    """Each element sums its share of the gradients of the windows it is in."""
    out = low.result(node)
    low.plain(grad.dtype)
    kin = opmath(grad.dtype)
    if _uneven_rows(low, node, grad, spans):
        return _shares_of_rows(low, node, grad, out, spans)
    s = Sliding(low, node, out.shape, [span.covers for span in spans])
    if divisor is None:
        s.b.store(out, _shares(s, spans, grad, kin), s.at)
        low.finish(s.b)
        return out
    values = []
    for number in s.numbers:
        outputs = [span.output(a, j) for span, a, j in zip(spans, s.inner, number, strict=True)]
        values.append(s.b.load(grad, [*s.outer, *outputs], s.holds(spans, number)).to(kin) / divisor)
    s.b.store(out, s.total("add", values), s.at)
    low.finish(s.b)
    return out


def _uneven_rows(low: Lowering, node: Node, grad: TensorValue, spans: Sequence[Span]) -> bool:
    """Whether rows of gradients are spread over the columns first: a row's places and counts, which are in no even
    steps, are then computed for the windows' rows only.
    """
    uneven = all(isinstance(s, Adaptive) for s in spans) and prod(as_expr(s.covers) for s in spans).const > 1
    rows = node.meta["val"].stride(-1) == 1
    return uneven and rows and len(spans) > 1 and low.buffers[grad.buffer].on_cpu


def _shares(s: Sliding, spans: Sequence[Span], grad: TensorValue, kin: str) -> Value:
    """What the element at the nest's position gets of the windows it is in."""
    values = []
    for number in s.numbers:
        outputs = [span.output(a, j) for span, a, j in zip(spans, s.inner, number, strict=True)]
        exists = s.holds(spans, number)
        counts = [span.count(s.b, o, kin) for span, o in zip(spans, outputs, strict=True)]
        share = s.b.load(grad, [*s.outer, *outputs], exists).to(kin)
        if any(not isinstance(count, int) or count > 1 for count in counts):
            share = share / s.area(counts, kin)
        values.append(share if exists is None else s.b.where(exists, share, 0))
    return s.total("add", values)


def _shares_of_rows(
    low: Lowering, node: Node, grad: TensorValue, out: TensorValue, spans: Sequence[Span]
) -> TensorValue:
    kin = opmath(grad.dtype)
    *above, last = spans
    columns = low.buffer(f"{node.name}_columns", kin, [*grad.shape[:-1], out.shape[-1]])
    s = Sliding(low, node, columns.shape, [*(1 for _ in above), last.covers])
    s.b.store(columns, _shares(s, [*(Single() for _ in above), last], grad, kin), s.at)
    low.finish(s.b)
    s = Sliding(low, node, out.shape, [*(span.covers for span in above), 1])
    s.b.store(out, _shares(s, [*above, Single()], columns, kin), s.at)
    low.finish(s.b)
    return out


def _avg_spans(
    source: Sequence[Expr],
    result: Sequence[Expr],
    size: Ints,
    step: Ints = (),
    pad: Ints = 0,
    ceil_mode: bool = False,
    padded: bool = True,
    divisor: int | None = None,
) -> list[Fixed]:
    return fixed_spans(source, result, size, step, pad, 1, ceil_mode, padded)


def _divisor(window: Sequence[Any]) -> int | None:
    return window[5] if len(window) > 5 else None


def _register_avg_pool(rank: int) -> None:
    @rule(f"aten.avg_pool{rank}d.default")
    def avg_pool(low: Lowering, node: Node, x: TensorValue, *window: Any) -> TensorValue:
        _require_float(x, "int64")
        spans = _avg_spans(x.shape[-rank:], shape_of(node)[-rank:], *window)
        return _window_mean(low, node, x, spans, _divisor(window))

    @rule(f"aten.avg_pool{rank}d_backward.default")
    def avg_pool_backward(low: Lowering, node: Node, grad: TensorValue, x: TensorValue, *window: Any) -> TensorValue:
        spans = _avg_spans(x.shape[-rank:], grad.shape[-rank:], *window)
        return _window_mean_backward(low, node, grad, spans, _divisor(window))

    @rule(f"aten._adaptive_avg_pool{rank}d.default")
    def adaptive_avg_pool(low: Lowering, node: Node, x: TensorValue, size: Any) -> TensorValue:
        _require_float(x)
        return _window_mean(low, node, x, _adaptive(x.shape[-rank:], node.meta["val"].shape[-rank:]))

    @rule(f"aten._adaptive_avg_pool{rank}d_backward.default")
    def adaptive_avg_pool_backward(low: Lowering, node: Node, grad: TensorValue, x: TensorValue) -> TensorValue:
        return _window_mean_backward(low, node, grad, _adaptive(x.shape[-rank:], grad.shape[-rank:]))


def _require_float(x: TensorValue, *others: str) -> None:
    if not DTYPES[x.dtype].is_float and x.dtype not in others:
        raise Decline("eager has means of windows for few integers, and says which")


def _adaptive(source: Sequence[Any], result: Sequence[Any]) -> list[Adaptive]:
    sizes = [(as_expr(n) if isinstance(n, int | Expr) else None) for n in (*source, *result)]
    if any(n is None or not n.is_int or n == 0 for n in sizes):
        raise Decline("sizes known only at run time, or zero")
    known = [int(n) for n in sizes if n is not None]
    return [Adaptive(n, k) for n, k in zip(known[: len(source)], known[len(source) :], strict=True)]


for _rank in (2, 3):
    _register_avg_pool(_rank)
