"""Functions that remember what they gave (``functools.lru_cache``), asked by a traced call and by later ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lamina.capture.own.reuse.driver import state_of_torch
from lamina.capture.own.reuse.facts import Place, is_settled
from lamina.capture.own.reuse.holding import holds, values_of
from lamina.capture.own.reuse.kinds import Remembered, raised_before
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
        if function.cache_info().maxsize == 0:  # it remembers nothing
            return False
        if any(_may_hold_a_tensor(operand) for effect in trace.effects for operand in effect.operands):
            return False
        if any(type(value) is float and value != value for value in given):  # which a key is by its identity
            return False
        return all(is_settled(value) or self._is_told_by_itself(value) for value in given)

    def _is_told_by_itself(self, value: Any) -> bool:
        """Whether an object from outside equals no other, whatever is in it."""
        kind = type(value)
        if self.trace.place_of(value) is None or isinstance(value, torch.Tensor):
            return False
        names = ("__hash__", "__eq__")
        return all(self.trace.class_entry(kind, name) is vars(object)[name] for name in names)

    def remembered(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], unrecorded: Callable[..., Any]
    ) -> Any:
        """What such a function gives, which a later call asks for before it does anything.

        One that was seen to compute, and to change nothing that was read before, may do so in another process.
        ``unrecorded`` calls a function with positional and named arguments while nothing is recorded.
        """
        trace = self.trace
        place = trace.place_of(function)
        misses = function.cache_info().misses
        before = raised_before(function, args, kwargs)
        try:
            if before is not None:
                raise before
            found = unrecorded(function, args, kwargs)
        except BaseException:
            trace.end("a function with a cache raises, which it does not remember")
            raise
        computed = function.cache_info().misses != misses
        if computed and (trace.effects or trace.learning.spoils is not None):
            trace.end("a function computes what it has not remembered after something was written to")
        elif computed and (trace.varying or not unrecorded(self._still_holds, (), {})):
            trace.end("a function that remembers what it gave changes what was read before")
        elif computed and function.cache_info().maxsize is not None:
            unrecorded(function, args, kwargs)  # the one used last again, as others were asked
        if place is None or trace.ended is not None:
            return found
        early = computed and state_of_torch() == trace.state
        trace.note("is", (place,), function)
        given = tuple(value if is_settled(value) else trace.place_of(value) for value in (*args, *kwargs.values()))
        key = id(function), tuple(kwargs), early
        asked = self._caches.setdefault(key, Remembered(function, tuple(kwargs), early))
        return trace.enter(found, trace.facts.place("computed", None, (asked, *given)))

    def _still_holds(self) -> bool:
        """Whether what the call has read is there as it was, but for the state of torch."""
        rows = [row for row in self.trace.facts.rows if isinstance(row, Place) or row.kind != "state"]
        try:
            return isinstance(values_of(rows, *self.trace.given, holds), dict)
        except Exception:
            return False


def _may_hold_a_tensor(value: Any) -> bool:
    if type(value) in (list, tuple, set, *DICTS):
        parts = (*value.keys(), *value.values()) if type(value) in DICTS else value
        return any(map(_may_hold_a_tensor, parts))
    return not is_settled(value)
