"""A compiled function's name, which says that it is compiled where it is printed, and by which pickle finds it."""

from __future__ import annotations

import sys
from importlib import import_module
from types import FunctionType
from typing import Any

__all__ = ["name_compiled"]

_MARK = "<compiled by Lamina>"


def name_compiled(compiled: Any, target: Any) -> Any:
    """``compiled``, made of the callable ``target``, with a ``__qualname__`` that says so, if it is a function.

    That name is all that a function's text is made of. Pickle follows it from the function's module on, so it is a
    path that leads back to the function: ``f.<compiled by Lamina>.call``. ``__name__`` stays as it is.
    """
    if type(compiled) is not FunctionType or compiled is target:
        return compiled
    own = getattr(target, "__qualname__", None) or type(target).__qualname__
    path = str(own).partition(f".{_MARK}")[0]
    compiled.__qualname__ = f"{path}.{_MARK}.call"
    compiled.__dict__[_MARK] = _Named(compiled.__module__, path)
    return compiled


class _Named:
    """What is called ``path`` in a module; decorators that copy attributes of a compiled function share it."""

    __slots__ = ("module", "path")

    def __init__(self, module: str, path: str) -> None:
        self.module, self.path = module, path

    @property
    def call(self) -> Any:
        """The function that is called so by now; raises ``AttributeError`` where there is none."""
        found: Any = sys.modules.get(self.module)
        for part in self.path.split("."):
            found = getattr(found, part)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.module, self.path)


def _unpickled(module: str, path: str) -> _Named:
    """What a pickle of protocol 3 or less holds; those of later ones import the module themselves."""
    import_module(module)
    return _Named(module, path)
