"""Functions that remember what they gave (``functools.lru_cache``), asked by a traced call and by later ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lamina.capture.own.reuse.facts import is_settled
from lamina.capture.own.reuse.kinds import Remembered
from lamina.capture.own.reuse.trace import DICTS, Trace

__all__ = ["Caches"]


class Caches:
    """Tells of such a function whether what it gives is a fact."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._caches: dict[Any, Remembered] = {}

    def remembers(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a function with a cache may be called while a graph is recorded, and what it gives be a fact.

        It comes from outside, as what it is given does, and no tensor was put where it may look.
        """
        trace, given = self.trace, (*args, *kwargs.values())
        if trace.ended is not None or trace.place_of(function) is None or trace.learning.learnt_in(given):
            return False
        if any(_may_hold_a_tensor(operand) for effect in trace.effects for operand in effect.operands):
            return False
        return all(is_settled(value) or self._is_told_by_itself(value) for value in given)

    def _is_told_by_itself(self, value: Any) -> bool:
        """Whether an object from outside equals no other, whatever is in it."""
        kind = type(value)
        if self.trace.place_of(value) is None or isinstance(value, torch.Tensor):
            return False
        names = ("__hash__", "__eq__")
        return all(self.trace.class_entry(kind, name) is vars(object)[name] for name in names)

    def remembered(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], ask: Callable[[], Any]) -> Any:
        """What such a function gives, which a later call asks for before it does anything."""
        trace = self.trace
        place = trace.place_of(function)
        misses = function.cache_info().misses
        try:
            found = ask()
        except BaseException:
            trace.end("a function with a cache raises, which it does not remember")
            raise
        if function.cache_info().misses != misses and (trace.effects or trace.learning.spoils is not None):
            trace.end("a function computes what it has not remembered after something was written to")
        if place is None or trace.ended is not None:
            return found
        early = not trace.effects and trace.learning.spoils is None
        trace.note("is", (place,), function)
        given = tuple(value if is_settled(value) else trace.place_of(value) for value in (*args, *kwargs.values()))
        key = id(function), tuple(kwargs), early
        asked = self._caches.setdefault(key, Remembered(function, tuple(kwargs), early))
        return trace.enter(found, trace.facts.place("computed", None, (asked, *given)))


def _may_hold_a_tensor(value: Any) -> bool:
    if type(value) in (list, tuple, set, *DICTS):
        parts = (*value.keys(), *value.values()) if type(value) in DICTS else value
        return any(map(_may_hold_a_tensor, parts))
    return not is_settled(value)
