"""Warnings that name the user's line, however deep within the compiler they are given."""

from __future__ import annotations

import os
import sys
import warnings

import torch

from lamina.errors import LaminaWarning

__all__ = ["warn_user"]

_OWN = tuple(os.path.dirname(path) + os.sep for path in (os.path.dirname(os.path.abspath(__file__)), torch.__file__))


def warn_user(text: str, remedy: str = "") -> None:
    """Give a ``LaminaWarning`` at the innermost line that is neither Lamina's nor torch's; what to do comes last."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN):
        level, frame = level + 1, frame.f_back
    said = f"{text}. {remedy[:1].upper()}{remedy[1:]}" if remedy else text
    warnings.warn(said, LaminaWarning, stacklevel=level)
