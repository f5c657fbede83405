"""Native functions: which of them function modes see, and which calls of those may run the user's code."""

from __future__ import annotations

from functools import cache, partial
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import torch

from lamina.capture.own.callbacks import CONTAINERS, FUNCTIONS, asks, method_asks
from lamina.capture.own.torch_private import STATE_QUERIES, overridable

__all__ = ["CONSUMERS", "KEEPING", "is_of_container", "is_seen", "runs_the_users", "seen_by_modes", "unbound"]

_MAKERS = frozenset(
    map(id, (*CONTAINERS, enumerate, zip, map, filter, reversed, super, object, type, property, partial, BaseException))
)
_LAZY = frozenset(map(id, (map, filter, zip, enumerate)))
_PURE = frozenset(
    map(
        id,
        (
            abs, all, any, callable, chr, divmod, format, hash, id, isinstance, issubclass, iter, len, max,
            min, next, ord, pow, print, range, repr, round, sorted, sum,
        ),
    )
)  # fmt: skip
"""Builtins that only ask their arguments, which function modes see where they are tensors."""
CONSUMERS = frozenset(map(id, (list, tuple, set, frozenset, sum, any, all, max, min, sorted)))
"""Builtins that take the values of iterables one by one."""

KEEPING = frozenset(map(id, (list, tuple)))
"""Those of them that ask nothing of the values."""


@cache
def seen_by_modes() -> frozenset[int]:
    """Identities of the functions of torch's that function modes see."""
    return overridable()


def is_seen(function: Any) -> bool:
    """Whether function modes see what ``function`` does with tensors, and it does nothing else that matters."""
    kind = type(function)
    if id(function) in _PURE or id(function) in _MAKERS:
        return True
    if kind is FunctionType:
        return "handle_torch_function" in function.__code__.co_names or function in STATE_QUERIES
    if kind is BuiltinFunctionType or kind is MethodWrapperType:
        return _is_seen_builtin(function)
    if kind is MethodDescriptorType:
        return function.__objclass__ in CONTAINERS or id(function) in seen_by_modes()
    return False


def unbound(function: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """A call without the object of a method of tensors that is written in Python; other calls as they are."""
    if type(function) is MethodType and isinstance(function.__self__, torch.Tensor) and is_seen(function.__func__):
        return function.__func__, (function.__self__, *args)
    return function, args


def _is_seen_builtin(function: Any) -> bool:
    owner = function.__self__
    if isinstance(owner, torch.Tensor):
        return True
    if type(owner) in CONTAINERS or any(owner is kind for kind in (dict, list, str)):
        return True
    if isinstance(owner, ModuleType) and owner.__name__ in ("math", "_operator"):
        return True
    if type(function) is MethodWrapperType and function.__name__ == "__init__" and function.__objclass__ is object:
        return True
    return function in STATE_QUERIES or id(function) in seen_by_modes() or function is object.__new__


def runs_the_users(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function that modes see may run the user's code by its arguments."""
    values = (*args, *kwargs.values())
    kind = type(function)
    if function is partial:
        return False
    if id(function) in _LAZY:
        return asks(iter, values[1:])
    if kind in (BuiltinFunctionType, MethodWrapperType) and type(function.__self__) in CONTAINERS:
        return method_asks(function.__self__, function.__name__, args, kwargs)
    if kind is MethodDescriptorType and function.__objclass__ in CONTAINERS and args:
        return method_asks(args[0], function.__name__, args[1:], kwargs)
    if not {*map(type, values)}.isdisjoint(FUNCTIONS):
        return True
    return (id(function) in _PURE or id(function) in _MAKERS) and asks(function, values)


def is_of_container(function: Any) -> bool:
    """Whether a function is a method of a built-in container, which may change it."""
    if type(function) is MethodDescriptorType:
        return function.__objclass__ in CONTAINERS
    return type(function) is BuiltinFunctionType and type(function.__self__) in CONTAINERS
