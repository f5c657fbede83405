"""Questions about values that facts hold as objects."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["IsA", "Remembered", "errors_kept", "raised_before"]


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
    call began, and before anything was written to. ``computed`` counts that. What it raises then is kept, so that the
    program, which comes to that call, gets it without a second run.
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
            return self._computed(key, given, named)
        if self.computes:
            self._asked.add(key)
        return self.function(*given, **named)

    def _computed(self, key: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What the function gives where it has to compute that."""
        self._asked.add(key)
        kept = _ERRORS.kept
        if (id(self.function), key) in kept:
            raise LookupError(f"{self.__name__} has raised for that in this call")
        self.computed += 1
        try:
            return self.function(*given, **named)
        except Exception as error:
            within = error.__traceback__
            kept[id(self.function), key] = error.with_traceback(within.tb_next if within is not None else None)
            raise

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _key_of(self.function, self._mark, args, kwargs)


def _key_of(function: Any, mark: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The key of the cache of a ``function`` that a call's entry has, with the ``mark`` that stands before names."""
    typed = function.cache_parameters()["typed"]
    if not typed and not kwargs and len(args) == 1 and type(args[0]) in (int, str):
        return args[0]
    marked = (mark, *(part for item in kwargs.items() for part in item)) if kwargs else ()
    return *args, *marked, *(map(type, (*args, *kwargs.values())) if typed else ())


class _Errors(threading.local):
    """What functions with a cache have raised in this thread when they were asked before a call."""

    def __init__(self) -> None:
        self.kept: dict[Any, Exception] = {}


_ERRORS = _Errors()


@contextlib.contextmanager
def errors_kept() -> Iterator[None]:
    """One call of a compiled callable, which what was raised before it belongs to."""
    before, _ERRORS.kept = _ERRORS.kept, {}
    try:
        yield
    finally:
        _ERRORS.kept = before


def raised_before(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception | None:
    """What a function with a cache raised when it was asked before this call; its own the next time."""
    if not _ERRORS.kept:
        return None
    return _ERRORS.kept.pop((id(function), _key_of(function, _cache_of(function)[1], args, kwargs)), None)


def _cache_of(function: Any) -> tuple[dict[Any, Any] | None, Any]:
    """The dictionary that a function of ``functools.lru_cache`` remembers by, and what stands before names in its keys.

    None where CPython has it otherwise than at the sixth place from the end of what the function refers to.
    """
    parts = gc.get_referents(function)
    if len(parts) < 6 or type(parts[-6]) is not dict or type(parts[-4]) is not object:
        return None, None
    return parts[-6], parts[-4]
