"""Library calls: what an operation without a rule becomes.

Arguments are strided windows, so that a transposed operand is no copy. A result is memory of its own: a view is called
in its copying variant, for what becomes an output, and for what is written to after it. Pairs that stand for complex
numbers, and complex numbers that stand for pairs, stay views where neither can happen: planning keeps memory that a
call's result may be a view of.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from lamina.base.torch_private import HigherOrderOperator, OpOverload, returns_arguments, schema_of
from lamina.lower.context import Lowering
from lamina.lower.rules import CannotLower
from lamina.lower.sizes import expr_of
from lamina.lower.values import TensorValue
from lamina.ops.aliasing import makes_view

__all__ = ["call_effect", "call_library", "is_read"]

_COMPLEX_VIEWS = (torch.ops.aten.view_as_real.default, torch.ops.aten.view_as_complex.default)


def call_library(low: Lowering, node: Node, target: Any, args: Any, kwargs: Any, reason: str) -> Any:
    """Append a call of ``target`` and return its results. Raises ``CannotLower`` for what no call can express."""
    val = node.meta.get("val")
    if isinstance(val, list | tuple):
        return _append(low, node, target, args, kwargs, reason, list(enumerate(val)), True)
    return _append(low, node, target, args, kwargs, reason, [(0, val)], False)[0]


def call_effect(low: Lowering, node: Node, args: Sequence[Any], kwargs: Any) -> list[Any]:
    """Append the call inside ``with_effects(token, target, *args)``: one that counts for what it does.

    The token only keeps such calls in order, which steps do anyway: the new one is ``None``.
    """
    _, target, *rest = args
    if not isinstance(target, OpOverload):
        raise CannotLower(f"{target} is not an ATen operation")
    vals = list(enumerate(node.meta["val"]))[1:]
    several = len(schema_of(target).returns) > 1
    return [None, *_append(low, node, target, rest, kwargs, "called for its effect", vals, several)]


def _append(
    low: Lowering,
    node: Node,
    target: Any,
    args: Any,
    kwargs: Any,
    reason: str,
    vals: Sequence[tuple[int, Any]],
    several: bool,
) -> list[Any]:
    """Append the call; ``vals`` are its results, each with its position in the node's value."""
    if schema_of(target).is_mutable:
        raise CannotLower(f"{target} writes to its arguments")
    aliased = returns_arguments(target)
    called = _copying(target) if aliased and not _stays_view(node) else target
    results: list[Any] = []
    for k, v in vals:
        if isinstance(v, torch.Tensor):
            if v.layout is not torch.strided:
                raise CannotLower(f"{target} gives a tensor of layout {v.layout}")
            wanted = not isinstance(node.meta["val"], list | tuple) or is_read(node, k)
            results.append(low.like(node.name, v) if wanted else None)
        elif v is None:
            results.append(None)
        elif isinstance(v, int | torch.SymInt) and not isinstance(v, bool):
            results.append(expr_of(v))
        else:
            raise CannotLower(f"{target} gives something that is not a tensor")
    # A call without results is never dead: it is there for its effect.
    outs = [r if isinstance(r, TensorValue) else None for r in results] if schema_of(target).returns else []
    low.library(node, str(called), args, kwargs, outs, reason, several)
    return results


def _stays_view(node: Node) -> bool:
    """Whether pairs or complex numbers may be what they are a view of: nothing is written to, no output shares it."""
    if node.target not in _COMPLEX_VIEWS or _is_returned(node):
        return False
    return not any(other.op == "call_function" and _may_write(other.target) for other in node.graph.nodes)


def _may_write(target: Any) -> bool:
    """Whether a call may write to an argument, at the end of the program or, through a wrapper, where it stands."""
    if isinstance(target, OpOverload):
        return bool(schema_of(target).is_mutable)
    return isinstance(target, HigherOrderOperator)


def _is_returned(node: Node) -> bool:
    """Whether ``node``, or a view of it, is an output."""
    return any(
        user.op == "output" or (user.op == "call_function" and makes_view(user.target) and _is_returned(user))
        for user in node.users
    )


def is_read(node: Node, position: int) -> bool:
    """Whether anything reads the ``position``-th result."""
    return any(user.target is not operator.getitem or user.args[1] == position for user in node.users)


def _copying(target: Any) -> Any:
    """The variant of a view operation that gives a copy."""
    namespace, _, name = schema_of(target).name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), f"{name}_copy", None)
    found = getattr(packet, schema_of(target).overload_name or "default", None)
    if found is None:
        raise CannotLower(f"{target} is a view that kernels cannot express")
    return found
