"""A frame of the interpreter as data: where it stands, its variables and its stack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import CellType, CodeType, FunctionType
from typing import Any

from lamina.capture.own.instructions import Program

__all__ = ["MISSING", "MOST_KEPT", "NULL", "Frame", "Step", "Unhandled", "bound_arguments"]


class _Sign:
    """A value that no program of the user's has."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


NULL = _Sign("NULL")
"""What CPython pushes below a callable that is no method."""
MISSING = _Sign("MISSING")
"""The content of a variable that has none."""
MOST_KEPT = 4096
"""Entries of a table of what programs are made of: functions, lines that call, kinds of calls, steps of a trace."""


class Unhandled(BaseException):
    """Ends a call: no ``except`` of the program handles it and no manager suppresses it, while ``finally`` and
    ``__exit__`` run.
    """


class NotBegun(Exception):
    """A call has met what only Dynamo captures, and nothing is done of it."""


@dataclass(slots=True, eq=False)
class Frame:
    """A call of ``function`` in progress, which stands before the instruction ``place``.

    ``handled`` is the exception that its innermost ``except`` block handles, ``outer`` the one that was handled when
    it was entered. ``leads_to`` is where it goes on when an iterator that it delegates to has ended; ``result`` is what
    it returned, yielded, or delegates to, by the signal its last step gave.
    """

    function: FunctionType
    program: Program
    steps: Any
    variables: list[Any]
    stack: list[Any] = field(default_factory=list)
    place: int = 0
    keywords: tuple[str, ...] = ()
    result: Any = None
    handled: BaseException | None = None
    outer: BaseException | None = None
    leads_to: int | None = None

    @property
    def code(self) -> CodeType:
        """The code that it runs."""
        return self.program.code

    @property
    def line(self) -> int:
        """The line of the instruction in progress."""
        return self.program.lines[self.place - 1 if self.place else 0]

    def clear(self) -> None:
        """Let go of all values, as a frame of CPython's does at its end: objects of the user's end when they would."""
        self.variables.clear()
        self.stack.clear()
        self.result = self.handled = self.outer = None

    def names(self) -> dict[str, Any]:
        """The variables that have a value, as ``locals()`` gives them."""
        found = {}
        for name, value in zip(self.program.places, self.variables, strict=True):
            if isinstance(value, CellType) and name in (*self.code.co_cellvars, *self.code.co_freevars):
                try:
                    value = value.cell_contents
                except ValueError:
                    continue
            if value is not MISSING:
                found[name] = value
        return found


Step = Callable[[Any, Frame, Any], Any]
"""A step is given the machine, the frame and the instruction's argument; it returns nothing but to leave the frame."""


def bound_arguments(function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
    """The variables of a new frame of ``function`` but for those that are its own; None if the arguments do not fit."""
    code = function.__code__
    positional, keyword_only = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames
    values: list[Any] = [MISSING] * (positional + keyword_only)
    given = min(len(args), positional)
    values[:given] = args[:given]
    rest = args[given:]
    more: dict[str, Any] = {}
    if kwargs:
        places = {name: place for place, name in enumerate(names[: positional + keyword_only])}
        for name in names[: code.co_posonlyargcount]:
            places.pop(name, None)
        for name, value in kwargs.items():
            place = places.get(name)
            if place is None:
                more[name] = value
            elif values[place] is not MISSING:
                return None
            else:
                values[place] = value
    if (rest and not code.co_flags & CO_VARARGS) or (more and not code.co_flags & CO_VARKEYWORDS):
        return None
    if not _with_defaults(function, values):
        return None
    if code.co_flags & CO_VARARGS:
        values.append(rest)
    if code.co_flags & CO_VARKEYWORDS:
        values.append(more)
    return values


def _with_defaults(function: FunctionType, values: list[Any]) -> bool:
    """Put defaults where no argument was given; whether every parameter has a value then."""
    positional = function.__code__.co_argcount
    defaults = function.__defaults__ or ()
    for place, value in enumerate(values[:positional]):
        if value is MISSING:
            if place < positional - len(defaults):
                return False
            values[place] = defaults[place - positional]
    by_name = function.__kwdefaults__ or {}
    for place in range(positional, len(values)):
        if values[place] is MISSING:
            name = function.__code__.co_varnames[place]
            if name not in by_name:
                return False
            values[place] = by_name[name]
    return True
