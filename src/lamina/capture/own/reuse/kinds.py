"""Questions about values that facts hold as objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["IsA", "Remembered"]


@dataclass(frozen=True, slots=True)
class IsA:
    """Asks for the class of a value."""

    kind: type

    def __call__(self, value: Any) -> bool:
        return isinstance(value, self.kind)

    def __str__(self) -> str:
        return f"instance of {self.kind.__qualname__}"


class Remembered:
    """Asks a ``function`` with a cache, the last of whose arguments have ``names``, for what it has given before.

    ``early``: nothing was written to before the program asks, so that it may compute that anew. Else ``LookupError``
    is raised where it may not be remembered any more: entries may have gone, as the counts tell.
    """

    def __init__(self, function: Any, names: tuple[str, ...], early: bool) -> None:
        self.function, self.names, self.early = function, names, early
        self.counts = function.cache_info()
        self.__name__ = str(getattr(function, "__name__", "a function"))

    def __call__(self, *args: Any) -> Any:
        before, now = self.counts, self.function.cache_info()
        full = now.maxsize is not None and now.currsize >= now.maxsize
        fewer = now.hits < before.hits or now.misses < before.misses or now.currsize < before.currsize
        if not self.early and (full or fewer):
            raise LookupError(f"{self.__name__} may have forgotten what it gave")
        count = len(args) - len(self.names)
        found = self.function(*args[:count], **dict(zip(self.names, args[count:], strict=True)))
        self.counts = self.function.cache_info()
        if not self.early and self.counts.misses != now.misses:
            raise LookupError(f"{self.__name__} had forgotten what it gave")
        return found
