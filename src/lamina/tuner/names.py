"""Objects by name, as command lines and recipes of candidates have them."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from lamina.errors import BadArgument

__all__ = ["named_object"]


def named_object(name: str) -> Any:
    """What ``package.module:name`` stands for. Raises ``BadArgument`` where there is none."""
    module, _, path = name.partition(":")
    try:
        if not path:
            raise ImportError("it names no object")
        return functools.reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError) as problem:
        raise BadArgument(f"{name}: {problem}", remedy="write package.module:name") from problem
