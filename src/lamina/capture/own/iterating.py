"""Iterators that call functions of the user's as they go, advanced with those functions interpreted."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import FunctionType, GeneratorType
from typing import Any, Protocol

import torch

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.capture.own.callbacks import calls_back, is_lazy, is_stored
from lamina.capture.own.frame import MISSING
from lamina.capture.own.machine import is_generator_of_machine

__all__ = ["advance", "advanced", "by_key", "consumable", "drawn", "is_by_key", "is_drawn", "iterators", "reduced"]


class _Operating(Protocol):
    def looked_up(self, kind: type, name: str) -> Any: ...
    def operate(self, function: Callable[..., Any], *operands: Any) -> Any: ...


class _World(_Operating, Protocol):
    interpret: Callable[..., Any]

    def natively(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


def advanced(world: _World, iterator: Any) -> Any:
    """The next value of an iterator; ``MISSING`` at its end."""
    try:
        return advance(world, iterator, MISSING)
    except StopIteration:
        return MISSING


def advance(world: _World, iterator: Any, *default: Any) -> Any:
    """The next value of an iterator. At its end, what it raises, which has what a generator returned; or a default."""
    kind = type(iterator)
    if is_stored(iterator) or (kind is GeneratorType and is_drawn(iterator)):
        return next(iterator, *default)
    if kind in _STEPS and not (kind is zip and len(iterator.__reduce__()) > 2):
        value = _STEPS[kind](world, iterator)
        if value is MISSING:
            raise StopIteration
        return value
    method = world.looked_up(kind, "__next__") if kind.__flags__ & MADE_BY_PYTHON else MISSING
    if type(method) is FunctionType:
        return world.interpret(method, iterator)
    if kind is enumerate and not calls_back(iterator):
        return next(iterator, *default)
    return world.natively(next, (iterator, *default), {})


def _mapped(world: _World, iterator: Any) -> Any:
    function, *parts = iterator.__reduce__()[1]
    values = []
    for part in parts:
        values.append(advanced(world, part))
        if values[-1] is MISSING:
            return MISSING
    return world.interpret(function, *values)


def _filtered(world: _World, iterator: Any) -> Any:
    function, part = iterator.__reduce__()[1]
    while True:
        value = advanced(world, part)
        if value is MISSING:
            return MISSING
        verdict = value if function is None or function is bool else world.interpret(function, value)
        if world.operate(bool, verdict):
            return value


def _zipped(world: _World, iterator: Any) -> Any:
    values = []
    for part in iterator.__reduce__()[1]:
        values.append(advanced(world, part))
        if values[-1] is MISSING:
            return MISSING
    return tuple(values) if values else MISSING


_STEPS: dict[type, Callable[[_World, Any], Any]] = {map: _mapped, filter: _filtered, zip: _zipped}
"""How built-in iterators advance, which tell what they are made of; others with such a class run natively."""


def drawn(world: _World, iterable: Any) -> Generator[Any, None, None]:
    """The values of ``iterable`` for a native function, which takes them one by one."""
    iterator = world.operate(iter, iterable)
    while (value := advanced(world, iterator)) is not MISSING:
        yield value


def reduced(world: _World, function: Any, values: Any, *initial: Any) -> Any:
    """``functools.reduce``."""
    iterator = world.operate(iter, values)
    found = initial[0] if initial else advanced(world, iterator)
    if found is MISSING:
        raise TypeError("reduce() of empty iterable with no initial value")
    while (value := advanced(world, iterator)) is not MISSING:
        found = world.interpret(function, found, value)
    return found


def is_drawn(generator: GeneratorType[Any, Any, Any]) -> bool:
    """Whether what a generator runs is interpreted."""
    return generator.gi_code is drawn.__code__ or is_generator_of_machine(generator)


def consumable(world: _World, iterable: Any) -> bool:
    """Whether ``drawn`` gives what a native function would take, with code of the user's interpreted."""
    if is_lazy(iterable):
        return True
    kind = type(iterable)
    if not kind.__flags__ & MADE_BY_PYTHON or issubclass(kind, type):
        return False
    if any(world.looked_up(kind, name) is not MISSING for name in ("__len__", "__length_hint__")):
        return False  # which a native function asks as well
    return type(world.looked_up(kind, "__iter__")) is FunctionType


def iterators(world: _Operating, function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of a function that goes over them, with the iterators of those whose ``__iter__`` is the user's."""
    first = 1 if function is map or function is filter else 0
    given = (world.operate(iter, arg) if _iterates_by_code(world, arg) else arg for arg in args[first:])
    return *args[:first], *given


def _iterates_by_code(world: _Operating, value: Any) -> bool:
    kind = type(value)
    if not kind.__flags__ & MADE_BY_PYTHON or issubclass(kind, (type, torch.Tensor)):
        return False
    return type(world.looked_up(kind, "__iter__")) is FunctionType


def is_by_key(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call asks a built-in function for values by keys that another function gives."""
    names = {"key", "reverse"} if function is sorted else {"key"}
    return function in (sorted, min, max) and len(args) == 1 and names.issuperset(kwargs)


def by_key(world: _World, function: Any, values: Any, key: FunctionType, reverse: Any = False) -> Any:
    """What ``sorted``, ``min`` or ``max`` gives, with ``key`` and the iterable interpreted."""
    listed, keys = [], []
    for value in drawn(world, values):
        listed.append(value)
        if function is not sorted:
            keys.append(world.interpret(key, value))
    if function is sorted:
        keys = [world.interpret(key, value) for value in listed]
    elif not listed:
        return function(listed)
    options = {"key": keys.__getitem__, **({"reverse": reverse} if function is sorted else {})}
    if calls_back(keys):
        found = world.natively(function, (range(len(keys)),), options)
    else:
        found = function(range(len(keys)), **options)
    return [listed[at] for at in found] if function is sorted else listed[found]
