"""Numbers with what they count, in words."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: object, noun: str) -> str:
    """``number``, or its text, with what is counted: "1 kernel", "2 kernels"."""
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}s"
