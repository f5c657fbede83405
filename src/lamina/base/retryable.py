"""Retryable errors: a compiled graph raised before it changed inputs, or changed only what a second run overwrites.

The exception is marked by what raises it; a caller that has the captured program may run that in the graph's place.
"""

from __future__ import annotations

__all__ = ["is_retryable", "set_retryable"]

_NAME = "__lamina_retryable__"


def set_retryable(error: BaseException, retryable: bool) -> None:
    """Note on ``error`` whether the graph that raised it can be run again on its inputs as if it had not been run."""
    if retryable or is_retryable(error):
        setattr(error, _NAME, retryable)


def is_retryable(error: BaseException) -> bool:
    """Whether the graph that raised ``error`` can be run again on its inputs as if it had not been run."""
    return getattr(error, _NAME, False) is True
