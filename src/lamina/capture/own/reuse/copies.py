"""Copies of numbers: other objects with the same value and type, so that an object tells where its number is from."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

__all__ = ["INTEGERS_ARE_COPIED", "copied"]

_SINGLE = range(-5, 257)
"""Integers that are one object each in CPython."""
_HEADER = object.__basicsize__
_REST = int.__basicsize__ - object.__basicsize__ + int.__itemsize__
"""Bytes of an integer of one digit behind those that every object has: the word of its length and sign, and a digit."""


def copied(value: Any) -> Any:
    """A float or integer that is another object, with the same bits; other values as they are."""
    if type(value) is float:
        return value + -0.0
    if type(value) is not int or not INTEGERS_ARE_COPIED:
        return value
    return _copied_small(value) if value in _SINGLE else value + 0


def _copied_small(value: int) -> int:
    """An integer of one digit that has the bytes of ``value``, of which CPython itself makes no second object."""
    made = 2 * len(_SINGLE) + value
    ctypes.memmove(id(made) + _HEADER, id(value) + _HEADER, _REST)
    return made


def _are_copied() -> bool:
    """Whether copies of integers are other objects that are the same in everything else, as experiments find."""
    if sys.implementation.name != "cpython" or (_HEADER, _REST) != (16, 12) or sys.version_info >= (3, 14):
        return False
    for value in (_SINGLE[0], -1, 0, 1, 7, _SINGLE[-1]):
        made = _copied_small(value)
        if made is value or type(made) is not int or made != value or _asked(made) != _asked(value):
            return False
    return True


def _asked(value: int) -> tuple[Any, ...]:
    """What an integer gives where it is computed with, compared, printed and used as a key or a length."""
    return (
        value + 1, -value, value * 3, value // 2, str(value), hash(value), bool(value), value.bit_length(), value < 3,
        [*range(value)], {value: 1}, float(value),
    )  # fmt: skip


INTEGERS_ARE_COPIED = _are_copied()
"""Whether integers have copies that are other objects; without, none is told from others of its value."""
