"""Where a result of a half type is rounded to it, though kernels compute in float32.

With numerics "fast" a value of bfloat16 or float16 is one of float32 inside a kernel. What a program shows of the
rounding itself is kept.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from lamina.base.dtypes import dtype_of
from lamina.lower.context import Lowering
from lamina.lower.values import TensorValue
from lamina.ops import row_of
from lamina.ops.row import ATTENTION, GATHER, PRODUCT, VIEW

__all__ = ["rounded_before_casts", "rounded_to_half", "rounds_on_purpose"]

_CASTS = (torch.ops.aten._to_copy.default, torch.ops.prims.convert_element_type.default)
_OTHER = {torch.bfloat16: torch.float16, torch.float16: torch.bfloat16}


def rounded_to_half(low: Lowering, node: Node, x: TensorValue) -> TensorValue:
    """``x`` in the half type of the node's result, rounded: something behind the cast keeps it."""
    half = dtype_of(node.meta["val"].dtype)
    return low.into(node, low.result(node), lambda v: v.to(half).op("maximum", v.to(half)), x, dtype=x.dtype)


def rounded_before_casts(low: Lowering, node: Node, value: object) -> object:
    """What a node gives, rounded to its half type if it is cast to the other one and may be compared with that.

    ``y - y.half()`` of a ``y`` in bfloat16 is what float16 does not hold of it, mostly 0: not what bfloat16 does not.
    """
    if not isinstance(value, TensorValue) or low.numerics != "fast" or not _is_computed(node):
        return value
    return rounded_to_half(low, node, value) if _is_cast_to_the_other(node) else value


def _is_computed(node: Node) -> bool:
    val, row = node.meta.get("val"), row_of(node.target)
    made = isinstance(val, torch.Tensor) and val.dtype in _OTHER and row is not None
    return made and not (row is not None and (row.exact or row.kind in (VIEW, GATHER, PRODUCT, ATTENTION)))


def _is_cast_to_the_other(node: Node) -> bool:
    """Whether a result of one half type is cast to the other, by way of a wider one, views and signs or not."""
    other = _OTHER[node.meta["val"].dtype]
    stack, seen = list(node.users), set(node.users)
    while stack:
        user = stack.pop()
        row, val = row_of(user.target), user.meta.get("val")
        made = val.dtype if isinstance(val, torch.Tensor) and user.target in _CASTS else None
        if made == other:
            return True
        carries = row is not None and (row.exact or row.kind in (VIEW, GATHER))
        if made in (torch.float32, torch.float64) or carries:
            stack += user.users.keys() - seen
            seen.update(user.users)
    return False


def rounds_on_purpose(node: Node) -> bool:
    """Whether somebody can see that the program itself rounds to a half type, to which a kernel does not by itself.

    It is seen by what reads the result as another type, ``x - x.bfloat16().float()``, or by steps; what float16 does
    not hold is infinite or zero, which anything sees.
    """
    made, given = node.meta["val"].dtype, node.args[0].meta["val"].dtype  # type: ignore[union-attr]
    if made not in _OTHER or (given.is_floating_point and given not in (torch.float32, _OTHER[made])):
        return False
    readers = _readers(node)
    if made == torch.float16 and readers:
        return True
    return any(_is_step(user) or _dtypes(user) != {made} for user in readers)


_STEPS = frozenset(str.split("ceil floor floor_divide fmod frac heaviside remainder round sgn sign trunc"))


def _readers(node: Node) -> list[Node]:
    """The calls that compute with a result or with elements of it, without products, which read it from memory."""
    found: list[Node] = []
    seen = set(node.users)
    stack = list(seen)
    while stack:
        user = stack.pop()
        row = row_of(user.target)
        carries = row is not None and (row.elements or row.exact or row.kind in (VIEW, GATHER))
        if carries and _dtypes(user) == {node.meta["val"].dtype}:
            stack += user.users.keys() - seen
            seen.update(user.users)
        elif user.op != "output" and (row is None or row.kind not in (PRODUCT, ATTENTION)):
            found.append(user)
    return found


def _is_step(node: Node) -> bool:
    row = row_of(node.target)
    return row is not None and row.name in _STEPS


def _dtypes(node: Node) -> set[torch.dtype]:
    """The dtypes of a call's results, and those of its operands that are floats."""
    made = node.meta.get("val")
    results = [made] if isinstance(made, torch.Tensor) else list(made) if isinstance(made, (tuple, list)) else []
    operands = [n.meta.get("val") for n in node.all_input_nodes]
    floats = [v for v in operands if isinstance(v, torch.Tensor) and v.is_floating_point()]
    return {value.dtype for value in (*results, *floats) if isinstance(value, torch.Tensor)}
