"""Exceptions from outside of a program: interrupts, what handlers of signals raise, a full stack or memory."""

from __future__ import annotations

import signal
import traceback
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

__all__ = ["end_if_from_outside"]


def end_if_from_outside(trace: Any, error: BaseException) -> None:
    """End a trace whose program may handle ``error``, if another call may come to none."""
    if trace.ended is None and _from_outside(error):
        trace.end(f"a {type(error).__qualname__} comes from outside of the program")


def _from_outside(error: BaseException) -> bool:
    """Whether what raised ``error`` may be something that the program does not do."""
    if not isinstance(error, Exception):
        return not isinstance(error, GeneratorExit)
    if isinstance(error, (MemoryError, RecursionError)):
        return True
    handlers = [handler for number in signal.valid_signals() if callable(handler := signal.getsignal(number))]
    codes = [_code(handler) for handler in handlers if handler is not signal.default_int_handler]
    return bool(codes) and (
        None in codes or any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))
    )


def _code(handler: Any) -> CodeType | None:
    """The code of a handler of a signal; None if it is not known which it runs."""
    while isinstance(handler, (partial, MethodType)):
        handler = handler.func if isinstance(handler, partial) else handler.__func__
    if type(handler) is not FunctionType:
        handler = type(handler).__call__
    return handler.__code__ if type(handler) is FunctionType else None
