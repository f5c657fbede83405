"""The steps of a traced call: the graphs that ran, and the values that it has learnt from what they computed."""

from __future__ import annotations

import operator
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import torch

from lamina.capture.own.frame import MOST_KEPT
from lamina.capture.own.reuse.facts import Facts, Place, is_settled
from lamina.capture.own.reuse.run import Ran, Run
from lamina.capture.own.reuse.values import (
    ALWAYS_A_NUMBER,
    ARITHMETIC_OF_NUMBERS,
    Ref,
    Value,
    Varying,
    as_tensor,
    copied,
)

__all__ = ["DICTS", "Learning"]

DICTS = (dict, OrderedDict)


class _Trace(Protocol):
    """What is asked of a trace."""

    ended: str | None
    state: tuple[Any, ...]
    facts: Facts

    def end(self, why: str) -> None: ...
    def note(self, kind: str, places: tuple[Place, ...], value: Any) -> None: ...
    def place_of(self, value: Any) -> Place | None: ...


class Learning:
    """The ``steps`` of a trace; ``values`` are floats that are others in later calls, by identity.

    ``spoils`` is the position of the first step that writes or draws, after which a call cannot be begun anew.
    """

    def __init__(self, trace: _Trace) -> None:
        self.trace = trace
        self.steps: list[Ran | Value] = []
        self.values: dict[int, Value | Varying] = {}
        self.spoils: int | None = None
        self.results: dict[int, tuple[Any, Ref]] = {}
        self._varied: dict[int, Varying] = {}

    def clear(self) -> None:
        """Let go of all."""
        self.steps.clear()
        self.values.clear()
        self.results.clear()

    def ran(self, run: Run) -> None:
        """A graph was run."""
        if self.trace.ended is not None:
            return
        if run.autocast != self.trace.state[1]:
            self.trace.end("autocast is switched within the call")
            return
        given = tuple(map(self.ref, run.inputs))
        if None in given:
            self.trace.end("it is not known where a tensor comes from")
            return
        number = len(self.steps)
        for place, made in enumerate(run.results):
            self.results[id(made)] = weakref.ref(made, _forgetting(self.results, id(made))), Ref(f"t{number}_{place}")
        self._add(
            Ran(
                run.run,
                tuple(ref.name for ref in given if ref is not None),
                len(run.results),
                run.grad if run.switches or run.grad is not self.trace.state[0] else None,
                run.aliased,
                run.writes or run.draws,
            )
        )

    def _add(self, step: Ran | Value) -> None:
        if self.spoils is None and type(step) is Ran and step.spoils:
            self.spoils = len(self.steps)
        self.steps.append(step)
        if len(self.steps) > MOST_KEPT:
            self.trace.end(f"it has more than {MOST_KEPT} graphs and values")

    def ref(self, value: Any) -> Ref | None:
        """The driver's variable that has a tensor, or a value that the call has learnt; None if it is neither."""
        learnt = self.values.get(id(value))
        if learnt is not None:
            return learnt.ref
        place = self.trace.place_of(value)
        if place is not None:
            return Ref(place.variable)
        result = self.results.get(id(value))
        return None if result is None else result[1]

    def is_within(self, value: Any) -> bool:
        """Whether a constant is made of values that the call has learnt: a tuple of them is another in each call."""
        if type(value) not in (tuple, frozenset, slice):
            return False
        return any(id(part) in self.values or self.is_within(part) for part in _parts_of(value))

    def learn(self, function: Callable[..., Any], operands: tuple[Any, ...], value: Any) -> None:
        """``function`` has said ``value`` of tensors, or of values that were learnt so; a later call asks it anew."""
        if self.trace.ended is not None or any(value is operand for operand in operands):
            return
        given = []
        for operand in operands:
            ref = self.ref(operand)
            if ref is None and (not is_settled(operand) or self.is_within(operand)):
                self.trace.end("it is not known where a tensor comes from")
                return
            given.append(operand if ref is None else ref)
        if self.spoils is not None and function in ARITHMETIC_OF_NUMBERS and function not in ALWAYS_A_NUMBER:
            self.trace.end("arithmetic that may raise follows a graph that has written or drawn")
            return
        step = Value(function, tuple(given), value, len(self.trace.facts.rows), len(self.steps))
        self._add(step)
        if type(value) is float:
            self.values[id(value)] = step
        elif type(value) is list:
            self._learn_parts(step, value)
        else:
            self._pin(step)

    def _learn_parts(self, whole: Value, parts: list[Any]) -> None:
        """The elements of a list that was learnt, which is an object that the call has made."""
        for place, part in enumerate(parts):
            if self.trace.ended is None:
                step = Value(operator.getitem, (whole.ref, place), part, len(self.trace.facts.rows), len(self.steps))
                self._add(step)
                if type(part) is float:
                    self.values[id(part)] = step
                elif type(part) is list:
                    self._learn_parts(step, part)
                else:
                    self._pin(step)

    def as_tensor(self, value: float) -> torch.Tensor:
        """A tensor that has a learnt value, which a driver makes of it."""
        made = as_tensor(value)
        step = Value(as_tensor, (self.values[id(value)].ref,), made, len(self.trace.facts.rows), len(self.steps))
        self.results[id(made)] = weakref.ref(made, _forgetting(self.results, id(made))), step.ref
        self._add(step)
        return made

    def learnt_in(self, values: tuple[Any, ...]) -> list[float]:
        """The learnt values among some."""
        return [value for value in values if type(value) is float and id(value) in self.values] if self.values else []

    def _pin(self, step: Value | Varying) -> None:
        """What the call does rests on this value."""
        self.values.pop(id(step.value), None)
        if isinstance(step, Varying):
            self.trace.note("constant", (step.place,), step.found)
            return
        if self.spoils is not None and step.place > self.spoils:
            self.trace.end("what is computed decides after a graph that has written or drawn")
        step.pinned = True

    def pin(self, *values: Any) -> None:
        """The same of learnt values that ``values`` are, or hold: somebody looks at them, it is not known how."""
        if not self.values:
            return
        waiting, seen = [*values], set()
        while waiting:
            value = waiting.pop()
            kind = type(value)
            if kind is float:
                if id(value) in self.values:
                    self._pin(self.values[id(value)])
            elif id(value) not in seen and kind in (list, tuple, set, frozenset, slice, *DICTS):
                seen.add(id(value))
                waiting.extend(_parts_of(value))

    def is_learnt(self, value: Any) -> bool:
        """Whether ``value`` is a number that a later call learns anew."""
        return id(value) in self.values

    def vary(self, value: float, place: Place) -> float:
        """``value`` at a place where earlier calls have found others."""
        known = self._varied.get(place.number)
        if known is None:
            self.trace.note("type", (place,), float)
            known = self._varied[place.number] = Varying(copied(value), value, place)
            self.values[id(known.value)] = known
        return known.value


def _forgetting(results: dict[int, Any], key: int) -> Callable[[Any], None]:
    """What forgets a result that nobody holds any more."""

    def forget(gone: Any) -> None:
        results.pop(key, None)

    return forget


def _parts_of(value: Any) -> tuple[Any, ...]:
    """What a built-in container or a slice holds."""
    if type(value) is slice:
        return value.start, value.stop, value.step
    return (*value, *value.values()) if type(value) in DICTS else tuple(value)
