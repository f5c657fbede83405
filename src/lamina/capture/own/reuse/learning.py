"""The steps of a traced call: the graphs that ran, and the values that it has learnt from what they computed."""

from __future__ import annotations

import operator
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import torch

from lamina.base.torch_private import is_leaf
from lamina.capture.own.frame import MISSING, MOST_KEPT
from lamina.capture.own.nested import flat
from lamina.capture.own.reuse.copies import copied
from lamina.capture.own.reuse.facts import Facts, Place, is_settled
from lamina.capture.own.reuse.remade import Remade, looks_of
from lamina.capture.own.reuse.run import Called, Ran, Run
from lamina.capture.own.reuse.values import (
    ALWAYS_A_NUMBER,
    ARITHMETIC_OF_NUMBERS,
    Ref,
    Value,
    Varying,
    fits_a_float,
    float_of_integer,
    real_power,
    tensor_of_float,
    tensor_of_integer,
)
from lamina.capture.own.torch_private import unseen

__all__ = ["DICTS", "NUMBERS", "Learning"]

DICTS = (dict, OrderedDict)
_OF_FLOATS: dict[Any, Callable[..., Any]] = {operator.pow: real_power, operator.ipow: real_power}
"""What gives nothing but floats in place of functions that give other numbers for some operands."""
NUMBERS = (float, int)
"""Types of numbers that are inputs of a driver."""


class _Trace(Protocol):
    """What is asked of a trace."""

    ended: str | None
    state: tuple[Any, ...]
    facts: Facts

    def end(self, why: str) -> None: ...
    def note(self, kind: str, places: tuple[Place, ...], value: Any) -> None: ...
    def place_of(self, value: Any) -> Place | None: ...


