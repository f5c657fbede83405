"""Ranges, slices and texts with numbers that are symbols, set right where Lamina compiles; names of torch 2.11 to 2.13.

Dynamo asks for constants there, and fails where it is given a symbol.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.exc import unimplemented
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.lists import RangeVariable, SliceVariable
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

from lamina.capture.trace_corrections.torch_private import compiles_for_lamina, traces_for_lamina

__all__ = ["correct_ranges"]


def correct_ranges() -> None:
    """Replace the methods, once."""
    _keep_ranges()
    _take_numbers()
    _break_at_slices()


def _keep_ranges() -> None:
    """Break at a range whose step is 0, which Python refuses, and let ``k in range(n)`` be a truth value, not a number.

    Dynamo asks for the step where something uses the range.
    """
    make_any: Any = BuiltinVariable.call_range

    @functools.wraps(make_any)
    def make(self: Any, tx: Any, *args: Any) -> Any:
        found = make_any(self, tx, *args)
        if found is not None and compiles_for_lamina(tx.output) and _is_zero(found.items[2]):
            unimplemented(
                gb_type="range with a step of 0",
                context="range",
                explanation="Python refuses a range whose step is 0",
                hints=["Use another step"],
            )
        return found

    BuiltinVariable.call_range = make  # type: ignore[method-assign]
    method = "sq_contains" if "sq_contains" in vars(RangeVariable) else "call_method"  # of 2.13, and before it
    ask_any: Any = vars(RangeVariable)[method]
    count_any: Any = RangeVariable.range_count

    @functools.wraps(ask_any)
    def ask(self: Any, tx: Any, what: Any, *rest: Any) -> Any:
        found = ask_any(self, tx, what, *rest)
        contains = method == "sq_contains" or what == "__contains__"
        if contains and compiles_for_lamina(tx.output) and found.is_python_constant():
            return ConstantVariable.create(bool(found.as_python_constant()))
        return found

    @functools.wraps(count_any)
    def count(self: Any, sought: Any) -> int:
        number = _varying(sought) if traces_for_lamina() else None
        if number is None:
            return count_any(self, sought)  # type: ignore[no-any-return]
        return int(_is_in(number, *(one.as_python_constant() for one in self.items)))

    setattr(RangeVariable, method, ask)
    RangeVariable.range_count = count  # type: ignore


def _is_in(number: torch.SymInt, start: int, stop: int, step: int) -> bool:
    """Whether a range has a number that varies, with guards on what decides it."""
    inside = number >= start and number < stop if step > 0 else number <= start and number > stop
    return bool(inside) and (abs(step) == 1 or bool((number - start) % abs(step) == 0))


def _take_numbers() -> None:
    """Let places in ranges, and what methods of texts are given, be the numbers at hand: Dynamo asks for constants."""
    get_any = RangeVariable.getitem_const

    @functools.wraps(get_any)
    def get(self: Any, tx: Any, place: Any) -> Any:
        return get_any(self, tx, _at_hand(place) if compiles_for_lamina(tx.output) else place)

    RangeVariable.getitem_const = get  # type: ignore

    def take(kind: Any, applies: Callable[[Any, str], bool]) -> None:
        call_any = kind.call_method

        @functools.wraps(call_any)
        def call(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            if applies(self, name) and compiles_for_lamina(tx.output):
                args, kwargs = [*map(_at_hand, args)], {word: _at_hand(one) for word, one in kwargs.items()}
            return call_any(self, tx, name, args, kwargs)

        kind.call_method = call

    take(RangeVariable, lambda self, name: name == "index")
    take(ConstantVariable, lambda self, name: isinstance(self.value, (str, bytes)) and name != "format")


def _at_hand(variable: Any) -> Any:
    """A variable of Dynamo's, or the number that it is now if it may vary, with a guard on it."""
    number = _varying(variable)
    return variable if number is None else ConstantVariable.create(int(number))


def _varying(variable: Any) -> torch.SymInt | None:
    """The integer that a variable of Dynamo's stands for, if it may be another one in a later call."""
    found = variable.realize() if issubclass(type(variable), LazyVariableTracker) else variable
    number = found.sym_num if issubclass(type(found), SymNodeVariable) else None
    return number if isinstance(number, torch.SymInt) and number.node.has_hint() else None


def _break_at_slices() -> None:
    """Break at a slice of objects that give their number by ``__index__``: Dynamo does not ask for it, and raises."""
    make_any: Any = SliceVariable.__init__

    @functools.wraps(make_any)
    def make(self: Any, items: Any, tx: Any = None, **kwargs: Any) -> None:
        if tx is not None and compiles_for_lamina(tx.output) and any(map(_gives_index, items)):
            unimplemented(
                gb_type="slice of an object that is no number",
                context="slice",
                explanation="A slice is made of an object that gives its number by __index__",
                hints=["Call operator.index on it before"],
            )
        make_any(self, items, tx, **kwargs)

    SliceVariable.__init__ = make  # type: ignore[method-assign]


def _gives_index(variable: Any) -> bool:
    found = variable.realize() if issubclass(type(variable), LazyVariableTracker) else variable
    if not issubclass(type(found), UserDefinedObjectVariable):
        return False
    kind = found.python_type()
    return hasattr(kind, "__index__") and not issubclass(kind, int)


def _is_zero(variable: Any) -> bool:
    return bool(variable.is_python_constant() and variable.as_python_constant() == 0)
