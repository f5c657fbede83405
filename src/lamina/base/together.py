"""What is compiled together: parts of one graph, whose kernels are built as one batch once all are written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

__all__ = ["Together", "compiled_together", "together"]

_T = TypeVar("_T")


class Together:
    """What several stages keep for all that is compiled within one ``compiled_together``."""

    def __init__(self) -> None:
        self._kept: dict[Any, Any] = {}
        self._at_end: list[Callable[[], object]] = []

    def of(self, make: Callable[[], _T]) -> _T:
        """What ``make`` gave when it was first asked for here."""
        if make not in self._kept:
            self._kept[make] = make()
        found: _T = self._kept[make]
        return found

    def at_end(self, call: Callable[[], object]) -> None:
        """Have ``call`` called when nothing more comes."""
        self._at_end.append(call)

    def end(self) -> None:
        """Nothing more comes."""
        while self._at_end:
            self._at_end.pop(0)()


_OF_THREAD = threading.local()


def together() -> Together | None:
    """What is being compiled together in this thread; None outside of ``compiled_together``."""
    found: Together | None = getattr(_OF_THREAD, "together", None)
    return found


@contextmanager
def compiled_together() -> Iterator[None]:
    """What this thread compiles within belongs together; within another one, to what that holds."""
    if together() is not None:
        yield
        return
    _OF_THREAD.together = found = Together()
    try:
        yield
    finally:
        _OF_THREAD.together = None
        found.end()
