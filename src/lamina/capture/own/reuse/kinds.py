"""Questions about values that facts hold as objects."""

from __future__ import annotations

import gc
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

    Raises ``LookupError`` where that is not remembered: the function is not run then, since it may change what was
    asked before, and be run again by the program. Where ``computes``, as for a call that another process has stored, it
    is run once for each key that is not remembered, if it was run ``early`` then: in the state of torch in which the
    call began, and before anything was written to. ``computed`` counts that.
    """

    def __init__(self, function: Any, names: tuple[str, ...], early: bool, computes: bool = False) -> None:
        self.function, self.names, self.early, self.computes = function, names, early, computes
        self.computed = 0
        self.__name__ = str(getattr(function, "__name__", "a function"))
        self._cache, self._mark = _cache_of(function)
        self._asked: set[Any] = set()

    def recalled(self, *args: Any) -> Any:
        """The same, and ``LookupError`` too where it might have to compute that: what stands before it may not hold."""
        early, self.early = self.early, False
        try:
            return self(*args)
        finally:
            self.early = early

    def __call__(self, *args: Any) -> Any:
        count = len(args) - len(self.names)
        given, named = args[:count], dict(zip(self.names, args[count:], strict=True))
        key, info = self._key(given, named), self.function.cache_info()
        if self._cache is None or len(self._cache) != info.currsize or key not in self._cache:
            full = info.maxsize is not None and info.currsize >= info.maxsize
            if full or key in self._asked or not (self.early and self.computes):
                raise LookupError(f"{self.__name__} does not remember what it gave")
            self.computed += 1
        if self.computes:
            self._asked.add(key)
        return self.function(*given, **named)

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The key of the cache that a call's entry has."""
        typed = self.function.cache_parameters()["typed"]
        if not typed and not kwargs and len(args) == 1 and type(args[0]) in (int, str):
            return args[0]
        marked = (self._mark, *(part for item in kwargs.items() for part in item)) if kwargs else ()
        return *args, *marked, *(map(type, (*args, *kwargs.values())) if typed else ())


def _cache_of(function: Any) -> tuple[dict[Any, Any] | None, Any]:
    """The dictionary that a function of ``functools.lru_cache`` remembers by, and what stands before names in its keys.

    None where CPython has it otherwise than at the sixth place from the end of what the function refers to.
    """
    parts = gc.get_referents(function)
    if len(parts) < 6 or type(parts[-6]) is not dict or type(parts[-4]) is not object:
        return None, None
    return parts[-6], parts[-4]
