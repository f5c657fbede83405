"""Paths that users give."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lamina.errors import BadArgument

__all__ = ["path_of"]


def path_of(given: Any, what: str) -> Path:
    """``given`` as a path. Raises ``BadArgument``, which calls it ``what``, where it is none."""
    if not isinstance(given, (str, os.PathLike)):
        raise BadArgument(f"{what} is {given!r}", remedy="give a path, as a text or a pathlib.Path")
    return Path(given)
