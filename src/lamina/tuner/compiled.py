"""Modules that the user has compiled: what they were before, and their calls with something around them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from lamina.capture.module import calls_through, is_transparent
from lamina.testing.runs import uncompiled
from lamina.tuner.parts import modules_in, replaced
from lamina.tuner.torch_private import as_called, calls_in_place_through, compiled_in_place

__all__ = ["before_compiled", "through"]

Call = Callable[..., Any]


def before_compiled(model: Call) -> tuple[Call, list[str]]:
    """The model as it was before it or modules that it holds were compiled, which shares all else with it, and the
    paths of those that were: "" is the model.

    A function that was compiled where it is defined stays as it is: processes find it by its name.
    """
    found: dict[str, None] = {}
    if not isinstance(model, nn.Module) and uncompiled(model) is not model and not _is_found_by_name(model):
        model, found = uncompiled(model), {"": None}
    while held := {path: m for path, m in modules_in(model).items() if _plain(m) is not m}:
        found |= dict.fromkeys(held)
        model = replaced(model, {id(m): _plain(m) for m in held.values()})
    return model, [*found]


def through(module: nn.Module, around: Callable[[Call], Call]) -> AbstractContextManager[None] | None:
    """Within it, calls of a module that is compiled go through what ``around`` makes of its compiled call.

    None for a module whose hooks are called outside of compiled code.
    """
    if is_transparent(module):
        return calls_through(module, around)
    return calls_in_place_through(module, around) if compiled_in_place(module) else None


def _plain(module: nn.Module) -> nn.Module:
    found: Any = uncompiled(module)
    return as_called(found) if compiled_in_place(found) else found


def _is_found_by_name(function: Any) -> bool:
    found: Any = sys.modules.get(getattr(function, "__module__", ""))
    for name in getattr(function, "__qualname__", "").split("."):
        found = getattr(found, name, None)
    return found is function
