"""Exceptions that handlers of signals raise: a program's own, wherever in Lamina they arrive."""

from __future__ import annotations

import signal
import traceback
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

__all__ = ["codes_of_handlers", "raised_by_handler"]


def raised_by_handler(error: BaseException) -> bool:
    """Whether ``error`` was raised in a handler of a signal whose code is known."""
    codes = codes_of_handlers()
    return bool(codes) and any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def codes_of_handlers() -> list[CodeType | None]:
    """The code of each handler but Python's own; None for one of which it is not known what it runs."""
    handlers = [handler for number in signal.valid_signals() if callable(handler := signal.getsignal(number))]
    return [_code(handler) for handler in handlers if handler is not signal.default_int_handler]


def _code(handler: Any) -> CodeType | None:
    while isinstance(handler, (partial, MethodType)):
        handler = handler.func if isinstance(handler, partial) else handler.__func__
    if type(handler) is not FunctionType:
        handler = type(handler).__call__
    return handler.__code__ if type(handler) is FunctionType else None
