"""Warnings that name the user's line, however deep within the compiler they are given."""

from __future__ import annotations

import os
import sys
import sysconfig
import warnings
from types import FrameType

import torch

from lamina.errors import LaminaWarning

__all__ = ["OWN_FOLDERS", "calling_line", "calling_place", "is_pythons", "warn_user"]

OWN_FOLDERS = tuple(
    os.path.dirname(path) + os.sep for path in (os.path.dirname(os.path.abspath(__file__)), torch.__file__)
)
"""Folders of Lamina and of torch, whose files are not the user's."""

_PYTHON = sysconfig.get_path("stdlib") + os.sep


def warn_user(text: str, remedy: str = "") -> None:
    """Give a ``LaminaWarning`` at the innermost line that is neither Lamina's nor torch's; what to do comes last."""
    said = f"{text}. {remedy[:1].upper()}{remedy[1:]}" if remedy else text
    warnings.warn(said, LaminaWarning, stacklevel=_user_frame()[1])


def is_pythons(filename: str) -> bool:
    """Whether a file is one of Python's own library; packages that are installed beside it are not."""
    return filename.startswith(_PYTHON) and "site-packages" not in filename


def calling_place() -> tuple[str, int]:
    """File and line of the innermost statement being executed that is neither Lamina's nor torch's."""
    frame, _ = _user_frame()
    return frame.f_code.co_filename, frame.f_lineno


def calling_line() -> str:
    """``calling_place`` as "file:line"."""
    return "{}:{}".format(*calling_place())


def _user_frame() -> tuple[FrameType, int]:
    """The innermost frame that is neither Lamina's nor torch's, and its ``stacklevel`` for the caller's caller."""
    level, frame = 2, sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OWN_FOLDERS):
        level, frame = level + 1, frame.f_back
    return frame, level
