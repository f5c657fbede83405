"""Guards that Dynamo leaves out, added while its trace is open; names as read in torch 2.11 to 2.13."""

from __future__ import annotations

import functools
import math
import operator
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.source import GlobalStateSource, is_from_skip_guard_source
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.tensor import TensorVariable
from torch._guards import Guard, Source, TracingContext
from torch._ops import OpOverload, OpOverloadPacket
from torch.nn.modules import module as modules

from lamina.capture.deques.torch_private import guards_on_bound
from lamina.capture.external_state import reads
from lamina.capture.external_state.special_methods import classes_of_modules, forwards, special_methods
from lamina.capture.finalizers.torch_private import end_guards
from lamina.capture.guards.torch_private import add_check, add_check_of_call
from lamina.capture.identities.torch_private import identity_guards
from lamina.capture.missing_attributes.torch_private import missing_attribute_guards

__all__ = ["guard_unguarded", "is_guarded", "registered_names", "translator", "value_of"]

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
    """Make the graph being compiled depend on what it read and Dynamo does not guard on; how many guards are added.

    These are methods of built-in classes (functions that share their code but close over different ones would share
    graphs), the sign of a zero, hooks of all modules, the order of an ordered dictionary, what a tensor of the caller's
    is part of, which values are the same object, and the facts that ``_surroundings`` finds.
    """
    context, tx = TracingContext.try_get(), translator()
    if context is None or tx is None:
        return 0
    guards = context.guards_context.dynamo_guards
    guarded = {g.originating_source for g in guards}
    codes = reads.users_own(context.traced_code)
    names = reads.names_read(codes)
    zeros = _has_zero(gm) or _gives_zero(tx) or not names.isdisjoint(_TELL_ZEROS_APART) or reads.formats(codes)
    # Dynamo makes no guards on its own helpers, and nothing to hang others on.
    found = [(s, v) for s, v in tx.output.variable_tracker_cache.items() if not is_from_skip_guard_source(s)]
    whole = _surroundings(gm, tx, [v for _, v in found], context.traced_code)
    asked = tuple(sorted(names & _OF_TENSORS.keys()))
    read = reads.names_read(context.traced_code)
    added: list[Guard] = []
    if whole is not None:
        added.append(Guard(GlobalStateSource(), whole))
    added += identity_guards(tx.output.side_effects, [s for s, _ in found], codes)
    for source, variable in found:
        makes = _missing(source, variable, source in guarded, zeros)
        if asked and issubclass(type(variable), TensorVariable):
            makes.append(functools.partial(_guard_part, asked))
        makes += [
            functools.partial(GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT, attr=name)
            for name in registered_names(variable, read)
            if name not in vars(value_of(variable))
        ]
        added += [Guard(source, make) for make in makes]
    added += missing_attribute_guards(tx.output)
    added += end_guards(tx, guarded)
    for guard in added:
        guards.add(guard, collect_debug_stack=False)
    vars(tx.output)[_GUARDED] = True
    return len(added)


_GUARDED = "lamina_guarded"


def is_guarded(output: Any) -> bool:
    """Whether the trace that leads to ``output`` has the guards of ``guard_unguarded``."""
    return _GUARDED in vars(output)


def registered_names(variable: VariableTracker, names: frozenset[str]) -> list[str]:
    """Those of ``names`` that a module registered: Dynamo takes what is registered before attributes."""
    module = value_of(variable)
    if not issubclass(type(module), torch.nn.Module):
        return []
    held = (vars(module).get(kind) for kind in ("_modules", "_parameters", "_buffers"))
    return sorted(names.intersection(*[{name for found in held if found for name in found}]))


def translator() -> Any:
    """What traces now in this thread, None if nothing does."""
    try:
        return InstructionTranslator.current_tx()
    except AttributeError:  # none has ever run in this thread
        return None


def _missing(source: Source, variable: VariableTracker, guarded: bool, zeros: bool) -> list[Any]:
    """What makes the guards that ``variable`` lacks."""
    value = value_of(variable)
    if not guarded and isinstance(value, _C_CALLABLES):
        return [GuardBuilder.ID_MATCH]
    if zeros and guarded and isinstance(value, (float, complex)) and _zero_signs(value):
        return [functools.partial(_guard_signs, value)]
    if value is None and vars(variable).get("user_cls") is OrderedDict:  # as 2.11 and 2.12 hold one
        return [GuardBuilder.SEQUENCE_LENGTH if _HOOKS_OF_ALL in source.name else _guard_order]
    if isinstance(value, OrderedDict):
        if any(value is hooks for hooks in _GLOBAL_HOOKS):
            return [GuardBuilder.SEQUENCE_LENGTH]
        if len(value) > 1:
            return [_guard_order]
    return guards_on_bound(variable)


