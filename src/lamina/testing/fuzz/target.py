"""The compile functions that programs are run with, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch

from lamina.compile import compile
from lamina.errors import BadArgument

__all__ = ["LAMINA", "captured_by_torch", "compile_function", "is_lamina"]

LAMINA = "lamina"
"""Lamina's own: C++ kernels. "lamina:BACKEND" names another of its backends, such as its interpreter "interp"."""
_TURNS = "turns"
"""The interpreter, with calls of each graph in turns with eager: ``compare_eager="always"``."""

_KEYWORDS = ("dynamic", "fullgraph")
"""What ``lamina.compile`` takes beside its options."""


def is_lamina(name: str) -> bool:
    """Whether the compile function takes Lamina's options."""
    return name.partition("+")[0].partition(":")[0] == LAMINA


def captured_by_torch(name: str) -> bool:
    """Whether torch.compile's front end captures the programs, not Lamina's own."""
    return not (is_lamina(name) and dict(map(_option, name.split("+")[1:])).get("capture") == "own")


def compile_function(name: str) -> Callable[..., Any]:
    """``none`` leaves functions as they are, ``lamina`` and ``lamina:BACKEND`` compile with Lamina, strictly; under
    ``lamina:turns`` every graph that may be takes its calls in turns with eager.

    ``+name=value`` after those of Lamina's sets an option, or ``dynamic`` or ``fullgraph``, as often as there are such;
    what a program asks for itself goes before.
    ``package.module:function`` is a function like ``torch.compile``; keywords that it has no parameters for are left
    out. Any other name is a backend of torch.compile. Raises ``BadArgument`` for a name that is none of them.
    """
    if name == "none":
        return _unchanged
    name, *options = name.split("+") if is_lamina(name) else (name,)
    family, _, backend = name.partition(":")
    if family == LAMINA:
        turns: dict[str, Any] = {"compare_eager": "always"} if backend == _TURNS else {}
        given = {**turns, **dict(map(_option, options))}
        made = partial(_with_lamina, "interp" if turns else backend or LAMINA, given)
        made(abs)
        return made
    if backend:
        return partial(_with_users, _imported(family, backend))
    if name not in torch.compiler.list_backends(exclude_tags=()):
        known = ", ".join(torch.compiler.list_backends(exclude_tags=()))
        raise BadArgument(
            f"there is no compile function {name!r}",
            remedy=f"use none, lamina, lamina:interp, package.module:function, {known}",
        )
    return partial(_with_torch, name)


def _option(text: str) -> tuple[str, Any]:
    """An option's name and its value: a truth value, a number or a text."""
    name, sign, value = text.partition("=")
    if not sign:
        raise BadArgument(f"{text!r} sets no option", remedy="write name=value")
    return name, {"true": True, "false": False}.get(value, int(value) if value.isdecimal() else value)


def _unchanged(function: Any = None, **_: Any) -> Any:
    return function


def _with_lamina(
    backend: str, more: Mapping[str, Any], function: Any, *, options: Mapping[str, Any] | None = None, **keywords: Any
) -> Any:
    asked = {name: more[name] for name in _KEYWORDS if name in more}
    given = {name: value for name, value in more.items() if name not in _KEYWORDS}
    given = {"progress": False, "strict": True, **given, **(options or {})}
    return compile(function, backend=backend, options=given, **{**asked, **keywords})


def _with_torch(backend: str, function: Any, *, options: Mapping[str, Any] | None = None, **keywords: Any) -> Any:
    return torch.compile(function, backend=backend, **keywords)


def _imported(module: str, path: str) -> Callable[..., Any]:
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as problem:
        raise BadArgument(
            f"there is no compile function {module}:{path}: {problem}", remedy="write package.module:function"
        ) from None
    if not callable(found):
        raise BadArgument(f"{module}:{path} is a {type(found).__name__}", remedy="name a function like torch.compile")
    return found  # type: ignore[no-any-return]


def _with_users(compiler: Callable[..., Any], function: Any, **keywords: Any) -> Any:
    parameters = inspect.signature(compiler).parameters
    return compiler(function, **{name: value for name, value in keywords.items() if name in parameters})
