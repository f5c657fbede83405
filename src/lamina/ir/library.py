"""Facts about ATen operations that planning and host code rest on: who can write into given memory, who may alias."""

from __future__ import annotations

from typing import Any

import torch

from lamina.base.product_algorithms import CHOSEN
from lamina.base.user_kernels import is_user_kernel, user_kernel

__all__ = ["OUT_VARIANTS", "QUICK_CALLS", "has_effect", "is_custom", "may_alias", "overload", "unrecordable"]

QUICK_CALLS: dict[str, str] = {
    f"aten.{name}.default": f"torch.{name}"
    for name in ("mm", "bmm", "addmm", "baddbmm", "mv", "dot", "convolution", "native_batch_norm", "native_layer_norm")
}
"""Python functions that reach the same kernel as the overload with less work on the way (2.0 us for 4.5 us of mm)."""

OUT_VARIANTS: dict[str, str] = {
    **{f"aten.{name}.default": f"torch.{name}" for name in ("mm", "bmm", "addmm", "baddbmm")},
    **{op: f"torch.ops.{op.removesuffix('default')}out" for op in CHOSEN.values()},
}
"""Operations that write their one result into memory given as ``out=`` at no extra cost, with any dense strides."""

_MAY_ALIAS = frozenset(
    (
        *("contiguous", "conj", "expand_as", "flatten", "imag", "lift_fresh", "positive", "ravel", "real"),
        *("reshape", "reshape_as", "resolve_conj", "resolve_neg", "to", "type_as", "view_as"),
        *("_unsafe_view", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes"),
    )
)
"""Operations whose results share memory with an argument, always or at times, though their schemas do not say so."""


_BUILT_IN = ("aten", "prims", "prim", "lamina", "mkldnn", "onednn", "quantized", "user")


def overload(op: str) -> Any:
    """The operation called ``op``, for example "aten.mm.default", or a user's kernel. ``AttributeError`` if none."""
    if is_user_kernel(op):
        return user_kernel(op)
    namespace, name, which = op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), which)


def is_custom(op: str) -> bool:
    """Whether ``op`` is an operation that neither torch nor Lamina defines."""
    return op.split(".")[0] not in _BUILT_IN


def may_alias(op: str) -> bool:
    """Whether a result of ``op`` may share memory with an argument, so that the argument must live as long."""
    if is_user_kernel(op):
        return False
    return op.split(".")[1] in _MAY_ALIAS or bool(overload(op).is_view)


def has_effect(op: str) -> bool:
    """Whether ``op`` draws from the random generator, or only checks something: such calls keep their order."""
    if is_user_kernel(op):
        return False
    found = overload(op)
    return torch.Tag.nondeterministic_seeded in found.tags or not found._schema.returns or "assert" in op


def unrecordable(op: str) -> bool:
    """Whether the author of ``op`` says that it must not be part of a CUDA graph."""
    return torch.Tag.cudagraph_unsafe in overload(op).tags
