"""Errors of compiled graphs that leave the inputs as they were, or so that the graph run again overwrites them.

What raises such an error tells so on the exception; who has the captured program may run that in its place.
"""

from __future__ import annotations

__all__ = ["is_unwritten", "set_unwritten"]

_NAME = "__lamina_unwritten__"


def set_unwritten(error: BaseException, unwritten: bool) -> None:
    """Note on ``error`` whether the graph that raised it can be run again on its inputs as if it had not been run."""
    if unwritten or is_unwritten(error):
        setattr(error, _NAME, unwritten)


def is_unwritten(error: BaseException) -> bool:
    """Whether the graph that raised ``error`` can be run again on its inputs as if it had not been run."""
    return getattr(error, _NAME, False) is True