_TELL_ZEROS_APART = frozenset({"atan2", "arctan2", "copysign", "signbit", "phase", "str", "repr", "format", "hex"})
"""Functions whose results differ between zero and negative zero, so that graphs may differ that hold neither."""

_HOOKS_OF_ALL = "_global_"
_GLOBAL_HOOKS = tuple(v for k, v in vars(modules).items() if k.startswith(_HOOKS_OF_ALL) and isinstance(v, OrderedDict))

_OF_TENSORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "_base": lambda tensor: tensor._base is None,
    "_is_view": lambda tensor: tensor._is_view(),
    "grad_fn": lambda tensor: type(tensor.grad_fn),
    "is_leaf": lambda tensor: tensor.is_leaf,
}
"""What a program may ask of a tensor and Dynamo answers for the one it saw only."""


def value_of(variable: VariableTracker) -> Any:
    """The Python value that ``variable`` stands for, None where it has none of its own."""
    held = vars(variable)  # a property of one of these names would go on tracing
    return next((held[name] for name in ("value", "fn", "fn_cls") if held.get(name) is not None), None)


def _surroundings(
    gm: torch.fx.GraphModule, tx: Any, variables: Sequence[VariableTracker], traced: Sequence[types.CodeType]
) -> Any:
    """What makes the one guard on all that can be asked without the inputs; None if there is nothing to ask.

    Methods found on classes and their code; names that are not there and hide others when they come: globals that hide
    builtins, attributes that hide those of a base; methods that Python asks classes for; classes of modules; modules
    imported by name; classes registered as subclasses; methods of tensors.
    """
    values = [value_of(v) for v in variables]
    codes = reads.users_own(traced)
    names = reads.names_read(codes)
    classes = _classes(values)
    own = [kind for kind in classes if kind.__module__.split(".")[0] not in _KNOWN]
    scopes = {tx.f_code: tx.f_globals}
    scopes.update({v.__code__: v.__globals__ for v in values if isinstance(v, types.FunctionType)})
    used = {str(n.target) for n in gm.graph.nodes if n.op == "call_method"} | _operators(gm)
    methods = _methods(own, traced)
    read = [v for v in values if isinstance(v, type)]
    read += [kind for v in variables if isinstance(kind := vars(v).get("class_type"), type)]
    held = [kind for v in variables if isinstance(kind := vars(v).get("user_cls"), type)]
    read += own if "__class__" in names else []  # of ``x.__class__`` Dynamo makes no variable that is told here
    asked = [kind for kind in dict.fromkeys(read) if kind.__module__.split(".")[0] not in _KNOWN]
    checks = {
        "methods of " + ", ".join(sorted({kind.__qualname__ for kind, *_ in methods})): (
            functools.partial(_unchanged, methods) if methods else None
        ),
        "globals that hide builtins": reads.absent_names((code, scopes[code]) for code in codes if code in scopes),
        "special methods": special_methods(dict.fromkeys([*own, *asked, *held])),
        "forward of torch's modules": forwards(classes),
        "classes of modules": classes_of_modules(values),
        "attributes that hide others": reads.shadowing_attributes(own, names),
        "attributes of classes": None if _CLASSES_ARE_GUARDED else reads.constant_attributes(asked, names),
        "imported modules": reads.imported_modules(codes),
        "registered classes": reads.subclasses(classes, [v for v in values if isinstance(v, type)]),
        "methods of tensors": reads.patched_methods(frozenset(used)) if used else None,
    }
    kept = {what: check for what, check in checks.items() if check is not None}
    return functools.partial(_guard_all, tuple(kept.values()), "; ".join(kept)) if kept else None


_CLASSES_ARE_GUARDED = not torch.__version__.startswith("2.11.")
"""Whether Dynamo guards what it reads of a class itself, as ``Model.scale``; 2.11 does so for what instances have."""
_KNOWN = ("torch", "builtins", "collections")


