"""Tracebacks of Lamina's errors that show the user's frames: those of Lamina and torch are left out.

The option traceback leaves them in.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from lamina.base.user_warnings import OWN_FOLDERS, is_pythons
from lamina.errors import LaminaError

__all__ = ["all_frames_shown", "of_user", "shortened", "show_all_frames", "with_users_frames"]

_MOST = 4
"""Frames of a cause that are told."""

_shown = {"all": False}

_Function = TypeVar("_Function", bound=Callable[..., Any])


def show_all_frames(wanted: bool) -> None:
    """Whether tracebacks show all frames, from now on."""
    _shown["all"] = wanted


def all_frames_shown() -> bool:
    """What ``show_all_frames`` said last."""
    return _shown["all"]


def of_user(trace: TracebackType | None) -> TracebackType | None:
    """``trace`` without the frames of Lamina, of torch, and of Python's own machinery for imports."""
    frames: list[TracebackType] = []
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(OWN_FOLDERS) and not name.startswith("<frozen"):
            frames.append(trace)
        trace = trace.tb_next
    found: TracebackType | None = None
    for frame in reversed(frames):
        found = TracebackType(found, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return found


def shortened(error: LaminaError) -> LaminaError:
    """``error`` with the user's frames alone; of what caused it, where a function of the user's raised, a few lines.

    The cause itself may be lost on the way through Dynamo, so it is told in the error's notes.
    """
    if all_frames_shown():
        return error
    cause = error.__cause__
    trace = None if cause is None else of_user(cause.__traceback__)
    if cause is not None and trace is not None and _reaches_the_user(trace) and not getattr(error, "__notes__", ()):
        told = traceback.TracebackException(type(cause), cause, trace, limit=-_MOST, compact=True)
        told.__cause__ = told.__context__ = None
        lines = "".join(told.format(chain=False)).rstrip().splitlines()
        error.add_note("\n".join(["raised by", *lines[1:]]))
    error.__cause__, error.__suppress_context__ = None, True
    return error.with_traceback(of_user(error.__traceback__))


def _reaches_the_user(trace: TracebackType | None) -> bool:
    """Whether a frame is neither of what ``of_user`` leaves out nor of Python's library."""
    while trace is not None:
        if not is_pythons(trace.tb_frame.f_code.co_filename):
            return True
        trace = trace.tb_next
    return False


def with_users_frames(function: _Function) -> _Function:
    """``function``, whose errors are ``shortened``."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except LaminaError as error:
            raise shortened(error) from None

    return call  # type: ignore[return-value]
