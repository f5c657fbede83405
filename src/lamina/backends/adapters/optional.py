"""The one place where packages that may be missing are imported."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from lamina.errors import BadArgument

__all__ = ["absent", "check_installed", "optional"]


def optional(module: str) -> Any:
    """The module of an optional package, imported when it is first asked for."""
    return import_module(module)


def absent(packages: tuple[str, ...]) -> list[str]:
    """Those of ``packages`` that are not installed."""
    return [name for name in packages if find_spec(name) is None]


def check_installed(name: str, packages: tuple[str, ...], what: str = "backend") -> None:
    """Raise ``BadArgument`` with the command to type when packages are missing that a backend, or ``what``, needs."""
    missing = absent(packages)
    if missing:
        named = " and ".join(missing)
        raise BadArgument(
            f"{what} {name!r} needs {named}, which {'is' if len(missing) == 1 else 'are'} not installed",
            remedy=f"pip install {' '.join(name.replace('_', '-') for name in missing)}",
        )
