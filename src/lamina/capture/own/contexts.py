"""The exception that is handled where another is raised, or where native code is called, as CPython keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["put_context", "put_first_context", "while_handling"]


def put_context(error: BaseException, handled: BaseException) -> None:
    """Make ``handled`` the context of ``error`` as CPython does when it raises: without a circle."""
    if error is handled:
        return
    link: BaseException | None = handled
    while link is not None and link.__context__ is not None:
        if link.__context__ is error:
            link.__context__ = None
            break
        link = link.__context__
    error.__context__ = handled


def put_first_context(error: BaseException, handled: BaseException, outside: BaseException | None) -> None:
    """Make ``handled`` the context of the first of the exceptions that led to ``error``, unless it is one of them.

    ``outside`` is what Python handles around the interpreter: it is what led to an error of native code only as long
    as ``handled`` was not there.
    """
    while error is not handled and error.__context__ is not None:
        if error.__context__ is outside and handled is not outside:
            break
        error = error.__context__
    if error is not handled:
        put_context(error, handled)


def while_handling(
    handled: BaseException, caller: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A call within which ``sys.exc_info()`` gives ``handled``."""
    traceback, context = handled.__traceback__, handled.__context__
    try:
        raise handled
    except BaseException:
        handled.__traceback__, handled.__context__ = traceback, context
        return caller(function, args, kwargs)
