"""Every private torch name that lowering uses, with the versions it was read in (2.11 to 2.13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import sympy
import torch
from torch._higher_order_ops.auto_functionalize import (
    AliasViewInfo,
    AsStridedViewInfo,
    NotView,
    SliceViewInfo,
    get_mutable_args,
    read_view_information_from_args,
)
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._python_dispatch import _disable_current_modes

__all__ = [
    "AliasViewInfo",
    "AsStridedViewInfo",
    "NotView",
    "SliceViewInfo",
    "computed",
    "elements_of",
    "is_one",
    "lowest",
    "triton_constants",
    "triton_kernel",
    "written_views",
]


def elements_of(tensor: torch.Tensor) -> Any:
    """The numbers of a real tensor, nested as ``tolist`` does, wherever it is and whatever mode is active around us."""
    with _disable_current_modes():
        return tensor.tolist()


def computed(function: Callable[[], torch.Tensor]) -> Any:
    """The numbers of what a function computes of real tensors, whatever mode is active around us."""
    with _disable_current_modes():
        return function().tolist()


_ONES: WeakKeyDictionary[Any, dict[Any, bool]] = WeakKeyDictionary()
"""By environment of symbols."""


def is_one(e: sympy.Expr, env: Any) -> bool:
    """Whether an integer that is no symbol alone is known to be 1: by a guard, say, that tracing a broadcast left.

    The answer is kept, so that an integer stays the same when its environment learns more about it.
    """
    known = _ONES.setdefault(env, {})
    if e not in known:
        known[e] = not isinstance(e, sympy.Symbol) and statically_known_true(env.create_symboolnode(sympy.Eq(e, 1)))
    return known[e]


_LOWEST: WeakKeyDictionary[Any, dict[sympy.Symbol, int | None]] = WeakKeyDictionary()
"""By environment of symbols."""


def lowest(symbol: sympy.Symbol, env: Any) -> int | None:
    """The least value of a symbol that its environment proves; ``None`` where there is none, 1 for any above that.

    A negative bound counts as none: such integers are divided and compared with care whatever it is. The answer is
    kept, so that a symbol stays the same when its environment learns more about it.
    """
    known = _LOWEST.setdefault(env, {})
    if symbol not in known:
        bounds = env.var_to_range.get(symbol)
        low = bounds.lower if bounds is not None else None
        proved = int(low) if isinstance(low, sympy.Integer) else None
        if symbol.is_positive:
            proved = 1
        known[symbol] = None if proved is None or proved < 0 else min(proved, 1)
    return known[symbol]


def triton_kernel(index: int) -> Any:
    """The Triton kernel a captured call refers to by number: a ``JITFunction`` or an ``Autotuner``."""
    return kernel_side_table.get_kernel(index)


def triton_constants(index: int) -> dict[str, Any]:
    """The arguments of a captured launch that are not part of the graph."""
    return dict(kernel_side_table.get_constant_args(index))


def written_views(op: torch._ops.OpOverload, arguments: dict[str, Any]) -> dict[str, Any]:
    """For each argument that ``op`` writes to, what part of which base it is: a ``...ViewInfo``, a list of them, None.

    The description is taken out of ``arguments``.
    """
    names, types = get_mutable_args(op)
    found: dict[str, Any] = read_view_information_from_args(names, types, arguments, [])
    return found
