"""Memory that a user's operation writes to.

A functional graph says that such an operation gives new tensors: copies of its operands, overwritten. Here the operand
itself is handed over wherever nobody can tell: its elements were never set, nothing reads the old ones again, or they
are those of an input that takes the new ones at the end.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from lamina.base.dtypes import DTYPES, dtype_of
from lamina.ir.access import writes
from lamina.ir.index import Expr, as_expr
from lamina.ir.library import may_alias
from lamina.ir.loops import BufferView, LibraryCall
from lamina.lower.context import Lowering
from lamina.lower.rules import CannotLower
from lamina.lower.sizes import expr_of, stride_of
from lamina.lower.values import TensorValue, linear_view
from lamina.ops import overloads
from lamina.ops.aliasing import makes_view

__all__ = ["as_in_eager", "writable"]

aten = torch.ops.aten

_UNSET = overloads(lambda row: row.unset)
"""Operations whose result has no particular elements."""


def writable(low: Lowering, env: Mapping[Node, Any], node: Node, operand: Node, others: Sequence[Node]) -> TensorValue:
    """A tensor with the elements and strides of ``operand`` that ``node`` may overwrite.

    ``others`` are the operands of ``node`` that keep their old elements while it runs.
    """
    value: TensorValue = env[operand]
    if operand.target in _UNSET and set(operand.users) == {node}:
        return _fresh(low, node, operand)
    buffer = low.buffers[value.buffer]
    shared = any(value.buffer in _buffers(env.get(other)) for other in others)
    if not shared and _strides(low, value) == _wanted(operand):
        later = _later_readers(env, node, value.buffer)
        if buffer.kind == "temp" and not later and not _may_be_borrowed(low, value.buffer):
            return value
        if buffer.kind == "input" and _takes_the_result(env, node, operand, later):
            return value
    out = _fresh(low, node, operand)
    if DTYPES[out.dtype].kind == "complex" or out.dtype.startswith("float8"):
        raise CannotLower(f"{node.name} writes to a copy of a {out.dtype} tensor")
    b = low.nest(node, out.shape)
    b.store(out, b.load(value))
    low.finish(b)
    return out


def as_in_eager(low: Lowering, node: Node, operand: Node, value: TensorValue) -> BufferView:
    """``value`` as a window with the very strides that eager's ``operand`` has: the user's code may rest on them."""
    view = low.strided(node, value)
    if _same(view.shape, view.strides, _wanted(operand)):
        return view
    out = _fresh(low, node, operand)
    b = low.nest(node, out.shape)
    b.store(out, b.load(value))
    low.finish(b)
    return low.strided(node, out)


def _wanted(operand: Node) -> list[Expr]:
    return [stride_of(s) for s in operand.meta["val"].stride()]


def _strides(low: Lowering, value: TensorValue) -> list[Expr] | None:
    """The strides of ``value`` in memory; ``None`` when it is not a strided window."""
    view = linear_view(value)
    return None if view is None else list(view.strides)


def _same(shape: Sequence[Expr], strides: Sequence[Expr], wanted: Sequence[Expr]) -> bool:
    return all(n == 1 or a == b for n, a, b in zip(shape, strides, wanted, strict=True))


def _fresh(low: Lowering, node: Node, operand: Node) -> TensorValue:
    """A new buffer laid out like ``operand``, gaps included. Refuses tensors whose elements share memory."""
    val = operand.meta["val"]
    shape, strides = [expr_of(n) for n in val.shape], _wanted(operand)
    if any(s == 0 and n != 1 for n, s in zip(shape, strides, strict=True)):
        raise CannotLower(f"{node.name} writes to {operand.name}, whose elements share memory")
    running = as_expr(1)
    for n, s in sorted(zip(shape, strides, strict=True), key=lambda p: p[1].const if p[1].is_int else 1 << 62):
        if n.is_int and s.is_int and running.is_int and n != 1:
            if s.const < running.const:
                raise CannotLower(f"{node.name} writes to {operand.name}, whose elements share memory")
            running = s * n
    return low.buffer(f"{node.name}_{operand.name}", dtype_of(val.dtype), shape, strides, str(val.device))


def _buffers(value: Any) -> set[str]:
    """The buffers a node's value lies in."""
    if isinstance(value, TensorValue):
        return {value.buffer}
    if isinstance(value, dict):
        return {name for item in value.values() for name in _buffers(item)}
    if isinstance(value, list | tuple):
        return {name for item in value for name in _buffers(item)}
    return set()


def _later_readers(env: Mapping[Node, Any], node: Node, buffer: str) -> list[tuple[Node, Node]]:
    """Pairs (reader, operand): nodes still to come that take what lies in ``buffer``."""
    found = []
    for holder, value in env.items():
        if buffer not in _buffers(value):
            continue
        for user in holder.users:
            if user is node or user in env:
                continue
            picked = value
            if isinstance(value, dict | list | tuple) and user.target is operator.getitem:
                picked = value[user.args[1]]  # type: ignore[index]
            if buffer in _buffers(picked):
                found.append((user, holder))
    return found


def _may_be_borrowed(low: Lowering, buffer: str) -> bool:
    """Whether the buffer is a library call's result that may lie in the memory of an operand."""
    makers = [step for step in low.steps if buffer in writes(step)]
    return any(isinstance(s, LibraryCall) and buffer in s.outs and may_alias(s.op) for s in makers)


def _takes_the_result(env: Mapping[Node, Any], node: Node, operand: Node, later: Sequence[tuple[Node, Node]]) -> bool:
    """Whether ``operand`` is all of an input that gets its final elements after everything else has read it."""
    value = env[operand]
    given = next((n for n in env if n.op == "placeholder" and env[n] == value), None)
    if given is None:
        return False
    final = [u for u in given.users if u.target is aten.copy_.default and u.args[0] is given and u not in env]
    if len(final) != 1 or any(reader is not final[0] or holder is not given for reader, holder in later):
        return False
    return not _is_returned(node) and final[0].args[1] is not given


def _is_returned(node: Node) -> bool:
    """Whether the caller sees a result of ``node``, itself or through views."""
    waiting, seen = list(node.users), set[Node]()
    while waiting:
        user = waiting.pop()
        if user.op == "output":
            return True
        if user not in seen and (user.target is operator.getitem or makes_view(user.target)):
            seen.add(user)
            waiting.extend(user.users)
    return False
