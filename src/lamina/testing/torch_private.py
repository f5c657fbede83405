"""The private torch names that verifying a program takes (2.11 to 2.13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch._dynamo.config

__all__ = ["compiled_anew", "original"]

_MANY = 1 << 20
"""Recompilations that no program reaches: Dynamo's limit must not end a comparison."""


def compiled_anew() -> Any:
    """A context in which one function may be compiled any number of times."""
    return torch._dynamo.config.patch(recompile_limit=_MANY, accumulated_recompile_limit=_MANY)


def original(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a compiled function or module was made of; ``function`` itself if it is not compiled."""
    if getattr(function, "_torchdynamo_disable", False):
        return function
    found = getattr(function, "_orig_mod", None)
    if found is None:
        found = getattr(function, "_torchdynamo_orig_callable", None)
    return function if found is None else found
