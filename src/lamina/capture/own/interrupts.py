"""Exceptions from outside of a program: interrupts, what handlers of signals raise, a full stack or memory."""

from __future__ import annotations

from typing import Any

from lamina.base.signals import codes_of_handlers, raised_by_handler
from lamina.capture.own.frame import Unhandled

__all__ = ["end_if_from_outside"]


def end_if_from_outside(trace: Any, error: BaseException) -> None:
    """End a trace whose program may handle ``error``, if another call may come to none."""
    if trace.ended is None and _from_outside(error):
        trace.attempt = None  # what ends it is this error
        trace.end(f"a {type(error).__qualname__} comes from outside of the program")


def _from_outside(error: BaseException) -> bool:
    """Whether what raised ``error`` may be something that the program does not do."""
    if not isinstance(error, Exception):
        return not isinstance(error, GeneratorExit | Unhandled)
    if isinstance(error, (MemoryError, RecursionError)):
        return True
    return None in codes_of_handlers() or raised_by_handler(error)
