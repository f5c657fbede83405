"""What a function's bytecode says about the modes that it switches: grad mode, autocast, contexts entered by hand."""

from __future__ import annotations

import dis
import itertools
import os
from collections.abc import Iterator, Sequence
from types import CodeType

import torch

from lamina.capture.bytecode import instructions

__all__ = [
    "enters_by_hand",
    "keeps_gradient_mode",
    "place_of",
    "returns_gradient_mode",
    "switches_autocast",
    "switches_gradients",
]

_TORCH = os.path.dirname(torch.__file__) + os.sep
_LIBRARY = ("contextlib.py",)
_DELEGATES = ("__enter__", "__exit__", "__aenter__", "__aexit__")
_GRADIENTS = frozenset({"set_grad_enabled", "_set_grad_enabled"})
_MANAGERS = frozenset({"enable_grad", "no_grad", "set_grad_enabled"})
_AT_ONCE = ("BEFORE_WITH", "POP_TOP", "PRECALL", "CALL", "KW_NAMES", "LOAD_C", "MAKE_FUNCTION", "JUMP", "RETURN")
"""What follows the call that makes a context manager if it is entered, dropped, passed on or decorates a function."""
_LOADS = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_FAST"})


def place_of(code: CodeType) -> str:
    """The function of ``code`` and where it is."""
    return f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"


def enters_by_hand(code: CodeType) -> bool:
    """Whether a function calls a context manager's ``__enter__``, other than in one of its own kind."""
    if "__enter__" not in code.co_names or code.co_name in _DELEGATES:
        return False
    return not code.co_filename.startswith(_TORCH) and os.path.basename(code.co_filename) not in _LIBRARY


def switches_autocast(code: CodeType) -> bool:
    """Whether a function sets what autocast does, other than by entering a region of autocast."""
    if code.co_filename.startswith(_TORCH):
        return False
    return any(name.startswith(("set_autocast", "autocast_")) for name in code.co_names)


def switches_gradients(code: CodeType) -> bool:
    """Whether a function sets the grad mode by a call that is not what a ``with`` statement enters."""
    return any(following != "BEFORE_WITH" for following in _after_calls(code, _GRADIENTS))


def returns_gradient_mode(code: CodeType) -> bool:
    """Whether a function makes a context manager of the grad mode and returns it."""
    return any(following.startswith("RETURN") for following in _after_calls(code, _MANAGERS))


def keeps_gradient_mode(code: CodeType) -> bool:
    """Whether a function makes a context manager of the grad mode and may put it into a variable or a container."""
    return not all(following.startswith(_AT_ONCE) for following in _after_calls(code, _MANAGERS))


def _after_calls(code: CodeType, functions: frozenset[str]) -> Iterator[str]:
    """What follows each call of one of these functions; "" after a use that is not known to be a call."""
    if code.co_filename.startswith(_TORCH) or functions.isdisjoint((*code.co_names, *code.co_freevars)):
        return
    found = instructions(code)
    for place, read in enumerate(found):
        if read.opname in _LOADS and read.argval in functions:
            yield _after_call(found[place:])


def _after_call(found: Sequence[dis.Instruction]) -> str:
    """What follows the first call that begins where the first instruction does."""
    start = _start(found[0])
    for call, following in itertools.pairwise(found[1:]):
        if call.opname.startswith("CALL") and start is not None and _start(call) == start:
            return following.opname
    return ""


def _start(instruction: dis.Instruction) -> tuple[int, int] | None:
    found = getattr(instruction, "positions", None)
    if found is None or found.lineno is None or found.col_offset is None:
        return None
    return found.lineno, found.col_offset
