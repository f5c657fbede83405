"""Which objects have Python code that a native function runs when it looks at them."""

from __future__ import annotations

import gc
import itertools
import operator
import os
from abc import ABCMeta
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from enum import EnumMeta
from functools import partial
from types import (
    BuiltinFunctionType,
    EllipsisType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    NoneType,
    NotImplementedType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np
import torch

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.capture.own.frame import MISSING
from lamina.capture.own.machine import is_generator_of_machine
from lamina.capture.own.pending import Pending

__all__ = ["CONTAINERS", "FUNCTIONS", "ITEM_VIEWS", "KEYS", "asks", "calls_back", "is_lazy", "is_stored", "method_asks"]

CONTAINERS = (
    list, tuple, dict, set, frozenset, str, bytes, int, float, bool, complex, range, slice, deque, OrderedDict,
    defaultdict,
)  # fmt: skip
"""Built-in classes whose methods change nothing but the object, and call nothing but what it or an argument holds."""

FUNCTIONS = frozenset((FunctionType, MethodType, partial, map, filter))
"""Classes of arguments by which a native function may call the user's code."""

_IMMUTABLE = MADE_BY_PYTHON >> 1
"""Py_TPFLAGS_IMMUTABLETYPE of CPython's object.h."""
_LIBRARIES = ("torch", "numpy")
"""Modules whose classes of C's run no code of the user's for an operator."""
_ARRAYS = (np.ndarray, np.flatiter)
"""Classes of theirs whose memory may be that of a tensor, which what is recorded reads or writes to."""
_OURS = os.path.dirname(__file__) + os.sep
_NUMBERS = (int, float, bool, complex, str, bytes, range, slice, NoneType, EllipsisType, NotImplementedType)
_TENSORS = (Pending, torch.Tensor, torch.nn.Parameter, torch.Size, torch.dtype, torch.device, torch.layout)
_NATIVE = (
    ModuleType, FunctionType, MethodType, BuiltinFunctionType, MethodDescriptorType, MethodWrapperType,
    WrapperDescriptorType, GetSetDescriptorType, MemberDescriptorType, partial, property, super, type, object,
)  # fmt: skip
_COUNTERS = (itertools.count, itertools.repeat, itertools.product, itertools.combinations, itertools.permutations)
_QUIET = frozenset((*_NUMBERS, *_TENSORS, *_NATIVE, *_COUNTERS, type(MISSING)))
"""Classes whose instances run no code of Python's where a native function compares, prints, hashes or iterates them."""

_HOLDERS = frozenset((list, tuple, set, frozenset, deque, dict, OrderedDict, defaultdict))
_VIEWS: tuple[type, ...] = tuple(
    type(view)
    for made in (dict[Any, Any](), OrderedDict[Any, Any]())
    for view in (made.keys(), made.values(), made.items())
)
ITEM_VIEWS = (type(dict[Any, Any]().items()), type(OrderedDict[Any, Any]().items()))
_MAPPINGS = (dict, OrderedDict, defaultdict)
_ITERATORS = frozenset(
    map(
        type,
        (
            iter([]), iter(()), iter(range(0)), iter(range(1 << 70)), iter(""), iter(b""), iter(set()), iter({}),
            iter({}.values()), iter({}.items()), reversed([]), reversed({}), reversed({}.values()),
            reversed({}.items()), iter(deque()), iter(OrderedDict()), iter(OrderedDict().items()),
        ),
    )
)  # fmt: skip
"""Iterators of built-in containers: to take from one runs nothing."""

_CLASSES = frozenset((type, ABCMeta, EnumMeta, type(torch.Tensor), type(torch.nn.Parameter)))
"""Classes of classes that run no code of the user's."""

_INERT = frozenset(
    (
        "__init__", "__new__", "__getattr__", "__getattribute__", "__setattr__", "__delattr__", "__call__", "__dir__",
        "__init_subclass__", "__class_getitem__", "__set_name__", "__enter__", "__exit__", "__prepare__", "__reduce__",
        "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__copy__", "__deepcopy__", "__sizeof__",
        "__post_init__", "__get__", "__set__", "__delete__", "__replace__", "__annotate__", "__annotate_func__",
    )
)  # fmt: skip
"""Special methods that no operator and no built-in function calls but for attributes, calls and copies."""

KEYS = frozenset(("__hash__", "__eq__"))
"""What a dictionary asks of a key."""
_ITEMS = KEYS | {"__getitem__", "__setitem__", "__delitem__", "__missing__", "__index__", "__len__"}
_ASKED: dict[Callable[..., Any], frozenset[str]] = {
    iter: frozenset(("__iter__", "__getitem__")),
    len: frozenset(("__len__",)),
    operator.truth: frozenset(("__bool__", "__len__")),
    operator.not_: frozenset(("__bool__", "__len__")),
    bool: frozenset(("__bool__", "__len__")),
    operator.getitem: _ITEMS,
    operator.setitem: _ITEMS,
    operator.delitem: _ITEMS,
    set.add: _ITEMS,
    callable: frozenset(),
    id: frozenset(),
    type: frozenset(),
    super: frozenset(),
    property: frozenset(),
    map: frozenset(("__iter__", "__getitem__")),
    filter: frozenset(("__iter__", "__getitem__")),
    zip: frozenset(("__iter__", "__getitem__")),
    enumerate: frozenset(("__iter__", "__getitem__")),
    isinstance: frozenset(("__class__",)),
    issubclass: frozenset(),
}
"""Functions that ask what they are given itself, and nothing that a built-in container holds, with what they ask."""

_OF_CONTAINERS: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        ("append", "appendleft", "insert", "clear", "copy", "reverse", "popleft", "popitem", "items", "keys", "values"),
        frozenset(),
    ),
    **dict.fromkeys(("get", "pop", "setdefault", "add", "discard", "__contains__", "move_to_end"), KEYS),
}
"""Methods of built-in containers that ask nothing of what those hold, with what they ask of their first argument."""


