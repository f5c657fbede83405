"""Matrix products with one small dimension, which take as long as their operands take to be read."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Node

from lamina.base.devices import kind_of
from lamina.base.symbolic.torch_private import is_true
from lamina.ops.table import row_of

__all__ = ["LONG_SUM", "thin_dimension"]

_THIN = 16
"""Size of the small dimension up to which multiplying float32 element by element hides behind reading it (H200)."""
_ACROSS = 8
"""Size up to which the same holds of sums across memory, each of which takes a thread's registers (H200, 16 sums of
22656 x 472: 79 us, the library 35; of 95480 x 155 216 and 43).
"""
LONG_SUM = 256
"""Elements of a sum that are worth a program, or a part of one."""
_SHARED = 16384
"""Elements of the small factor that sums along rows of the large one may each read: more would not stay in
the first-level cache."""


def thin_dimension(node: Node) -> str | None:
    """The small dimension ("rows", "inner" or "columns") of a product of float32 matrices on a GPU that has one.

    Kernels of our own compute such products; other calls give ``None``.
    """
    row = row_of(node.target)
    if row is None or row.factors is None or node.kwargs or len(node.args) != row.factors + 2:
        return None
    first = row.factors
    values = [n.meta.get("val") for n in node.args[first:] if isinstance(n, Node)]
    factors = [v for v in values if isinstance(v, Tensor) and v.dtype == torch.float32]
    if len(factors) != 2 or factors[0].dim() != 2:
        return None
    (rows, inner), columns = factors[0].shape, factors[1].shape[1]
    if kind_of(factors[0]).host or type(inner) is not int:
        return None
    if 0 < inner <= _THIN:
        return "inner"
    small = {name: n for name, n in (("rows", rows), ("columns", columns)) if type(n) is int and 1 < n <= _THIN}
    if not small or inner < LONG_SUM:
        return None
    found = min(small, key=small.__getitem__)
    large, summed = (factors[0], 1) if found == "columns" else (factors[1], 0)
    step = large.stride(summed)
    along = type(step) is int and step == 1
    if along:
        return None if small[found] * inner > _SHARED else found
    return found if small[found] <= _ACROSS or _is_widened(node.args[first + (found == "rows")]) else None


def _is_widened(node: object) -> bool:
    """Whether a factor is a narrower tensor, converted and perhaps seen otherwise: a kernel reads that one."""
    while isinstance(node, Node) and node.op == "call_function":
        before = next((a for a in node.args if isinstance(a, Node)), None)
        value = None if before is None else before.meta.get("val")
        if not isinstance(value, Tensor) or not is_true(value.numel() == node.meta["val"].numel()):
            return False
        if value.dtype.itemsize < node.meta["val"].dtype.itemsize:
            return True
        node = before
    return False
