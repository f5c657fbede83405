"""The length beyond which a deque drops items, which Dynamo loses; names as read in torch 2.11 to 2.13."""

from __future__ import annotations

import functools
from collections import deque
from typing import Any

from torch._dynamo.guards import GuardBuilder
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.lists import DequeVariable
from torch._guards import Guard

from lamina.capture.guards.torch_private import add_check
from lamina.capture.trace_corrections.torch_private import compiles_for_lamina

__all__ = ["guards_on_bound", "keep_bounds_of_deques"]

_COPYING = ("copy", "__copy__", "__mul__", "__rmul__")


def keep_bounds_of_deques() -> None:
    """Let a deque that the trace finds, and one that is made of another, have the length beyond which it drops items.

    Dynamo takes what it finds to have none, and so copies and repetitions.
    """
    wrap_any, call_any = VariableBuilder.wrap_listlike, DequeVariable.call_method

    @functools.wraps(wrap_any)
    def wrap(self: Any, value: Any) -> Any:
        found: Any = wrap_any(self, value)
        bounded = type(value) is deque and value.maxlen is not None and isinstance(found, DequeVariable)
        if bounded and compiles_for_lamina(self.tx.output):
            found.maxlen = ConstantVariable.create(value.maxlen)
        return found

    @functools.wraps(call_any)
    def call(self: Any, tx: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        found = call_any(self, tx, name, *args, **kwargs)
        return _bounded(self, tx, found) if name in _COPYING else found

    VariableBuilder.wrap_listlike = wrap  # type: ignore[method-assign]
    DequeVariable.call_method = call  # type: ignore[method-assign]
    repeat_any = getattr(DequeVariable, "sq_repeat_impl", None)
    if repeat_any is None:  # in 2.11 and 2.12 a call of a method
        return

    @functools.wraps(repeat_any)
    def repeat(self: Any, tx: Any, *args: Any) -> Any:
        return _bounded(self, tx, repeat_any(self, tx, *args))

    DequeVariable.sq_repeat_impl = repeat  # type: ignore[method-assign, assignment]


def _bounded(of: DequeVariable, tx: Any, found: Any) -> Any:
    """``found``, which was made of a deque, with the bound ``of`` that."""
    if found is of or not isinstance(found, DequeVariable) or not compiles_for_lamina(tx.output):
        return found
    return DequeVariable(found.items, of.maxlen, mutation_type=found.mutation_type)


def guards_on_bound(variable: VariableTracker) -> list[Any]:
    """What makes the guard on the bound of ``variable``, if it is a deque."""
    return [_guard_bound] if issubclass(type(variable), DequeVariable) else []


def _guard_bound(builder: GuardBuilder, guard: Guard) -> None:
    bound = builder.get(guard.originating_source).maxlen
    add_check(builder, guard, lambda found: found.maxlen == bound, "maxlen of a deque")
