"""Native functions: which of them function modes see, and which calls of those may run the user's code."""

from __future__ import annotations

import sys
import time
from collections import OrderedDict, deque
from contextvars import ContextVar
from enum import Enum, EnumMeta
from functools import cache, lru_cache, partial
from inspect import signature
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import torch

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.base.torch_private import is_functional
from lamina.capture.own.callbacks import CONTAINERS, FUNCTIONS, KEYS, asks, calls_back, method_asks
from lamina.capture.own.module_init.torch_private import module_to_initialise
from lamina.capture.own.own_methods import is_own_method
from lamina.capture.own.queries.torch_private import (
    DEVICE_QUERIES,
    STATE_QUERIES,
    is_autocast_switch,
    overridable,
)
from lamina.capture.own.torch_private import LAYERS
from lamina.capture.own.training.torch_private import OTHER_BACKEND

__all__ = [
    "CACHED",
    "CLOCK",
    "CONSUMERS",
    "KEEPING",
    "LAZY",
    "SIGNED",
    "is_builtin_error",
    "is_change",
    "is_clock",
    "is_member",
    "is_plain_signature",
    "is_seen",
    "runs_the_users",
    "seen_by_modes",
    "unbound",
    "wrapped_by",
]

_MAKERS = frozenset(
    map(
        id,
        (
            *CONTAINERS,
            torch.finfo,
            torch.iinfo,
            enumerate,
            zip,
            map,
            filter,
            reversed,
            super,
            object,
            type,
            property,
            partial,
            BaseException,
        ),
    )
)
_QUERIES = STATE_QUERIES | DEVICE_QUERIES | {is_own_method, OTHER_BACKEND}
CACHED: Any = type(lru_cache(len))
"""The class of functions that remember what they gave."""
LAZY = frozenset(map(id, (map, filter, zip, enumerate)))
_ONLY_LOOK = frozenset(map(id, (callable, hash, id, isinstance, issubclass, type)))
"""Functions that call nothing that they are given."""
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
    return overridable() | {id(layer) for layer in LAYERS}


def is_seen(function: Any, args: tuple[Any, ...] = ()) -> bool:
    """Whether function modes see what ``function`` does with tensors, and it does nothing else that matters."""
    kind = type(function)
    if kind is EnumMeta or function is signature or module_to_initialise(function, args) is not None:
        return True
    if id(function) in _PURE or id(function) in _MAKERS or is_builtin_error(function):
        return True
    if kind is FunctionType:
        return "handle_torch_function" in function.__code__.co_names or function in _QUERIES
    if kind is BuiltinFunctionType or kind is MethodWrapperType:
        return _is_seen_builtin(function) or is_autocast_switch(function, args)
    if kind is MethodDescriptorType:
        return function.__objclass__ in CONTAINERS or id(function) in seen_by_modes()
    return is_functional(function)


CLOCK = "a reading of the clock"
"""What ends a graph before a clock is read: the program may measure what the graph computes."""


def is_clock(function: Any) -> bool:
    """Whether a function is one of Python's module ``time``, by which the program may tell what has been computed."""
    return type(function) is BuiltinFunctionType and function.__self__ is time


def is_builtin_error(function: Any) -> bool:
    """Whether ``function`` is a class of exceptions of Python's own, which looks at nothing that it is given."""
    return type(function) is type and issubclass(function, BaseException) and function.__module__ == "builtins"


