"""Library calls: what an operation without a rule becomes.

Arguments are strided windows, so that a transposed operand is no copy. A result is always memory of its own: a view
is called in its copying variant, because planned memory may be given to another value while a library's view of it
lives on.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from lamina.base.dtypes import dtype_of
from lamina.lower.context import Lowering
from lamina.lower.rules import CannotLower
from lamina.lower.sizes import expr_of
from lamina.lower.values import TensorValue

__all__ = ["call_library"]


def call_library(low: Lowering, node: Node, target: Any, args: Any, kwargs: Any, reason: str) -> Any:
    """Append a call of ``target`` and return its results. Raises ``CannotLower`` for what no call can express."""
    if target._schema.is_mutable:
        raise CannotLower(f"{target} writes to its arguments")
    val = node.meta.get("val")
    several = isinstance(val, list | tuple)
    vals: Sequence[Any] = val if isinstance(val, list | tuple) else [val]
    aliased = any(result.alias_info is not None for result in target._schema.returns)
    called = _copying(target) if aliased else target
    results: list[Any] = []
    for k, v in enumerate(vals):
        if isinstance(v, torch.Tensor):
            if v.layout is not torch.strided:
                raise CannotLower(f"{target} gives a tensor of layout {v.layout}")
            wanted = not several or _is_read(node, k)
            results.append(_result(low, node, v, aliased) if wanted else None)
        elif v is None:
            results.append(None)
        elif isinstance(v, int | torch.SymInt) and not isinstance(v, bool):
            results.append(expr_of(v))
        else:
            raise CannotLower(f"{target} gives something that is not a tensor")
    outs = [r if isinstance(r, TensorValue) else None for r in results]
    low.library(node, str(called), args, kwargs, outs, reason, several)
    return results if several else results[0]


def _result(low: Lowering, node: Node, val: torch.Tensor, aliased: bool) -> TensorValue:
    if aliased:
        return low.buffer(node.name, dtype_of(val.dtype), [expr_of(n) for n in val.shape], device=str(val.device))
    return low.like(node.name, val)


def _is_read(node: Node, position: int) -> bool:
    """Whether anything reads the ``position``-th result."""
    return any(user.target is not operator.getitem or user.args[1] == position for user in node.users)


def _copying(target: Any) -> Any:
    """The variant of a view operation that gives a copy."""
    namespace, _, name = target._schema.name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), f"{name}_copy", None)
    found = getattr(packet, target._overloadname, None)
    if found is None:
        raise CannotLower(f"{target} is a view that kernels cannot express")
    return found
