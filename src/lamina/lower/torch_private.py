"""Every private torch name that lowering uses, with the versions it was read in (2.11 to 2.13)."""

from __future__ import annotations

from typing import Any

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
from torch.fx.experimental.symbolic_shapes import guard_or_false
from torch.utils._python_dispatch import _disable_current_modes

__all__ = [
    "AliasViewInfo",
    "AsStridedViewInfo",
    "NotView",
    "SliceViewInfo",
    "elements_of",
    "is_positive",
    "triton_constants",
    "triton_kernel",
    "written_views",
]


def elements_of(tensor: torch.Tensor) -> Any:
    """The numbers of a real tensor, nested as ``tolist`` does, wherever it is and whatever mode is active around us."""
    with _disable_current_modes():
        return tensor.tolist()


def is_positive(size: int | torch.SymInt) -> bool:
    """Whether a size is at least one. A symbolic one is then guarded to be so; without a hint it is not known to be."""
    return guard_or_false(size > 0)


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