_HASHING = (*_MAPPINGS, set, frozenset)
_OF_KEYS = (operator.setitem, operator.delitem, operator.getitem, set.add)


def asks(function: Callable[..., Any], values: Sequence[Any]) -> bool:
    """Whether a built-in function or operator may run code of Python's that its operands ``values`` have."""
    if function is dict.update and all(type(value) in _MAPPINGS for value in values):
        return any(calls_back(key, KEYS) for mapping in values for key in mapping)
    if function is dict and len(values) == 1 and type(values[0]) in ITEM_VIEWS:
        return any(calls_back(key, KEYS) for key, _ in values[0])
    if function is operator.contains and _hashes(type(values[0])):
        return calls_back(values[1], KEYS)
    names = _ASKED.get(function) if _is_hashable(function) else None
    if names is None:
        return any(type(value) not in _QUIET and calls_back(value) for value in values)
    if function in _OF_KEYS:
        return _itself(values[0], names) or calls_back(values[1], KEYS)
    return any(_itself(value, names) for value in values)


def _hashes(kind: type) -> bool:
    """Whether ``in`` of an object of a class asks the key alone, as that of dictionaries and sets does."""
    if kind in _HASHING:
        return True
    entries = (vars(base)["__contains__"] for base in kind.__mro__ if "__contains__" in vars(base))
    return issubclass(kind, _HASHING) and getattr(next(entries), "__objclass__", None) in _HASHING


