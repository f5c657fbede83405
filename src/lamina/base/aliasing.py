"""Which operations give a view of an operand."""

from __future__ import annotations

import functools
from typing import Any

import torch

from lamina.base.torch_private import OpOverload

__all__ = ["makes_view"]

aten = torch.ops.aten

_SOMETIMES = (aten._unsafe_view.default, aten.reshape.default, aten.contiguous.default)
"""Operations that may return their operand's memory though their schema does not say so."""


@functools.cache
def makes_view(target: Any) -> bool:
    """Whether what a call of ``target`` returns may share memory with an operand; so it is taken of non-operators."""
    if not isinstance(target, OpOverload):
        return True
    return target in _SOMETIMES or any(result.alias_info is not None for result in target._schema.returns)
