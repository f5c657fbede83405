"""Whether the end of an object is noticed: by a ``__del__``, a proxy, a function of a weak reference, or one asked."""

from __future__ import annotations

import gc
import logging
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

__all__ = ["holds_nothing", "is_noticed", "values_replaced"]

_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, type, types.ModuleType, types.CodeType),
    *(types.BuiltinFunctionType, torch.Tensor, torch.dtype, torch.device, torch.Size, logging.Logger, logging.Handler),
)
"""Classes of values that hold nothing whose end a program notices, or, as classes of objects, hardly ever end."""


def holds_nothing(value: object) -> bool:
    """Whether a value is of a class that says so."""
    return isinstance(value, _PLAIN)


def is_noticed(values: Iterable[object], references_asked: bool, within_modules: bool = True) -> bool:
    """Whether the end of any of these, or of what they hold, runs something or is told to a weak reference.

    Such a reference matters if it has a function of its own to call, or if the program asks references
    (``references_asked``). What modules hold is looked at ``within_modules`` only: of a model that takes milliseconds,
    and models hardly ever end while they run.
    """
    return any(_notices(value, references_asked) for value in _held(values, within_modules))


def _held(values: Iterable[object], within_modules: bool) -> Iterator[object]:
    """These and what they hold, but for what belongs to others: what is global to functions, and classes."""
    left, seen = list(values), set()
    while left:
        value = left.pop()
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, torch.nn.Module) and not within_modules:
            continue
        if isinstance(value, types.FunctionType):
            left += [value.__closure__, value.__defaults__, value.__kwdefaults__]
        else:
            left += gc.get_referents(value)


def _notices(value: object, references_asked: bool) -> bool:
    if isinstance(getattr(type(value), "__del__", None), types.FunctionType):  # those of files are C's
        return True
    if isinstance(value, (torch.nn.Module, types.FunctionType)):  # torch's own tables refer to these
        return False
    return any(references_asked or _is_told(one) for one in weakref.getweakrefs(value))


def _is_told(reference: Any) -> bool:
    """Whether a weak reference is a proxy, or calls a function that is not torch's when its object ends."""
    if isinstance(reference, weakref.ProxyTypes):
        return True
    function = reference.__callback__
    if isinstance(function, weakref.finalize):
        held = function.peek()
        function = None if held is None else held[1]
    while (inner := getattr(function, "func", None)) is not None:
        function = inner
    return function is not None and not str(getattr(function, "__module__", "")).startswith("torch.")


def values_replaced(item: Any, names: Iterable[str] | None) -> list[object]:
    """What ``item`` holds that may end if its attributes of these ``names`` change, or all of it (None)."""
    attributes = getattr(item, "__dict__", None)
    if names is None or isinstance(item, types.CellType) or type(attributes) is not dict:
        return gc.get_referents(item)
    slots = [name for name in names if isinstance(getattr(type(item), name, None), types.MemberDescriptorType)]
    return [*(attributes.get(name) for name in names), *(getattr(item, name, None) for name in slots)]
