"""The guard machine's machine code: compiled once per compiler, kept in the cache, and given to Python as functions."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from lamina.base.built_in import built_in, interpreters_functions
from lamina.capture.own.guards.layouts import Layouts, layouts
from lamina.capture.own.guards.tensor_layouts import MOST_LEAF, MOST_WORDS
from lamina.capture.own.guards.torch_private import ASKED, STATES, functions_of_state
from lamina.capture.own.torch_private import without_function_modes

__all__ = ["HOW", "Library", "machine_of", "machine_source", "state_words"]

HOW = {name: number for number, name in enumerate(("byte", "word", "first word", "first byte", "span", "called"))}
"""What counts of a query's answer, by the numbers of the source."""

_PYTHON = (
    "PyTuple_GetItem", "PyTuple_Size", "PyDict_GetItemWithError", "PyDict_Size", "PyDict_Contains", "PyDict_Next",
    "PyList_GetItem", "PyList_SetItem", "PyList_Size", "PyObject_GetAttr", "PyObject_RichCompareBool",
    "PyObject_CallObject", "PyErr_Occurred", "PyErr_Clear", "PyTuple_New", "PyTuple_SetItem", "Py_IncRef", "Py_DecRef",
    "PyByteArray_AsString", "PyFloat_AsDouble",
)  # fmt: skip
"""What the source calls of the interpreter, all in its stable interface, in the order of its struct ``table``."""
_OBJECTS = (None, True, dict, OrderedDict, list, tuple, str, int, float, torch.Tensor, torch.nn.Parameter)
"""Objects that it compares with, likewise."""


def machine_source() -> str:
    """The machine's C++."""
    return Path(__file__).with_name("machine.cpp").read_text(encoding="utf-8")


class Library:
    """The machine of this process: ``layouts`` are those found, ``queries`` what is asked for torch's state.

    A query is (address of a function, what it is given, what counts of the answer).
    """

    def __init__(self, handle: ctypes.CDLL, found: Layouts, queries: list[tuple[int, int, int]]) -> None:
        self.handle, self.layouts, self.queries = handle, found, queries
        names = interpreters_functions(_PYTHON)
        table = (ctypes.c_void_p * (len(names) + len(_OBJECTS)))(*names, *map(id, _OBJECTS))
        self.words = _layout_words(found)
        handle.lamina_guards_prepare(table, self.words)
        self._new = built_in(b"check", handle.lamina_guards_check)
        self.ask = ctypes.PYFUNCTYPE(None, ctypes.c_longlong, ctypes.c_void_p, ctypes.c_void_p)(
            ("lamina_guards_state", handle)
        )
        self._head = ctypes.PYFUNCTYPE(ctypes.c_longlong, ctypes.py_object, ctypes.c_void_p)(
            ("lamina_guards_head", handle)
        )

    def check(self, program: list[Any]) -> Callable[[Any, Any], Any]:
        """``check(args, kwargs)`` for a program: its buffer, a list that refers to values, the objects of its rows."""
        made: Callable[[Any, Any], Any] = self._new(program)
        return made

    @property
    def head_words(self) -> int:
        """Words of a tensor's head: those of its memory, whether it asks for a gradient, whether it is a leaf."""
        return 0 if self.layouts.tensor is None else len(self.layouts.tensor.bits) + 2

    def head(self, tensor: torch.Tensor) -> tuple[int, ...] | None:
        """The words that tell a tensor's looks; None if it has none that could be compared."""
        words = (ctypes.c_longlong * (MOST_WORDS + 3))()
        if not self._head(tensor, ctypes.addressof(words)):
            return None
        return tuple(words[1 : 1 + self.head_words])


def _layout_words(found: Layouts) -> Any:
    """The source's struct ``layouts``."""
    tensor = found.tensor
    words = [found.version, found.size, found.items, found.length, found.first]
    if tensor is None:
        words += [0] * (2 + MOST_WORDS + 6 + MOST_LEAF + 2)
    else:
        words += [tensor.under, len(tensor.bits), *tensor.bits, *(0,) * (MOST_WORDS - len(tensor.bits))]
        words += [tensor.dimensions, tensor.most, tensor.autograd, tensor.kind, tensor.asks, len(tensor.leaf)]
        words += [*tensor.leaf, *(0,) * (MOST_LEAF - len(tensor.leaf)), *found.bare]
    return (ctypes.c_longlong * len(words))(*words)


def state_words(library: Library) -> tuple[int, ...]:
    """What the queries answer now."""
    words = (ctypes.c_longlong * len(library.queries))()
    flat = [word for query in library.queries for word in query]
    library.ask(len(library.queries), (ctypes.c_longlong * len(flat))(*flat), words)
    return tuple(words)


def machine_of(handle: ctypes.CDLL) -> Library | None:
    """The machine whose code was loaded; None where it cannot work with this interpreter or this torch.

    The experiments are made in the usual state of torch, whichever the call is made in that wants the machine first.
    """
    # what is only faster must not keep a call from being done
    with suppress(Exception), without_function_modes(), torch.inference_mode(False), torch.enable_grad():
        return _made(handle)
    return None


def _made(handle: ctypes.CDLL) -> Library | None:
    found, functions = layouts(), functions_of_state()
    if found is None or functions is None:
        return None
    made = Library(handle, found, [(address, given, HOW[how]) for address, given, how in functions])
    return made if _sees_states(made) else None


def _sees_states(library: Library) -> bool:
    """Whether what is asked for torch's state is answered otherwise in each other state."""
    before = state_words(library)
    for enter in STATES:
        with enter():
            if state_words(library) == before:
                return False
    return state_words(library) == before and len(before) == len(ASKED)