class Learning:
    """The ``steps`` of a trace; ``values`` are numbers that are others in later calls, by identity.

    ``spoils`` is the position of the first step that writes or draws, after which a call cannot be begun anew.
    """

    def __init__(self, trace: _Trace) -> None:
        self.trace = trace
        self.steps: list[Ran | Value | Called] = []
        self.values: dict[int, Value | Varying] = {}
        self.spoils: int | None = None
        self.results: dict[int, tuple[Any, Ref]] = {}
        self._varied: dict[int, Varying] = {}
        self.ahead: dict[int, tuple[Place, torch.Tensor]] = {}
        """Tensors whose numbers were told before anything runs, by the numbers of their places."""
        self.counted: dict[float, Place] = {}
        """Places of those numbers, by their values."""
        self.overwritten: dict[int, torch.Tensor] = {}
        """Tensors that steps have written to."""
        self.history_from_outside = False
        """Whether a tensor leads autograd to what was computed before the call, or to a backward of the user's."""

    def clear(self) -> None:
        """Let go of all."""
        self.steps.clear()
        self.values.clear()
        self.results.clear()
        self.ahead.clear()
        self.overwritten.clear()

    def ran(self, run: Run) -> None:
        """A graph was run."""
        if self.trace.ended is not None:
            return
        spoils = run.writes or run.draws
        if run.handled and (self.spoils is not None or (run.writes and run.trial is None)):
            self.trace.end("what may raise what the program handles follows what has written or drawn")
            return
        given = (*map(self.ref, run.inputs), *map(self.ref, run.numbers))
        if None in given:
            self.trace.end("it is not known where a tensor comes from")
            return
        with unseen():
            tracked = [one for one in run.inputs if one.requires_grad and not is_leaf(one)]
        if any(self.trace.place_of(tensor) is not None for tensor in tracked):
            self.history_from_outside = True
        self.overwritten.update((id(tensor), tensor) for tensor in run.written)
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
                spoils,
                None if run.autocast == self.trace.state[1] else run.autocast,
                trial=run.trial,
                begins_anew=run.handled and run.draws and not run.writes,
            )
        )

    def called(
        self, again: Remade, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any, state: tuple[Any, Any]
    ) -> None:
        """A call of torch's was made between graphs, in a grad mode and a ``state`` of autocast's, which a later call
        makes anew.
        """
        if self.trace.ended is not None:
            return
        operands, keywords = self.operand(args), self.operand(kwargs)
        parts = found if isinstance(found, tuple) else () if found is None else (found,)
        if MISSING in (operands, keywords) or not all(one is None or isinstance(one, torch.Tensor) for one in parts):
            self.trace.end("it is not known where a tensor comes from")
            return
        with unseen():
            tracked = [one for one in flat((args, kwargs)) if one.requires_grad and not is_leaf(one)]
        if again.calls_back or any(self.trace.place_of(tensor) is not None for tensor in tracked):
            self.history_from_outside = True
        names = tuple(f"t{len(self.steps)}_{place}" for place in range(len(parts)))
        for name, one in zip(names, parts, strict=True):
            if one is not None and self.ref(one) is None:
                self.results[id(one)] = weakref.ref(one, _forgetting(self.results, id(one))), Ref(name)
        within, autocast = (None if now == then else now for now, then in zip(state, self.trace.state, strict=False))
        in_tuple = isinstance(found, tuple)
        self._add(Called(again.function, operands, keywords, names, in_tuple, within, autocast, again.spoils))
        if again.sized:
            self.learn(looks_of, parts, looks_of(*parts))

    def operand(self, value: Any) -> Any:
        """An operand of such a call, with what a driver has in place of tensors; ``MISSING`` if it has not."""
        if type(value) is dict:
            named = {name: self.operand(part) for name, part in value.items()}
            return MISSING if MISSING in named.values() else named
        if type(value) in (list, tuple):
            parts = [self.operand(part) for part in value]
            return MISSING if MISSING in parts else type(value)(parts)
        found = self.ref(value)
        if found is None and (not is_settled(value) or self.is_within(value)):
            return MISSING
        return value if found is None else found

    @property
    def graphs(self) -> int:
        """How many graphs ran so far."""
        return sum(type(step) is Ran for step in self.steps)

    def _as_ref(self, value: Any) -> Any:
        return self.ref(value) if isinstance(value, torch.Tensor) else value

    def found(self, function: Callable[..., Any], operands: tuple[Any, ...], made: torch.Tensor) -> None:
        """``function`` gives a tensor, another one in each call, that was made between graphs."""
        step = Value(function, tuple(map(self._as_ref, operands)), made, len(self.trace.facts.rows), len(self.steps))
        self.results[id(made)] = weakref.ref(made, _forgetting(self.results, id(made))), step.ref
        self._add(step)

    def _add(self, step: Ran | Value | Called) -> None:
        if self.spoils is None and not isinstance(step, Value) and step.spoils:
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
        if type(value) not in (tuple, frozenset, slice, torch.Size):
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

    def compute(self, function: Callable[..., Any], operands: tuple[Any, ...], found: Any) -> Any:
        """What ``function`` has ``found`` of such numbers, as an object that nobody else has.

        Of numbers from outside it is one more place, which is there before anything runs.
        """
        if self.trace.ended is not None:
            return found
        given = [self.values.get(id(operand), operand) for operand in operands]
        if all(isinstance(one, Varying) or (type(one) is not Value and is_settled(one)) for one in given):
            key = (function, *(one.place if isinstance(one, Varying) else one for one in given))
            place = self.trace.facts.place("computed", None, key)
            if type(found) in NUMBERS:
                return self.vary(found, place)
            self.trace.note("constant", (place,), found)
            return found
        if function in (min, max) and {*map(type, operands)} != {float}:
            self.pin(*operands)  # what it gives may be of another type
            return found
        found = copied(found) if type(found) is float else found
        self.learn(_OF_FLOATS.get(function, function) if type(found) is float else function, operands, found)
        return found

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

    def as_tensor(self, value: float, of_floats: bool = False) -> torch.Tensor | None:
        """A tensor that has a learnt value, which a driver makes of it; None, and it is pinned, if none has it.

        It has as many digits as the value, or is one ``of_floats``.
        """
        known = self.values[id(value)]
        if type(value) is int:
            fits = fits_a_float(value)
            assert isinstance(known, Varying)
            self.trace.note("constant", (self.trace.facts.place("computed", None, (fits_a_float, known.place)),), fits)
            if not fits:
                self.pin(value)
                return None
        of_integer = float_of_integer if of_floats else tensor_of_integer
        function: Callable[..., torch.Tensor] = tensor_of_float if type(value) is float else of_integer
        made = function(value)
        step = Value(function, (known.ref,), made, len(self.trace.facts.rows), len(self.steps))
        self.results[id(made)] = weakref.ref(made, _forgetting(self.results, id(made))), step.ref
        self._add(step)
        return made

    def learnt_in(self, values: tuple[Any, ...]) -> list[float]:
        """The learnt values among some."""
        return [value for value in values if type(value) in NUMBERS and id(value) in self.values] if self.values else []

    def _pin(self, step: Value | Varying) -> None:
        """What the call does rests on this value."""
        self.values.pop(id(step.value), None)
        if isinstance(step, Varying):
            self.trace.note("constant", (step.place,), step.found)
            return
        if self.spoils is not None and step.place > self.spoils:
            self.trace.end("what is computed decides after a graph that has written or drawn")
        step.pinned = True

    def pin(self, *values: Any, but: Callable[[Any], bool] = lambda value: False) -> None:
        """The same of learnt values that ``values`` are, or hold: somebody looks at them, it is not known how.

        Not of those of which ``but`` is true.
        """
        if not self.values:
            return
        waiting, seen = [*values], set()
        while waiting:
            value = waiting.pop()
            kind = type(value)
            if kind in NUMBERS:
                if id(value) in self.values and not but(value):
                    self._pin(self.values[id(value)])
            elif id(value) not in seen and kind in (list, tuple, set, frozenset, slice, torch.Size, *DICTS):
                seen.add(id(value))
                waiting.extend(_parts_of(value))

    def is_learnt(self, value: Any) -> bool:
        """Whether ``value`` is a number that a later call learns anew."""
        return id(value) in self.values

    def vary(self, value: float, place: Place) -> float:
        """``value`` at a place where earlier calls have found others."""
        known = self._varied.get(place.number)
        if known is None:
            self.trace.note("type", (place,), type(value))
            known = self._varied[place.number] = Varying(copied(value), value, place)
            if known.value is value:  # integers of this Python are not told apart
                self.trace.note("constant", (place,), value)
            else:
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
