"""``import`` of modules that are loaded, which runs nothing."""

from __future__ import annotations

import sys
from types import FunctionType, ModuleType
from typing import Any

__all__ = ["absolute", "is_loaded"]


def is_loaded(name: Any, space: Any = None, _: Any = None, wanted: Any = None, level: Any = 0) -> bool:
    """Whether ``__import__`` of these arguments finds modules that are there, and runs no code for them."""
    if type(name) is not str or type(level) is not int or level < 0:
        return False
    if level:
        package = space.get("__package__") if type(space) is dict else None
        if type(package) is not str or len(package.split(".")) < level or not package:
            return False
        name = absolute(name, package, level)
    steps = name.split(".")
    modules = [sys.modules.get(".".join(steps[: at + 1])) for at in range(len(steps))]
    if not all(map(_is_whole, modules)):
        return False
    if not wanted or "__path__" not in vars(modules[-1]):
        return True
    return type(wanted) is tuple and all(type(part) is str and part in vars(modules[-1]) for part in wanted)


def absolute(name: str, package: str, level: int) -> str:
    """The name of a module that is called ``name`` from ``level`` steps above the modules of ``package``."""
    parts = package.split(".")
    return ".".join((*parts[: len(parts) - level + 1], *([name] if name else [])))


def _is_whole(module: Any) -> bool:
    """Whether a module is there, is not being made, and tells its own attributes by no function of its class."""
    if not isinstance(module, ModuleType):
        return False
    if any(type(vars(base).get("__getattribute__")) is FunctionType for base in type(module).__mro__):
        return False
    return not getattr(vars(module).get("__spec__"), "_initializing", False)
