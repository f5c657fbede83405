"""The compile functions that programs are run with, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from lamina.compile import compile
from lamina.errors import BadArgument

__all__ = ["LAMINA", "compile_function", "is_lamina"]

LAMINA = "lamina"
"""Lamina's own: C++ kernels. "lamina:BACKEND" names another of its backends, such as its interpreter "interp"."""


def is_lamina(name: str) -> bool:
    """Whether the compile function takes Lamina's options."""
    return name.partition(":")[0] == LAMINA


def compile_function(name: str) -> Callable[..., Any]:
    """``none`` leaves functions as they are, ``lamina`` and ``lamina:BACKEND`` compile with Lamina, strictly.

    Any other name is a backend of torch.compile. Raises ``BadArgument`` for a name that is none of them.
    """
    if name == "none":
        return _unchanged
    family, _, backend = name.partition(":")
    if family == LAMINA:
        made = partial(_with_lamina, backend or LAMINA)
        made(abs)
        return made
    if name not in torch.compiler.list_backends(exclude_tags=()):
        known = ", ".join(torch.compiler.list_backends(exclude_tags=()))
        raise BadArgument(f"there is no compile function {name!r}", remedy=f"use none, lamina, lamina:interp, {known}")
    return partial(_with_torch, name)


def _unchanged(function: Any = None, **_: Any) -> Any:
    return function


def _with_lamina(backend: str, function: Any, *, options: Mapping[str, Any] | None = None, **keywords: Any) -> Any:
    return compile(
        function, backend=backend, options={"progress": False, "strict": True, **(options or {})}, **keywords
    )


def _with_torch(backend: str, function: Any, *, options: Mapping[str, Any] | None = None, **keywords: Any) -> Any:
    return torch.compile(function, backend=backend, **keywords)
