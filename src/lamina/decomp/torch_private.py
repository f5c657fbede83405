"""Every private torch name that decomposition uses, with the versions it was read in (2.11 to 2.13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._decomp import decomposition_table
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import get_proxy_mode

__all__ = ["current_trace", "torch_decompositions"]


def torch_decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """Torch's decompositions of operations with autograd's formulas already applied, by overload."""
    return {op: rule for op, rule in decomposition_table.items() if isinstance(op, OpOverload)}


def current_trace() -> object | None:
    """The tracer that is recording operations in this thread; one object for each graph being traced."""
    mode = get_proxy_mode()
    return None if mode is None else mode.tracer
