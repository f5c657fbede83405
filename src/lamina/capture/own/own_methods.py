"""Which object a built-in method is of: a question that programs of Lamina's ask while they are interpreted."""

from __future__ import annotations

from types import BuiltinFunctionType
from typing import Any

__all__ = ["is_own_method"]


def is_own_method(found: Any, value: Any, name: str) -> bool:
    """Whether ``found``, which ``value`` gave as its attribute ``name``, is the method of C's of that object itself.

    It is called, not entered, and its answer is as good in a later call: all that led to ``found`` is noted.
    """
    return type(found) is BuiltinFunctionType and found.__self__ is value and found.__name__ == name