def is_plain_signature(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call asks for the signature of a function or method that has none of its own."""
    if function is not signature or kwargs or len(args) != 1:
        return False
    return bool(wrapped_by(args[0].__func__ if type(args[0]) is MethodType else args[0]))


def wrapped_by(function: Any) -> list[Any]:
    """A function with those that decorators have it stand for, of which the last has the signature; [] if none has."""
    found: list[Any] = []
    while type(function) is FunctionType and SIGNED.isdisjoint(vars(function)) and function not in found:
        found.append(function)
        if "__wrapped__" not in vars(function):
            return found
        function = vars(function)["__wrapped__"]
    return []


SIGNED = frozenset(("__signature__", "__text_signature__", "_partialmethod", "__partialmethod__"))
"""Attributes by which a function has another signature than its code says."""


def is_member(function: Any, value: Any) -> bool:
    """Whether a class of an enumeration finds a member for ``value`` and runs nothing of the user's."""
    entries = vars(function)
    if entries.get("__new__") is not Enum.__new__:
        return False
    known = entries.get("_value2member_map_")
    return type(value) is function or (type(value) in (int, str) and type(known) is dict and value in known)


def unbound(function: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """A call without the object of a method of tensors that is written in Python; other calls as they are."""
    if type(function) is MethodType and isinstance(function.__self__, torch.Tensor) and is_seen(function.__func__):
        return function.__func__, (function.__self__, *args)
    return function, args


_OF_BASES = frozenset(
    (
        "__setitem__", "__delitem__", "__contains__", "__getitem__", "__len__", "__iter__", "get", "keys", "values",
        "items",
    )
)  # fmt: skip
"""Methods of dictionaries that run, for objects of classes of the user's too, nothing but what keys have."""


def _is_of_base(function: Any) -> bool:
    """Whether a method of an object of a subclass of ``dict`` is the dictionary's, and asks for no other."""
    name, owner = function.__name__, function.__self__
    kind = type(owner)
    if kind.__flags__ & MADE_BY_PYTHON and issubclass(kind, dict):
        if name == "__init__":
            return type(function) is MethodWrapperType and function.__objclass__ in (dict, OrderedDict)
        return name in _OF_BASES and not hasattr(kind, "__missing__")
    return False


def _is_seen_builtin(function: Any) -> bool:
    owner = function.__self__
    if isinstance(owner, torch.Tensor):
        return True
    if type(owner) in CONTAINERS or any(owner is kind for kind in (dict, list, str)) or _is_of_base(function):
        return True
    if isinstance(owner, ModuleType) and owner.__name__ in ("math", "_operator", "time"):
        return True
    if type(owner) is ContextVar or function is sys.getrecursionlimit:
        return True
    if type(function) is MethodWrapperType and function.__name__ == "__init__" and function.__objclass__ is object:
        return True
    return function in _QUERIES or id(function) in seen_by_modes() or function is object.__new__


def runs_the_users(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function that modes see may run the user's code by its arguments."""
    values = (*args, *kwargs.values())
    kind = type(function)
    if function is signature:
        return not is_plain_signature(function, args, kwargs)
    if kind is EnumMeta:
        return bool(kwargs) or len(args) != 1 or not is_member(function, args[0])
    if function is partial:
        return False
    if kind is MethodWrapperType and function.__name__ == "__init__" and _is_of_base(function):
        return bool(values)  # which would be set by an overridden ``__setitem__``
    if id(function) in LAZY:
        return asks(iter, values[1:])
    if kind in (BuiltinFunctionType, MethodWrapperType) and _is_of_base(function):
        return any(calls_back(value, KEYS) for value in args[:1])
    if kind in (BuiltinFunctionType, MethodWrapperType) and type(function.__self__) in CONTAINERS:
        return method_asks(function.__self__, function.__name__, args, kwargs)
    if kind is MethodDescriptorType and function.__objclass__ in CONTAINERS and args:
        return method_asks(args[0], function.__name__, args[1:], kwargs)
    if id(function) in _ONLY_LOOK:
        return asks(function, values)
    if not {*map(type, values)}.isdisjoint(FUNCTIONS):
        return True
    return (id(function) in _PURE or id(function) in _MAKERS) and asks(function, values)


_READING = frozenset(
    (
        "get", "keys", "values", "items", "copy", "index", "count", "join", "format", "split",
        "startswith", "endswith", "strip", "lower", "upper", "__contains__", "__getitem__", "__len__", "__iter__",
        "isdisjoint", "issubset", "issuperset", "union", "intersection", "difference",
    )
)  # fmt: skip
"""Methods of built-in containers that change nothing."""


_CHANGING = (dict, list, set, deque)
_IN_PLACE = frozenset(
    (
        "setitem", "delitem", "iadd", "iand", "iconcat", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior",
        "ipow", "irshift", "isub", "itruediv", "ixor",
    )
)  # fmt: skip
"""Functions of ``operator`` that change their first operand."""


def is_change(function: Any, args: tuple[Any, ...]) -> bool:
    """Whether a function that modes see may change a container, an iterator or a context variable, or prints."""
    kind, name = type(function), getattr(function, "__name__", "")
    owner = getattr(function, "__self__", None)
    if function is print or type(owner) is ContextVar:
        return bool(name != "get")
    if any(hasattr(type(value), "__next__") for value in args):
        return True
    if isinstance(owner, ModuleType) and args:
        return isinstance(args[0], _CHANGING) and (name in _IN_PLACE or (name == "getitem" and _makes_items(args[0])))
    if kind is MethodDescriptorType:
        owner = args[0] if args else None
    if name in _READING:
        return name == "__getitem__" and _makes_items(owner)
    if kind is MethodWrapperType:
        return isinstance(owner, _CHANGING)
    if kind is MethodDescriptorType:
        return function.__objclass__ in CONTAINERS
    return kind is BuiltinFunctionType and type(owner) in CONTAINERS


def _makes_items(owner: Any) -> bool:
    """Whether a mapping may get a value for a key that it is asked for."""
    return isinstance(owner, dict) and hasattr(type(owner), "__missing__")
