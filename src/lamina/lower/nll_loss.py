"""Negative log-likelihood loss: a gather by class number, with its checks, and its gradient without a scatter."""

from __future__ import annotations

from torch.fx import Node

from lamina.base.ignore_index import IGNORE_NONE
from lamina.ir.index import Expr, as_expr
from lamina.lower.builder import NestBuilder, Value, opmath
from lamina.lower.context import Lowering, Operand
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue

__all__: list[str] = []

MEAN = 1
"""ATen's number for ``reduction="mean"``."""


def _class_dim(x: TensorValue) -> int:
    if x.rank == 0:
        raise Decline("no class dimension")
    return 0 if x.rank == 1 else 1


def _target_place(target: TensorValue, place: list[Expr]) -> list[Expr]:
    """The target's position; one lone row of scores may come with a target of one element."""
    return place if target.rank == len(place) else [as_expr(0)] * target.rank


def _target(
    b: NestBuilder, target: TensorValue, place: list[Expr], classes: Expr, ignore: Operand
) -> tuple[Value, Value]:
    """The class number (zero where ignored or out of range) and whether it counts; checks its range."""
    if not isinstance(ignore, int):
        raise Decline("an ignored class known only at run time")
    t = b.load(target, place).to("int64")
    counted = t.op("ne", ignore)
    inside = (t >= 0) & (t < b.index(classes))
    if ignore == IGNORE_NONE:
        size = f" with size {classes}" if classes.is_int else ""
        b.check(inside, f"index is out of bounds for a dimension{size}", "RuntimeError")
    else:
        b.check(inside | ~counted, "Target is out of bounds.")
    usable = counted & inside
    return b.where(usable, t, 0), usable


@rule("aten.nll_loss_forward.default", "aten.nll_loss2d_forward.default")
def nll_loss(
    low: Lowering,
    node: Node,
    x: TensorValue,
    target: TensorValue,
    weight: TensorValue | None,
    reduction: int,
    ignore: Operand,
) -> list[TensorValue]:
    out, total = low.result(node, 0), low.result(node, 1)
    low.plain(x.dtype)
    kin, dim = opmath(x.dtype), _class_dim(x)
    b = low.nest(node, [n for d, n in enumerate(x.shape) if d != dim])
    place = list(b.axes)
    t, usable = _target(b, target, _target_place(target, place), x.shape[dim], ignore)
    chosen = b.loaded(t, x.shape[dim])
    loss = -b.load(x, [*place[:dim], chosen, *place[dim:]]).to(kin)
    importance = b.constant(1, kin) if weight is None else b.load(weight, [chosen]).to(kin)
    loss = b.where(usable, loss * importance if weight is not None else loss, 0.0)
    importance = b.where(usable, importance, 0.0)
    if reduction == 0 and place:
        b.store(out, loss)
        low.finish(b)
        b = low.nest(node, ())
        b.store(total, b.constant(0, kin))
        low.finish(b)
        return [out, total]
    everything = list(range(len(place)))
    summed, weights = (b.reduce("sum", v, everything) if everything else v for v in (loss, importance))
    b.store(out, summed / weights if reduction == MEAN else summed, [])
    b.store(total, weights, [])
    low.finish(b)
    return [out, total]


@rule("aten.nll_loss_backward.default", "aten.nll_loss2d_backward.default")
def nll_loss_backward(
    low: Lowering,
    node: Node,
    grad: TensorValue,
    x: TensorValue,
    target: TensorValue,
    weight: TensorValue | None,
    reduction: int,
    ignore: Operand,
    total: TensorValue,
) -> TensorValue:
    """Each element compares its class with the target: no scatter, so every element is written once."""
    if not isinstance(ignore, int):
        raise Decline("an ignored class known only at run time")
    out = low.result(node)
    low.plain(x.dtype)
    kin, dim = opmath(x.dtype), _class_dim(x)
    b = low.nest(node, x.shape)
    place = [a for d, a in enumerate(b.axes) if d != dim]
    t = b.load(target, _target_place(target, place)).to("int64")
    here = t.equals(b.index(b.axes[dim])) & t.op("ne", ignore)
    g = b.load(grad, place if grad.rank else []).to(kin)
    if reduction == MEAN:
        g = g / b.load(total, []).to(kin)
    if weight is not None:
        g = g * b.load(weight, [b.axes[dim]]).to(kin)
    b.store(out, b.where(here, -g, 0.0))
    low.finish(b)
    return out
