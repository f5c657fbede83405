"""Functions of Python's that are answered while a call is traced, with what their answers rest on."""

from __future__ import annotations

import builtins
import sys
import weakref
from collections.abc import Callable
from copy import deepcopy
from types import FunctionType, MethodType, MethodWrapperType
from typing import Any

from torch.accelerator import current_accelerator
from torch.overrides import has_torch_function

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.capture.own.capturing import are_tensors
from lamina.capture.own.copying import copies_plainly, copyable, deep_copy, is_deepcopy
from lamina.capture.own.frame import MISSING
from lamina.capture.own.importing import absolute, is_loaded
from lamina.capture.own.natives import is_member
from lamina.capture.own.own_methods import is_own_method
from lamina.capture.own.queries.torch_private import FUNCTION_MODES_ENTERED
from lamina.capture.own.reuse.attribute_reads import Attributes
from lamina.capture.own.reuse.trace import Trace
from lamina.capture.own.reuse.values import referent
from lamina.capture.own.torch_private import has_other_modes
from lamina.capture.own.training.torch_private import OTHER_BACKEND

__all__ = ["ANSWERS", "bound_method", "is_copied", "is_function", "member_of", "note_kind"]


def member_of(trace: Trace, function: Any, *args: Any) -> Any:
    """A member of an enumeration, by its value; ``MISSING`` if that is not known."""
    if trace.place_of(function) is None or len(args) != 1 or not is_member(function, args[0]):
        return MISSING
    for made_by in (trace.class_entry(function, "__new__"), trace.class_entry(type(function), "__call__")):
        if (place := trace.place_of(made_by)) is not None:
            trace.note("is", (place,), made_by)
    if type(args[0]) is function:
        return args[0]
    found = trace.dict_item(trace.class_entry(function, "_value2member_map_"), args[0])
    return MISSING if found is MISSING else found


def _text_of(attributes: Attributes, *args: Any) -> Any:
    """``str`` and ``repr`` of a class."""
    trace, kind = attributes.trace, type(args[0]) if len(args) == 1 else None
    if kind is None or not issubclass(kind, type):
        return MISSING
    for name in ("__str__", "__repr__"):
        if trace.class_entry(kind, name) not in (MISSING, type.__repr__, object.__str__):
            return MISSING
    trace.fixed(args[0])
    trace.class_entry(args[0], "__module__")
    return str(args[0]) if type(trace.attribute_of(args[0], "__qualname__")) is str else MISSING


def _told(function: Callable[[], Any]) -> Callable[..., Any]:
    """Answers what ``function`` tells of the process, which a later call asks it before it runs."""

    def answer(attributes: Attributes, *args: Any) -> Any:
        trace = attributes.trace
        return MISSING if args else trace.enter(function(), trace.facts.place("computed", None, (function,)))

    return answer


def _accelerator(attributes: Attributes, check_available: Any = False, *rest: Any) -> Any:
    """Which device of this machine computes faster than its CPU."""
    trace = attributes.trace
    if rest or type(check_available) is not bool or not is_function(trace, current_accelerator):
        return MISSING
    place = trace.facts.place("computed", None, (current_accelerator, check_available))
    return trace.enter(current_accelerator(check_available), place)


def _referred(trace: Trace, reference: Any) -> Any:
    """What a weak reference from outside leads to."""
    place = trace.place_of(reference)
    if place is None:
        return MISSING
    return trace.enter(reference(), trace.facts.place("computed", None, (referent, place)))


def bound_method(trace: Trace, function: Any, args: tuple[Any, ...]) -> Any:
    """What calls of C's own make of what is known: methods of functions, and referents; ``MISSING`` for others."""
    if type(function) is weakref.ref and not args:
        return _referred(trace, function)
    if type(function) is MethodWrapperType and function.__name__ == "__get__":
        of = function.__self__
        if type(of) is FunctionType and len(args) in (1, 2) and args[0] is not None:
            return MethodType(of, args[0])
    return MISSING


