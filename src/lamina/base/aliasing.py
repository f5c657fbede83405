"""Which operations give a view of an operand, and which calls write to one."""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch.fx import Node

from lamina.base.torch_private import OpOverload

__all__ = ["makes_view", "viewed", "writes_first"]

aten = torch.ops.aten

_SOMETIMES = (aten._unsafe_view.default, aten.reshape.default, aten.contiguous.default)
"""Operations that may return their operand's memory though their schema does not say so."""


@functools.cache
def makes_view(target: Any) -> bool:
    """Whether what a call of ``target`` returns may share memory with an operand; so it is taken of non-operators."""
    if not isinstance(target, OpOverload):
        return True
    return target in _SOMETIMES or any(result.alias_info is not None for result in target._schema.returns)


def viewed(node: Node) -> Node:
    """The node whose memory views, by their schemas, make ``node`` of; ``node`` itself if it is no view."""
    while isinstance(node.target, OpOverload) or node.target is operator.getitem:
        call = node.args[0] if node.target is operator.getitem else node
        if not (isinstance(call, Node) and isinstance(call.target, OpOverload) and call.args):
            break
        base = call.args[0]
        if not isinstance(base, Node) or all(result.alias_info is None for result in call.target._schema.returns):
            break
        node = base
    return node


_INPLACE = {getattr(operator, f"i{name}") for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")}
_INPLACE |= {getattr(operator, f"i{name}") for name in ("and", "or", "xor", "lshift", "rshift", "matmul", "concat")}
_INPLACE.add(operator.setitem)
_KEYWORDS = {operator.and_, operator.or_, operator.not_, operator.is_}
"""Functions whose names end in an underscore since they would be keywords."""


def _place_of_inplace(target: Any) -> int | None:
    """Which positional argument of a Python function is called "inplace"."""
    code = getattr(target, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    return names.index("inplace") if "inplace" in names else None


def writes_first(node: Node) -> bool:
    """Whether a captured call, by its name or arguments, writes to its first operand."""
    if node.kwargs.get("inplace"):
        return True
    place = _place_of_inplace(node.target)
    if place is not None and len(node.args) > place and node.args[place]:
        return True
    if node.target in _INPLACE:
        return True
    if node.target in _KEYWORDS:
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"
