"""Guards that Dynamo leaves out, added while its trace is open; names as read in torch 2.11 to 2.13."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch._dynamo.guards import GuardBuilder, get_verbose_code_parts
from torch._dynamo.source import GlobalStateSource
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.base import VariableTracker
from torch._guards import Guard, TracingContext
from torch._ops import OpOverload, OpOverloadPacket

__all__ = ["guard_unguarded"]

_C_CALLABLES = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    np.ufunc,
    type(np.sum),
    OpOverload,
    OpOverloadPacket,
)
"""Callables without code of their own, of which a guard on a function's code sees nothing."""


def guard_unguarded(gm: torch.fx.GraphModule) -> int:
    """Make the graph being compiled depend on values that it read and Dynamo does not guard on; how many there are.

    These are methods of built-in classes (functions that share their code but close over different ones would share
    graphs), the methods that were found on classes and their code, and the sign of a zero.
    """
    context, tx = TracingContext.try_get(), _translator()
    if context is None or tx is None:
        return 0
    guards = context.guards_context.dynamo_guards
    guarded = {g.originating_source for g in guards}
    zeros = _has_zero(gm)
    added = 0
    read = list(tx.output.variable_tracker_cache.items())
    methods = _methods([vars(v).get("value") for _, v in read], context.traced_code)
    if methods:
        guard = Guard(GlobalStateSource(), functools.partial(_guard_methods, methods))
        guards.add(guard, collect_debug_stack=False)
        added += len(methods)
    for source, variable in read:
        make = _missing(variable, source in guarded, zeros)
        if make is not None:
            guards.add(Guard(source, make), collect_debug_stack=False)
            added += 1
    return added


def _translator() -> Any:
    try:
        return InstructionTranslator.current_tx()
    except AttributeError:  # none has ever run in this thread
        return None


def _missing(variable: VariableTracker, guarded: bool, zeros: bool) -> Any:
    """What makes the guard that ``variable`` lacks; None if it lacks none."""
    value = vars(variable).get("value")  # a property of that name would go on tracing
    if not guarded and isinstance(value, _C_CALLABLES):
        return GuardBuilder.ID_MATCH
    if zeros and guarded and isinstance(value, (float, complex)) and _zero_signs(value):
        return functools.partial(_guard_signs, value)
    return None


_Method = tuple[type, str, types.FunctionType, types.CodeType]


def _methods(values: Sequence[Any], traced: Sequence[types.CodeType]) -> tuple[_Method, ...]:
    """The functions among those ``traced`` that were found on the classes of ``values``, other than torch's own."""
    codes = set(traced)
    classes = {v if isinstance(v, type) else type(v): None for v in values if v is not None}
    found: list[_Method] = []
    for kind in classes:
        if kind.__module__.split(".")[0] in ("torch", "builtins", "collections"):
            continue
        names = {name for base in kind.__mro__ for name, item in vars(base).items() if _code_of(item) in codes}
        if issubclass(kind, torch.nn.Module):
            names.add("__call__")
        for name in sorted(names):
            function = _function(getattr(kind, name, None))
            if function is not None:
                found.append((kind, name, function, function.__code__))
    return tuple(found)


def _code_of(item: Any) -> types.CodeType | None:
    function = _function(item)
    return None if function is None else function.__code__


def _function(item: Any) -> types.FunctionType | None:
    """The function of a method of any kind."""
    function = getattr(item, "__func__", item)
    return function if isinstance(function, types.FunctionType) else None


def _guard_methods(methods: Sequence[_Method], builder: GuardBuilder, guard: Guard) -> None:
    def unchanged(_: Any) -> bool:
        for kind, name, function, code in methods:
            found = getattr(kind, name, None)
            if found is not function and getattr(found, "__func__", None) is not function:
                return False
            if function.__code__ is not code:
                return False
        return True

    what = "methods of " + ", ".join(sorted({kind.__qualname__ for kind, *_ in methods}))
    parts: list[str] = [what]
    root: Any = builder.guard_manager.root
    try:
        root.add_lambda_guard(unchanged, parts, None)
    except TypeError:  # versions without the user's stack
        root.add_lambda_guard(unchanged, parts)


def _zero_signs(value: float | complex) -> tuple[float, ...]:
    """The signs of those parts of ``value`` that are zero, which equal their negatives."""
    parts = (value.real, value.imag) if isinstance(value, complex) else (value,)
    return tuple(math.copysign(1.0, part) for part in parts if part == 0.0)


def _guard_signs(value: float | complex, builder: GuardBuilder, guard: Guard) -> None:
    signs = _zero_signs(value)
    _add(builder, guard, lambda found: _zero_signs(found) == signs, f"sign of zero in {value!r}")


def _add(builder: GuardBuilder, guard: Guard, check: Callable[[Any], bool], what: str) -> None:
    parts = get_verbose_code_parts(what, guard)
    manager: Any = builder.get_guard_manager(guard)
    try:
        manager.add_lambda_guard(check, parts, guard.user_stack)
    except TypeError:  # versions without the user's stack
        manager.add_lambda_guard(check, parts)


def _has_zero(gm: torch.fx.GraphModule) -> bool:
    """Whether the graph holds a zero, other than a probability of dropout."""
    calls = (n for n in gm.graph.nodes if n.op in ("call_function", "call_method", "output"))
    kept = (n for n in calls if "dropout" not in str(getattr(n.target, "__name__", n.target)))
    return any(_holds_zero((n.args, n.kwargs)) for n in kept)


def _holds_zero(item: Any) -> bool:
    if isinstance(item, dict):
        return _holds_zero(item.values())
    if isinstance(item, (float, complex)):
        return bool(_zero_signs(item))
    return isinstance(item, Iterable) and not isinstance(item, str) and any(_holds_zero(x) for x in item)