def _classes(values: Sequence[Any]) -> list[type]:
    return list({(v if isinstance(v, type) else type(v)): None for v in values if v is not None})


def _operators(gm: torch.fx.GraphModule) -> set[str]:
    """Names of the methods behind the operators in ``gm``."""
    named = (getattr(n.target, "__name__", "") for n in gm.graph.nodes if n.op == "call_function")
    plain = {name.strip("_") for name in named if hasattr(operator, name)}
    return {method for name in plain for method in (f"__{name}__", f"__r{name}__")}


_Method = tuple[type, str, types.FunctionType, types.CodeType]


def _methods(classes: Sequence[type], traced: Sequence[types.CodeType]) -> tuple[_Method, ...]:
    """The functions among those ``traced`` that were found on ``classes``."""
    codes = set(traced)
    found: list[_Method] = []
    for kind in classes:
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


def _unchanged(methods: Sequence[_Method]) -> bool:
    for kind, name, function, code in methods:
        found = getattr(kind, name, None)
        if found is not function and getattr(found, "__func__", None) is not function:
            return False
        if function.__code__ is not code:
            return False
    return True


def _guard_all(checks: Sequence[reads.Check], what: str, builder: GuardBuilder, guard: Guard) -> None:
    def unchanged(_: Any) -> bool:
        for check in checks:  # noqa: SIM110  (a generator takes twice as long)
            if not check():
                return False
        return True

    add_check_of_call(builder, guard, unchanged, what)


def _guard_order(builder: GuardBuilder, guard: Guard) -> None:
    """The order of keys."""
    keys = tuple(builder.get(guard.originating_source))
    among = frozenset(keys)
    add_check(builder, guard, lambda found: tuple(k for k in found if k in among) == keys, "order of keys")


def _guard_part(names: Sequence[str], builder: GuardBuilder, guard: Guard) -> None:
    asked = tuple(_OF_TENSORS[name] for name in names)
    tensor = builder.get(guard.originating_source)
    if not isinstance(tensor, torch.Tensor):
        return
    answers = tuple(ask(tensor) for ask in asked)
    add_check(
        builder, guard, lambda found: tuple(ask(found) for ask in asked) == answers, f"{', '.join(names)} of a tensor"
    )


def _zero_signs(value: float | complex) -> tuple[float, ...]:
    """The signs of those parts of ``value`` that are zero, which equal their negatives."""
    parts = (value.real, value.imag) if isinstance(value, complex) else (value,)
    return tuple(math.copysign(1.0, part) for part in parts if part == 0.0)


def _guard_signs(value: float | complex, builder: GuardBuilder, guard: Guard) -> None:
    signs = _zero_signs(value)
    add_check(builder, guard, lambda found: _zero_signs(found) == signs, f"sign of zero in {value!r}")


def _has_zero(gm: torch.fx.GraphModule) -> bool:
    """Whether the graph holds a zero, other than a probability of dropout."""
    calls = (n for n in gm.graph.nodes if n.op in ("call_function", "call_method", "output"))
    kept = (n for n in calls if "dropout" not in str(getattr(n.target, "__name__", n.target)))
    return any(_holds_zero((n.args, n.kwargs)) for n in kept)


def _gives_zero(tx: Any) -> bool:
    """Whether a zero that is no tensor is among what the trace returns, leaves in variables or writes to objects."""
    writes = tx.output.side_effects.store_attr_mutations.values()
    left = [*tx.stack, *tx.symbolic_locals.values(), *(value for found in writes for value in found.values())]
    return any(map(_is_zero, left))


def _is_zero(variable: Any, depth: int = 8) -> bool:
    held = vars(variable)  # a property would go on tracing
    items = held.get("items", ())
    if depth and isinstance(items, (list, tuple, dict)):
        inner = items.values() if isinstance(items, dict) else items
        if any(_is_zero(one, depth - 1) for one in inner if isinstance(one, VariableTracker)):
            return True
    return isinstance(held.get("value"), (float, complex)) and bool(_zero_signs(held["value"]))


def _holds_zero(item: Any) -> bool:
    if isinstance(item, dict):
        return _holds_zero(item.values())
    if isinstance(item, (float, complex)):
        return bool(_zero_signs(item))
    return isinstance(item, Iterable) and not isinstance(item, str) and any(_holds_zero(x) for x in item)