def is_function(trace: Trace, function: Any) -> bool:
    """Note that a function of Python's, which is answered without entering it, is still that one.

    False if it is not known where it comes from. Functions of C's are the same object wherever they are found.
    """
    if type(function) is not FunctionType:
        return True
    place = trace.place_of(function)
    if place is None:
        return False
    trace.note("is", (place,), function)
    trace.note("is", (trace.facts.place("attribute", place, "__code__"),), function.__code__)
    return True


def is_copied(trace: Trace, value: Any) -> bool:
    """Whether ``deep_copy`` is to copy ``value`` in place of ``copy.deepcopy``, and what tells that it may."""
    copier = trace.place_of(deepcopy)
    kinds = None if copier is None or trace.ended is not None else copyable(value)
    if kinds is None or not is_deepcopy(deepcopy):
        return False
    asked = [(is_deepcopy, copier), *((copies_plainly, trace.place_of(trace.fixed(kind))) for kind in kinds)]
    for question in asked:
        trace.note("constant", (trace.facts.place("computed", None, question),), True)
    trace.fixed(deep_copy)
    return True


def note_kind(trace: Trace, value: Any, kind: type) -> None:
    """Note whether the class of ``value``, which the call has made, counts as one of abstract ``kind``."""
    places = tuple(trace.place_of(trace.fixed(one)) for one in (type(value), kind))
    asked = trace.facts.place("computed", None, (issubclass, *places))
    trace.note("constant", (asked,), issubclass(type(value), kind))


def _callable_of(attributes: Attributes, *args: Any) -> Any:
    """``callable``: which class something has, which is a fact, tells."""
    if len(args) != 1:
        return MISSING
    if type(args[0]).__flags__ & MADE_BY_PYTHON:
        attributes.trace.class_entry(type(args[0]), "__call__")
    return callable(args[0])


def _imported(attributes: Attributes, *args: Any) -> Any:
    """``import`` of a module that is loaded."""
    if len(args) != 5 or not is_loaded(*args):
        return MISSING
    trace, (name, space, _, wanted, level) = attributes.trace, args
    if level:
        package = trace.dict_item(trace.fixed(space, "globals()"), "__package__")
        name = absolute(name, package, level)
    steps = name.split(".")
    loaded = trace.fixed(sys.modules, "sys.modules")
    modules = []
    for at in range(len(steps)):
        modules.append(trace.dict_item(loaded, ".".join(steps[: at + 1])))
        place = trace.place_of(modules[-1])
        if place is None:
            return MISSING
        trace.note("is", (place,), modules[-1])
    for part in wanted or () if "__path__" in vars(modules[-1]) else ():
        trace.dict_item(attributes.stored(modules[-1], "__dict__"), part)
    return modules[-1] if wanted or level else modules[0]


def _has_torch_function(attributes: Attributes, *args: Any) -> Any:
    """Whether a tensor has a class of its own, or there is a mode: not in a call whose facts hold."""
    if len(args) != 1 or attributes.trace.place_of(args[0]) is not None or not are_tensors(args[0]):
        return MISSING
    for value in args[0]:
        if (place := attributes.trace.place_of(value)) is not None:
            attributes.trace.note("type", (place,), type(value))
    return False


ANSWERS: dict[int, Callable[..., Any]] = {
    id(current_accelerator): _accelerator,
    id(OTHER_BACKEND): _told(OTHER_BACKEND),
    id(callable): _callable_of,
    id(str): _text_of,
    id(repr): _text_of,
    id(builtins.__import__): _imported,
    id(sys.getrecursionlimit): _told(sys.getrecursionlimit),
    id(FUNCTION_MODES_ENTERED): lambda attributes, *given: has_other_modes(),
    id(has_torch_function): _has_torch_function,
    id(is_own_method): lambda attributes, *given: is_own_method(*given),
}
"""Answers by the identities of functions; each gives ``MISSING`` for a call that it does not answer."""
