"""Methods that Python itself asks classes for: one that comes to a class after a trace changes what the trace did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from types import ModuleType
from typing import Any

import torch

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.capture.external_state.reads import Check

__all__ = ["classes_of_modules", "forwards", "special_methods"]

_NO_METHODS = frozenset({"__annotations__", "__doc__", "__dict__", "__weakref__", "__module__", "__slotnames__"})
"""What Python, ``copy`` and ``typing`` put into classes as they go."""


def special_methods(kinds: Iterable[type]) -> Check | None:
    """Which special methods the users' classes among ``kinds``, their bases and their metaclasses have.

    Each call asks for the number of attributes of each class, and for their names only where it is another one: a
    method that takes the place of another attribute, deleted since the last call, is not seen.
    """
    found: dict[type, None] = {}
    for kind in kinds:
        meta: type = type(kind)
        for base in kind.__mro__ + meta.__mro__:
            if base.__flags__ & MADE_BY_PYTHON and base.__module__.split(".")[0] != "torch":
                found[base] = None
    if not found:
        return None
    spaces: tuple[Mapping[str, Any], ...] = tuple(map(vars, found))
    expected, counts = [_special(space) for space in spaces], tuple(map(len, spaces))

    def check() -> bool:
        nonlocal counts
        now = tuple(map(len, spaces))
        if now == counts:
            return True
        if [_special(space) for space in spaces] != expected:
            return False
        counts = now
        return True

    return check


def _special(space: Mapping[str, Any]) -> dict[str, int]:
    """The special methods in the attributes of a class, each by its identity."""
    return {
        name: id(item)
        for name, item in space.items()
        if name[:2] == name[-2:] == "__" and name not in _NO_METHODS and (callable(item) or _is_method(item))
    }


def _is_method(item: Any) -> bool:
    """Whether ``item`` is no function but counts as a method: a descriptor, or None, which takes one away."""
    return item is None or hasattr(type(item), "__get__")


def classes_of_modules(values: Iterable[Any]) -> Check | None:
    """The users' modules among ``values`` are plain modules: one may be given a class that computes its attributes."""
    found = tuple(v for v in values if type(v) is ModuleType and v.__name__.split(".")[0] != "torch")
    return (lambda: set(map(type, found)) == _PLAIN) if found else None


_PLAIN = {ModuleType}


def forwards(kinds: Iterable[type]) -> Check | None:
    """What the ``forward`` of each class of modules of torch's own is among ``kinds``: libraries put in others."""
    of_torch = (k for k in kinds if issubclass(k, torch.nn.Module) and k.__module__.split(".")[0] == "torch")
    found = tuple(k for k in of_torch if hasattr(k, "forward"))  # that of TorchScript's modules is an object's alone
    if not found:
        return None
    ask = attrgetter("forward")
    expected = tuple(map(ask, found))
    return lambda: tuple(map(ask, found)) == expected
