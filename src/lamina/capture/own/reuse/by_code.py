"""Writes and calls of a traced call that code of the user's does: by methods, partial functions, generators."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from types import FunctionType, GeneratorType, MethodType
from typing import Any

import torch

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.capture.own.frame import MISSING
from lamina.capture.own.machine import is_generator_of_machine
from lamina.capture.own.natives import SIGNED, wrapped_by
from lamina.capture.own.reuse.attribute_reads import Attributes
from lamina.capture.own.reuse.base_methods import BaseMethods
from lamina.capture.own.reuse.changes import SET_MODULE_ATTRIBUTE, Changes
from lamina.capture.own.reuse.facts import is_settled
from lamina.capture.own.reuse.trace import Trace

__all__ = ["ByCode", "has_code"]

_IN_PLACE: dict[Callable[..., Any], str] = {
    operator.iadd: "__iadd__",
    operator.imul: "__imul__",
    operator.ior: "__ior__",
}
"""Operators that write to their first operand, by their methods."""


def has_code(value: Any) -> bool:
    """Whether the class of ``value`` may have methods of the user's; tensors are asked as torch does."""
    return bool(type(value).__flags__ & MADE_BY_PYTHON) and not issubclass(type(value), torch.Tensor)


class ByCode:
    """Finds the user's function that does something; ``interpret`` runs it, ``enters`` notes what a call reads of it.

    ``settle`` computes what may raise before something is written.
    """

    def __init__(
        self,
        trace: Trace,
        attributes: Attributes,
        changes: Changes,
        interpret: Callable[..., Any],
        enters: Callable[[FunctionType], bool],
        settle: Callable[[], None],
    ) -> None:
        self.trace, self.attributes, self.changes = trace, attributes, changes
        self.interpret, self.enters, self.settle = interpret, enters, settle
        self.base_methods = BaseMethods(trace)

    def writer(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Callable[[], Any] | None:
        """The user's method that a write to an object comes to, or the dictionary's; None for other writes."""
        target, interpret = operands[0], self.interpret
        kind = type(target)
        if not kind.__flags__ & MADE_BY_PYTHON or issubclass(kind, (type, torch.Tensor)):
            return None
        if self.trace.place_of(target) is None and not self.trace.is_made(target):
            return None
        if function is operator.setitem:
            found = self.trace.class_entry(kind, "__setitem__")
            if type(found) is FunctionType and self.enters(found):
                return lambda: interpret(found, *operands)
            if self.base_methods.inherited(target, "__setitem__") and is_settled(operands[1]):
                self.settle()
                return lambda: self.base_methods.called(target, "__setitem__", operands[1:])
        elif function in _IN_PLACE:
            found = self.trace.class_entry(kind, _IN_PLACE[function])
            if type(found) is FunctionType and self.enters(found):
                return lambda: interpret(found, *operands)
        elif function is setattr:
            hook = self.trace.class_entry(kind, "__setattr__")
            if type(hook) is FunctionType and self.enters(hook) and hook is not SET_MODULE_ATTRIBUTE:
                return lambda: interpret(hook, *operands)
        return None

    def is_made_generator(self, value: Any) -> bool:
        """Whether a generator is of the call in progress, and interpreted."""
        if type(value) is not GeneratorType or self.trace.place_of(value) is not None:
            return False
        return is_generator_of_machine(value)

    def asked_one_by_one(self, operate: Callable[..., Any], wanted: bool, generator: Any) -> bool:
        """``any`` of what a generator gives if True is ``wanted``, else ``all``."""
        for value in generator:
            if bool(operate(operator.truth, value)) == wanted:
                return wanted
        return not wanted

    def partial(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of what ``functools.partial`` has made."""
        trace = self.trace
        held = [trace.attribute_of(function, name) for name in ("func", "args", "keywords")]
        if function.__dict__:
            return MISSING
        trace.opened(held[1])
        trace.opened(held[2])
        if trace.ended is not None:
            return MISSING
        return self.interpret(held[0], *held[1], *args, **{**held[2], **kwargs})

    def signature(self, function: Any) -> Any:
        """``inspect.signature`` of a function, or of a method, which is another object each time."""
        trace = self.trace
        of = self.attributes.read(function, "__func__") if type(function) is MethodType else function
        for one in wrapped_by(of):
            held = trace.attribute_of(one, "__dict__")
            for name in SIGNED:
                trace.dict_item(held, name)
            of = trace.dict_item(held, "__wrapped__")
            if of is MISSING and not self.enters(one):
                trace.end("a function of torch's is asked for its signature")
            elif of is MISSING:
                trace.opened(trace.attribute_of(one, "__annotations__"))
        return trace.remember(inspect.signature(function))

    def set_plainly(self, function: Any, name: str, value: Any) -> Any:
        """``object.__setattr__``; ``MISSING`` if a trace cannot hold it."""
        self.settle()
        if function.__objclass__ is not object or not self.changes.is_attribute_noted(
            function.__self__, name, value, plainly=True
        ):
            return MISSING
        function(name, value)
        return None
