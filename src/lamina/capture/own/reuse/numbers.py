"""Numbers that a call has learnt from tensors: who passes them on, who computes with them, and who looks at them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, MethodWrapperType
from typing import Any

import torch

from lamina.capture.own.frame import MISSING
from lamina.capture.own.natives import seen_by_modes
from lamina.capture.own.pending import Pending
from lamina.capture.own.reuse.learning import NUMBERS
from lamina.capture.own.reuse.trace import DICTS, TENSORS, Trace
from lamina.capture.own.reuse.values import ARITHMETIC_OF_NUMBERS, UNPACKING, Varying

__all__ = ["Numbers"]

_NUMBERS = (int, float, bool)
_OF_TENSORS = (int, float, bool)
"""Functions that ask a tensor for its value."""
_PASSING = (operator.getitem, iter, next, operator.is_, operator.is_not)
"""Operators that look at no value in the container or iterator that they are given."""
_COMPARING = (operator.eq, operator.ne)
_SEQUENCES = (list, tuple, torch.Size)
_HOLDING = frozenset(map(id, (list, tuple, enumerate, zip, reversed, iter)))
"""Functions that make something which holds what they are given."""
_METHODS = frozenset(
    ("append", "insert", "extend", "pop", "copy", "clear", "reverse", "get", "items", "values", "keys")
)
"""Methods of lists and dictionaries that look at no value."""
_AT_A_POSITION = ("insert", "pop")
"""Those of lists that are given a position first."""


def _given(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call is given, with the object of a method of C code's."""
    of_object = type(function) in (BuiltinFunctionType, MethodWrapperType)
    return (function.__self__, *args) if of_object else args


class Numbers:
    """Tells a trace what becomes of numbers that were learnt; where nobody knows, they are pinned."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def operated(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """What an operator makes of such numbers; ``MISSING`` if it is another's to do."""
        trace = self.trace
        if self._is_arithmetic(function, operands):
            return self._computed(lambda: function(*operands), function, operands)
        if function in (operator.is_, operator.is_not) and any(map(trace.learning.is_learnt, operands)):
            return self._identity(function, operands)
        if any(type(value) in (Pending, *TENSORS) for value in operands):
            return MISSING  # the recorder tells
        if function in _COMPARING and all(type(value) in (tuple, torch.Size) for value in operands):
            found = self._compared(function, *operands)
            if found is not MISSING:
                return found
        if function is operator.add and all(type(value) in _SEQUENCES for value in operands):
            return MISSING  # no value is looked at
        if function in _PASSING or getattr(function, "__name__", "") in UNPACKING:
            trace.learning.pin(*operands[1:], *(value for value in operands[:1] if type(value) in NUMBERS))
        else:
            trace.learning.pin(*operands)
        return MISSING

    def _compared(self, function: Callable[..., Any], one: Sequence[Any], other: Sequence[Any]) -> Any:
        """What two tuples of integers are found to be, compared one by one; ``MISSING`` for those of other values."""
        if any(type(value) is not int for value in (*one, *other)):
            return MISSING
        same = len(one) == len(other)
        for pair in zip(one, other, strict=False) if same else ():
            found = pair[0] == pair[1]
            if any(map(self.trace.learning.is_learnt, pair)):
                self.trace.learning.compute(operator.eq, pair, found)
            same = same and found
        return same if function is operator.eq else not same

    def changed(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """The same of what writes, which may keep such a number."""
        trace = self.trace
        if self._is_arithmetic(function, operands):
            return self._computed(lambda: function(*operands), function, operands)
        if type(operands[0]) in (Pending, *TENSORS):
            return MISSING
        if function is setattr or getattr(function, "__name__", "") == "_set_cell":
            return MISSING
        if function is operator.setitem:
            trace.learning.pin(operands[1])
        elif function is dict.update and type(operands[1]) in DICTS:
            trace.learning.pin(*operands[1].keys())
        else:
            trace.learning.pin(*operands)
        return MISSING

    def called(self, caller: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call gives that asks a tensor for its value, or computes with such numbers; else ``MISSING``."""
        trace = self.trace
        if function in _OF_TENSORS and len(args) == 1 and not kwargs and type(args[0]) in (Pending, *TENSORS):
            trace.class_entry(TENSORS[type(args[0]) is TENSORS[1]], f"__{function.__name__}__")
            return caller(function, args, kwargs)
        if not trace.learning.values:
            return MISSING
        if not kwargs and self._is_arithmetic(function, args):
            return self._computed(lambda: caller(function, args, kwargs), function, args)
        if function is isinstance or function is type:
            return MISSING  # a number of another type is another fact
        if id(function) in _HOLDING:
            trace.learning.pin(*(value for value in (*args, *kwargs.values()) if type(value) in NUMBERS))
        elif type(function) is BuiltinFunctionType and type(function.__self__) in (list, *DICTS):
            self._method(function, args, kwargs)
        elif function is not torch.tensor and not self._is_recorded(function, args, kwargs):
            trace.learning.pin(args, kwargs, getattr(function, "__self__", None))
        return MISSING  # of tensors the recorder tells

    def _is_recorded(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the recorder is told of the numbers that a call is given."""
        given = (*_given(function, args), *kwargs.values())
        return id(function) in seen_by_modes() or any(type(value) in (Pending, *TENSORS) for value in given)

    def _identity(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Whether two values are one object; None and others that are no numbers are none of these."""
        if all(type(value) in _NUMBERS for value in operands):
            self.trace.end("it is asked whether two numbers are the same object")
        known = (self.trace.learning.values.get(id(value)) for value in operands)
        found = zip(known, operands, strict=True)
        return function(*(one.found if isinstance(one, Varying) else value for one, value in found))

    def _method(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A method of a container."""
        if function.__name__ not in _METHODS:
            self.trace.learning.pin(function.__self__, args, kwargs)
        elif type(function.__self__) in DICTS or function.__name__ in _AT_A_POSITION:
            self.trace.learning.pin(*args[:1])

    def _is_arithmetic(self, function: Any, operands: tuple[Any, ...]) -> bool:
        return (
            any(self.trace.learning.is_learnt(value) for value in operands)
            and all(type(value) in _NUMBERS for value in operands)
            and function in ARITHMETIC_OF_NUMBERS
        )

    def _computed(self, compute: Callable[[], Any], function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """What ``compute`` gives, which is what ``function`` makes of such numbers; that it raises rests on them."""
        try:
            found = compute()
        except Exception:
            self.trace.learning.pin(*operands)
            raise
        return self.trace.learning.compute(function, operands, found)
