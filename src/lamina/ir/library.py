"""Facts about ATen operations that planning and host code rest on: who can write into given memory, who may alias."""

from __future__ import annotations

from typing import Any

import torch

from lamina.base.namespaces import BUILT_IN
from lamina.base.torch_private import schema_of
from lamina.base.user_kernels import is_user_kernel, user_kernel
from lamina.ops import OPERATIONS
from lamina.ops.aliasing import makes_view

__all__ = [
    "OUT_VARIANTS",
    "QUICK_CALLS",
    "first_factor",
    "has_effect",
    "is_custom",
    "may_alias",
    "overload",
    "unrecordable",
]

QUICK_CALLS: dict[str, str] = {row.overload: f"torch.{row.name}" for row in OPERATIONS.values() if row.quick}
"""Python functions that reach the same kernel as the overload with less work on the way (2.0 us for 4.5 us of mm)."""

OUT_VARIANTS: dict[str, str] = {
    row.overload: QUICK_CALLS.get(row.overload, f"torch.ops.{row.overload.removesuffix('default')}out")
    for row in OPERATIONS.values()
    if row.out
}
"""Operations that write their one result into memory given as ``out=`` at no extra cost, with any dense strides."""


def overload(op: str) -> Any:
    """The operation called ``op``, for example "aten.mm.default", or a user's kernel. ``AttributeError`` if none."""
    if is_user_kernel(op):
        return user_kernel(op)
    namespace, name, which = op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), which)


def is_custom(op: str) -> bool:
    """Whether ``op`` is an operation that neither torch nor Lamina defines."""
    return op.split(".")[0] not in BUILT_IN and not is_user_kernel(op)


def may_alias(op: str) -> bool:
    """Whether a result of ``op`` may share memory with an argument, so that the argument must live as long."""
    if is_user_kernel(op):
        return False
    return makes_view(overload(op))


def first_factor(op: str) -> int | None:
    """The position of the first factor of a matrix product among its arguments; ``None`` of anything else."""
    row = OPERATIONS.get(op)
    return None if row is None else row.factors


def has_effect(op: str) -> bool:
    """Whether ``op`` draws from the random generator, or only checks something: such calls keep their order."""
    if is_user_kernel(op):
        return False
    found = overload(op)
    return torch.Tag.nondeterministic_seeded in found.tags or not schema_of(found).returns or "assert" in op


def unrecordable(op: str) -> bool:
    """Whether the author of ``op`` says that it must not be part of a CUDA graph."""
    return torch.Tag.cudagraph_unsafe in overload(op).tags
