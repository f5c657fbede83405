"""Notes of what a trace asked for and did not find, and the guards on it; names as read in torch 2.11 to 2.13.

Dynamo guards on attributes that it found. Of those that it did not find it guards few: what ``hasattr`` is asked of
objects and modules of torch. Of lists and the like it takes any attribute for one that it does not know, ends the graph
and asks for it before it brings what the function did to its arguments about: the exception came too early.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Sequence
from enum import EnumMeta
from types import BuiltinFunctionType
from typing import Any

from torch._dynamo.exc import raise_observed_exception
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.lists import ListVariable, TupleVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable
from torch._guards import Guard, Source

from lamina.capture.external_state.reads import users_own
from lamina.capture.guards.torch_private import add_check
from lamina.capture.missing_attributes.lookup import keys_of, lacks, may_make_up

__all__ = ["missing_attribute_guards", "note_missing_attributes"]

_KEPT = "lamina_asked_for"
_OF_ALL: dict[str, Callable[[Any], Any]] = {"__dict__": keys_of, "__dir__": dir}
"""What is asked for by such a name tells of all attributes."""
_PLAIN: dict[type, type] = {ListVariable: list, TupleVariable: tuple, ConstDictVariable: dict}
"""Variables of values whose classes are Python's own, which alone say what attributes there are."""
_ASKING = (builtins.getattr, builtins.hasattr)
_ASKING_ALL = {builtins.vars: "__dict__", builtins.dir: "__dir__"}


def note_missing_attributes() -> None:
    """Have each trace note what user's code asks values for by name, where they may not have it."""
    load_any, call_any = InstructionTranslatorBase._load_attr, InstructionTranslatorBase.call_function

    @functools.wraps(load_any)
    def load(self: Any, attr: Any) -> None:
        asked = self.stack[-1]
        try:
            _raise_missing(self, asked, attr)
            load_any(self, attr)
        except Exception:
            _note(self, asked, attr)
            raise
        if attr in _OF_ALL or may_make_up(_value(asked)):
            _note(self, asked, attr)

    @functools.wraps(call_any)
    def call(self: Any, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        try:
            call_any(self, fn, args, kwargs)
        finally:
            function = _value(fn)
            if len(args) > 1 and any(function is asking for asking in _ASKING) and not _is_guarded(args[0]):
                _note(self, args[0], _constant(args[1]), function is builtins.hasattr)
            for asking, name in _ASKING_ALL.items():
                if args and function is asking:
                    _note(self, args[0], name)

    InstructionTranslatorBase._load_attr = load  # type: ignore[method-assign]
    InstructionTranslatorBase.call_function = call  # type: ignore[method-assign]


def _raise_missing(tx: Any, asked: Any, name: str) -> None:
    """Raise the program's ``AttributeError`` in the trace if a value of Python's own kinds has no such attribute."""
    found = asked.realize() if issubclass(type(asked), LazyVariableTracker) else asked
    kind, value = _PLAIN.get(type(found)), _value(found)
    if kind is not None and not (kind is dict and found.user_cls is not dict) and not hasattr(kind, name):
        raise_observed_exception(AttributeError, tx, args=[f"{kind.__name__!r} object has no attribute {name!r}"])
    if type(value) is BuiltinFunctionType and lacks(value, name):
        raise_observed_exception(
            AttributeError, tx, args=[f"{type(value).__name__!r} object has no attribute {name!r}"]
        )
    if type(value) in (type, EnumMeta) and lacks(value, name) and name not in getattr(value, "__members__", ()):
        raise_observed_exception(AttributeError, tx, args=[f"type object {value.__name__!r} has no attribute {name!r}"])


def _is_guarded(asked: Any) -> bool:
    """Whether Dynamo guards what ``hasattr`` and ``getattr`` with a default find out of a value."""
    return issubclass(type(_realised(asked)), (UserDefinedObjectVariable, TensorVariable))


def _note(tx: Any, asked: Any, name: Any, also_present: bool = False) -> None:
    found = _realised(asked)
    if found is None or not isinstance(name, str) or not users_own([tx.f_code]):
        return
    source = found.source
    if source is None:  # some kinds do not say where they were found
        cached = tx.output.variable_tracker_cache.items()
        source = next((s for s, v in cached if v is asked or _realised(v) is found), None)
    if source is not None:
        names = vars(tx.output).setdefault(_KEPT, {}).setdefault(source, {})
        names[name] = also_present or names.get(name, False)


def _realised(variable: Any) -> Any:
    if issubclass(type(variable), LazyVariableTracker):  # asked for anything else it would go on tracing
        return variable.realize() if variable.is_realized() else None
    return variable


def _value(variable: Any) -> Any:
    found = _realised(variable)
    if found is None:
        return None
    held = vars(found)
    # The builtin functions themselves have classes of their own in some versions.
    return next((held[name] for name in ("value", "fn") if held.get(name) is not None), getattr(found, "_fn", None))


def _constant(variable: Any) -> Any:
    found = _realised(variable)
    return vars(found).get("value") if found is not None else None


def missing_attribute_guards(output: Any) -> list[Guard]:
    """Guards on what the trace that leads to ``output`` asked for and did not find."""
    asked: dict[Source, dict[str, bool]] = vars(output).get(_KEPT, {})
    return [Guard(source, functools.partial(_guard, tuple(names.items()))) for source, names in asked.items()]


def _guard(names: Sequence[tuple[str, bool]], builder: GuardBuilder, guard: Guard) -> None:
    """For each name, whether it is there if that matters, else that it is not if it is not."""
    value = builder.get(guard.originating_source)
    for name, also_present in names:
        if name in _OF_ALL:
            check = _same(_OF_ALL[name], value)
        elif also_present or lacks(value, name):
            check = _same(functools.partial(lacks, name=name), value)
        else:
            continue
        add_check(builder, guard, check, f"whether {name} is there")


def _same(ask: Callable[[Any], Any], value: Any) -> Callable[[Any], bool]:
    expected = ask(value)
    return lambda found: ask(found) == expected
