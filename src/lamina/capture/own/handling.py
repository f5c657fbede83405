"""Whether the program goes on after an exception of an instruction in progress."""

from __future__ import annotations

from collections.abc import Iterable
from types import MethodType
from typing import Any

from lamina.capture.own.frame import Frame
from lamina.capture.own.instructions import Handler

__all__ = ["goes_on"]


def goes_on(frames: Iterable[Frame]) -> bool:
    """Whether code of the user's may handle what the instructions in progress raise.

    Functions of torch's raise it again, and so do its context managers.
    """
    return any(_handles(frame) for frame in frames if not _is_of_torch(frame.function))


def _handles(frame: Frame) -> bool:
    row = frame.program.handler(frame.place - 1)
    while row is not None:
        if frame.program.steps[row.target][0] == "PUSH_EXC_INFO" and not _leaves_torchs(frame, row):
            return True
        row = frame.program.handler(row.target)
    return False


def _leaves_torchs(frame: Frame, row: Handler) -> bool:
    """Whether the handler is the end of a ``with`` of one of torch's context managers."""
    leave = frame.stack[row.depth - 1] if 0 < row.depth <= len(frame.stack) else None
    if frame.program.steps[row.target + 1][0] != "WITH_EXCEPT_START" or type(leave) is not MethodType:
        return False
    return _is_of_torch(leave.__func__) or _is_of_torch(getattr(leave.__self__, "func", None))


def _is_of_torch(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("torch.")
