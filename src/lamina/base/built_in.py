"""Built-in functions of Python's whose code is in a library that was loaded."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

__all__ = ["built_in", "interpreters_functions"]

_FASTCALL = 0x80
"""``METH_FASTCALL``: a function is given its object, an array of arguments and their number."""


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_: ClassVar = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("text", ctypes.c_char_p),
    ]


_METHODS: list[_Method] = []
"""What built-in functions refer to for as long as the process lives."""


def interpreters_functions(names: Sequence[str]) -> list[int | None]:
    """The addresses of functions of Python's C interface. ``AttributeError`` where this interpreter lacks one."""
    return [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value for name in names]


def built_in(name: bytes, function: Any) -> Callable[[Any], Any]:
    """What makes built-in functions called ``name`` that run ``function`` of a library, each with an object of its own.

    The library's function is given that object, an array of arguments and their number.
    """
    method = _Method(name, ctypes.cast(function, ctypes.c_void_p).value, _FASTCALL, None)
    _METHODS.append(method)
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(_Method), ctypes.py_object, ctypes.c_void_p)
    new = prototype(("PyCFunction_NewEx", ctypes.pythonapi))
    return lambda own: new(ctypes.byref(method), own, None)