def method_asks(owner: Any, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a method of a built-in container may run code of Python's that its arguments, or ``owner`` holds."""
    names = _OF_CONTAINERS.get(name)
    if names is None:
        values = (*args, *kwargs.values())
        return calls_back(owner) or not FUNCTIONS.isdisjoint(map(type, values)) or any(map(calls_back, values))
    if name == "pop" and type(owner) is list:
        return False
    return bool(names) and bool(args) and calls_back(args[0], names)


def _is_hashable(function: Any) -> bool:
    return type(function) in (BuiltinFunctionType, MethodDescriptorType, type)


def _itself(value: Any, names: frozenset[str]) -> bool:
    """Whether a function that asks ``value`` for its special methods ``names`` runs code of Python's."""
    kind = type(value)
    if kind is MappingProxyType:
        return any(_itself(held, names) for held in gc.get_referents(value))
    if kind is defaultdict:
        return "__missing__" in names
    if kind in _QUIET or kind in _HOLDERS or kind in _VIEWS or kind in _ITERATORS:
        return False
    if kind in (map, filter, zip, enumerate, GeneratorType):
        return False
    if issubclass(type(value), type):
        return kind not in _CLASSES
    if _is_of_python(kind):
        return _has_special_methods(kind, names)
    return not kind.__module__.startswith(_LIBRARIES) or issubclass(kind, _ARRAYS)


def calls_back(value: Any, names: frozenset[str] | None = None) -> bool:
    """Whether a native function that looks at ``value``, and at what it holds, may run code of Python's.

    With ``names``, only special methods of these names count.
    """
    waiting, seen = [value], {id(value)}
    while waiting:
        value = waiting.pop()
        if type(value) in _QUIET:
            continue
        parts = _parts(value)
        if parts is None:
            if _has_code(value, names):
                return True
            continue
        new = [part for part in parts if type(part) not in _QUIET and id(part) not in seen]
        seen.update(map(id, new))
        waiting.extend(new)
    return False


def _parts(value: Any) -> Iterable[Any] | None:
    """What a built-in container or iterator holds; None if ``value`` is neither."""
    kind = type(value)
    if kind in _ITERATORS:
        return ()
    if kind in _MAPPINGS:
        return (*value.keys(), *value.values())
    if kind in _HOLDERS or kind in _VIEWS:
        return value  # type: ignore[no-any-return]
    if kind is zip or kind is enumerate:
        return value.__reduce__()[1]  # type: ignore[no-any-return]
    return gc.get_referents(value) if kind is MappingProxyType else None


def _has_code(value: Any, names: frozenset[str] | None) -> bool:
    """Whether the class of ``value``, which is no built-in container, has code of Python's for a native function."""
    kind = type(value)
    if kind is GeneratorType:
        return not (is_generator_of_machine(value) or value.gi_code.co_filename.startswith(_OURS))
    if issubclass(type(value), type):
        return kind not in _CLASSES
    if not _is_of_python(kind):
        return not kind.__module__.startswith(_LIBRARIES) or issubclass(kind, _ARRAYS)
    if _has_special_methods(kind, names):
        return True
    held: Any = next((base for base in kind.__mro__ if base in _HOLDERS), None)
    if held is None:
        return False
    parts = (*dict.keys(value), *dict.values(value)) if issubclass(held, dict) else held.__iter__(value)
    return any(type(part) not in _QUIET and calls_back(part, names) for part in parts)


def _is_of_python(kind: type) -> bool:
    """Whether a class was made by a ``class`` statement or by ``type``: those of C modules cannot be changed."""
    return bool(kind.__flags__ & MADE_BY_PYTHON) and not kind.__flags__ & _IMMUTABLE


def is_stored(iterator: Any) -> bool:
    """Whether an iterator is one of a built-in container, or counts: to take from it runs nothing of Python's."""
    kind = type(iterator)
    return kind in _ITERATORS or kind in _COUNTERS


def is_lazy(value: Any) -> bool:
    """Whether ``value`` is an iterator that calls functions of Python's as it goes."""
    kind = type(value)
    if kind is map or kind is filter:
        return True
    if kind is zip or kind is enumerate:
        return any(is_lazy(part) for part in value.__reduce__()[1])
    return False


def _has_special_methods(kind: type, names: frozenset[str] | None) -> bool:
    """Whether a class made by Python code has special methods that are functions of Python's."""
    for base in kind.__mro__[:-1]:
        if base.__flags__ & MADE_BY_PYTHON and not _of_library(base):
            for name, found in vars(base).items():
                if (
                    name[:2] == "__"
                    and type(found) is FunctionType
                    and (name not in _INERT if names is None else name in names)
                ):
                    return True
    return False


def _of_library(kind: type) -> bool:
    """Whether a class is one of torch's or of Python's own, whose methods call nothing of the user's by themselves."""
    module = kind.__module__
    return isinstance(module, str) and module.partition(".")[0] in ("torch", "enum", "abc")
