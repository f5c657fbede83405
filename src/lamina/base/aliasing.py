"""Which captured calls write to an operand."""

from __future__ import annotations

import operator
from typing import Any

from torch.fx import Node

__all__ = ["writes_first"]

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
