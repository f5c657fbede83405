"""Operators of a traced call: what they read, and what is answered without Python."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable
from enum import EnumMeta
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.capture.own.callbacks import KEYS, calls_back
from lamina.capture.own.frame import MISSING
from lamina.capture.own.pending import Pending
from lamina.capture.own.reuse.base_methods import BaseMethods
from lamina.capture.own.reuse.calls import Calls, told_apart
from lamina.capture.own.reuse.facts import is_settled
from lamina.capture.own.reuse.trace import DICTS, TENSORS, Trace, entry
from lamina.capture.own.reuse.values import UNPACKING

__all__ = ["ARITHMETIC", "Operators"]


ARITHMETIC = {
    operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.truediv: "truediv",
    operator.floordiv: "floordiv", operator.mod: "mod", operator.pow: "pow", operator.matmul: "matmul",
    operator.lshift: "lshift", operator.rshift: "rshift", operator.and_: "and", operator.or_: "or",
    operator.xor: "xor", operator.iadd: "iadd", operator.isub: "isub", operator.imul: "imul",
    operator.itruediv: "itruediv", operator.lt: "lt", operator.le: "le", operator.eq: "eq", operator.ne: "ne",
    operator.gt: "gt", operator.ge: "ge", operator.neg: "neg", operator.pos: "pos", operator.invert: "invert",
    operator.getitem: "getitem",
}  # fmt: skip
"""Operators on tensors by the names of their methods, which are looked up in the class."""
_METHODS = {
    iter: "__iter__", operator.getitem: "__getitem__", operator.contains: "__contains__", len: "__len__",
}  # fmt: skip
_COMPARISONS = {operator.eq: "__eq__", operator.ne: "__ne__"}
_PLAIN_COMPARISONS = [vars(kind)[name] for kind in (object, str, int) for name in _COMPARISONS.values()]
_IDENTITY = (operator.is_, operator.is_not)
_NUMBERS = (int, float, bool, complex, slice, type(None), type(...))
_SINGLE = (type(None), bool, type(...))
_HOLDERS = (list, tuple, set, frozenset)


class Operators:
    """Operators; ``interpret`` runs a function of the user's, ``enters`` tells whether it may."""

    def __init__(
        self, trace: Trace, calls: Calls, interpret: Callable[..., Any], enters: Callable[[FunctionType], bool]
    ) -> None:
        self.trace, self.calls, self.interpret, self.enters = trace, calls, interpret, enters
        self.base_methods = BaseMethods(trace)

    def operated(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """What an operator gives, if it is answered here; else ``MISSING``: the base class may do it."""
        trace, first = self.trace, operands[0]
        if function in _IDENTITY:
            self._identity(*operands)
            return MISSING
        if all(map(is_settled, operands)):
            return MISSING
        of_sets = function is operator.contains and type(first) in (set, frozenset)
        if of_sets and type(operands[1]) in TENSORS and told_apart(trace, first, operands[1]):
            return MISSING
        if len(operands) > 1 and type(operands[1]) in TENSORS and type(first) in (*DICTS, defaultdict):
            return self._entry(function, *operands)
        if any(type(value) in (Pending, *TENSORS) for value in operands):
            self.on_tensors(function, operands)
            return MISSING
        if function is operator.getitem:
            return self._item(*operands)
        if function is operator.contains and type(first) in DICTS and is_settled(operands[1]):
            return trace.dict_item(first, operands[1]) is not MISSING if trace.place_of(first) else MISSING
        if function is operator.truth:
            return self._truth(first)
        if function in _COMPARISONS and (equal := self._compared(function, operands)) is not MISSING:
            return equal
        if type(first).__flags__ & MADE_BY_PYTHON:
            return self._by_method(function, operands)
        if function is operator.contains and type(first) in _HOLDERS and told_apart(trace, first, operands[1]):
            return MISSING
        if function is operator.contains and type(first) in (list, tuple) and self._are_classes(operands[1], first):
            return MISSING
        self._by_walking(function, operands)
        return MISSING

    def _are_classes(self, value: Any, container: Any) -> bool:
        """Whether all are classes, which are told by which they are; what is in the container is noted."""
        if not all(isinstance(one, type) for one in (value, *container)):
            return False
        self.trace.opened(container)
        kinds = {type(one) for one in (value, *container)}
        return all(self.trace.class_entry(kind, "__eq__") is object.__eq__ for kind in kinds)

    def _compared(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """Whether members of enumerations, or one and a constant, are equal as Python has it; else ``MISSING``."""
        trace, places = self.trace, []
        for value in operands:
            place = trace.place_of(value)
            if type(type(value)) is EnumMeta and place is not None:
                if trace.class_entry(type(value), _COMPARISONS[function]) not in _PLAIN_COMPARISONS:
                    return MISSING
            elif not is_settled(value):
                return MISSING
            places.append(value if place is None else place)
        found = function(*operands)
        trace.note("constant", (trace.facts.place("computed", None, (function, *places)),), found)
        return found

    def _by_walking(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> None:
        calls, name = self.calls, getattr(function, "__name__", "")
        if function is next:
            if self.trace.place_of(operands[0]) is not None or not calls.walked(operands[0]):
                self.trace.end("an iterator from outside is asked for the next value")
        elif function is iter or name in UNPACKING:
            if not calls.walked(operands[0]):
                self.trace.end(f"one goes over a {type(operands[0]).__qualname__}")
        elif function is operator.add and all(type(value) in (list, tuple) for value in operands):
            for value in operands:
                self.trace.opened(value)
        elif function is operator.contains and is_settled(operands[1]) and self._is_of_constants(operands[0]):
            self.trace.opened(operands[0])
        elif not all(map(calls.known, operands)):
            kinds = ", ".join(type(value).__qualname__ for value in operands)
            self.trace.end(f"{name or 'an operator'} is asked of {kinds}")

    def _is_of_constants(self, value: Any) -> bool:
        """Whether ``value`` is a list or tuple from outside that holds constants only."""
        return type(value) in (list, tuple) and id(value) not in self.trace.containers and all(map(is_settled, value))

    def _identity(self, one: Any, other: Any) -> None:
        trace = self.trace
        places = trace.place_of(one), trace.place_of(other)
        if type(one) in _SINGLE or type(other) in _SINGLE:
            return
        if is_settled(one) and is_settled(other) and not isinstance(one, torch.dtype):
            trace.end("it is asked whether two equal values are the same object")
        elif places[0] is not None and places[1] is not None and one is not other:
            trace.note("apart", (places[0], places[1]), None)

    def on_tensors(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> None:
        trace = self.trace
        name = "setitem" if function is operator.setitem else ARITHMETIC.get(function)
        if name is None:
            asked = getattr(function, "__name__", "")
            method = "__bool__" if function in (operator.truth, operator.not_) else "__iter__"
            if method == "__iter__" and function is not iter and asked not in UNPACKING:
                trace.end(f"{asked or 'an operator'} is asked of a tensor")
            for kind in (torch.Tensor if type(value) is Pending else type(value) for value in operands):
                if kind in TENSORS:
                    trace.class_entry(kind, method)
            return
        for value in operands:
            kind = torch.Tensor if type(value) is Pending else type(value)
            if kind in TENSORS:
                trace.class_entry(kind, f"__{name}__")
                trace.class_entry(kind, f"__r{name}__")
            elif kind in (list, tuple):
                self.calls.opened_deep(value)
            elif kind is slice and not all(map(self._is_index, (value.start, value.stop, value.step))):
                trace.end("a slice of a tensor by an object of another kind")
            elif kind not in _NUMBERS and not is_settled(value):
                trace.end(f"an operator on a tensor and a {kind.__qualname__}")

    def _is_index(self, value: Any) -> bool:
        return is_settled(value) or type(value) in (Pending, *TENSORS)

    def _item(self, container: Any, key: Any) -> Any:
        trace, kind = self.trace, type(container)
        if kind.__flags__ & MADE_BY_PYTHON:
            return self._by_method(operator.getitem, (container, key))
        if kind in DICTS and type(type(key)) is EnumMeta and (found := self._of_member(container, key)) is not MISSING:
            return found
        if kind is defaultdict and trace.place_of(container) is None and is_settled(key):
            return self._with_default(container, key)
        if isinstance(container, type) and container in (list, tuple, dict, set):  # the type of what is in one
            return trace.remember(container[key])
        if isinstance(container, type) or kind not in (list, tuple, *DICTS) or not is_settled(key):
            trace.end(f"an item of a {kind.__qualname__} is read")
            return MISSING
        if trace.place_of(container) is None:
            return MISSING
        if kind in DICTS:
            return trace.dict_item(container, key)
        if id(container) in trace.containers:
            trace.end("a list is read after it was written to")
            return MISSING
        if type(key) is slice:
            trace.opened(container)
            return MISSING
        trace.length(container)
        found = container[key]
        return trace.child(container, "item", key % len(container), found)

    def _entry(self, function: Callable[..., Any], container: Any, key: Any) -> Any:
        """What a dictionary has for a tensor; ``MISSING`` if it is not answered here."""
        trace = self.trace
        if function not in (operator.getitem, operator.contains) or trace.place_of(container) is None:
            trace.end(f"a {type(container).__qualname__} is asked for a tensor")
            return MISSING
        found = entry(trace, container, key)
        if function is operator.contains:
            return found is not MISSING
        if found is MISSING:
            trace.end(f"a {type(container).__qualname__} has nothing for a tensor")
        return found

    def _with_default(self, container: defaultdict[Any, Any], key: Any) -> Any:
        """What a ``defaultdict`` of the call has; ``MISSING`` if it is not known how it makes what is new."""
        factory = container.default_factory
        if key in container or factory is None or any(factory is kind for kind in (list, dict, set)):
            return container[key]
        if type(factory) is not FunctionType or not self.enters(factory):
            self.trace.end("a defaultdict makes something new")
            return MISSING
        made = self.interpret(factory)
        container[key] = made
        return made

    def _of_member(self, container: Any, key: Any) -> Any:
        """What a dictionary from outside has for a member of an enumeration; ``MISSING`` if it is not answered here."""
        trace, places = self.trace, (self.trace.place_of(container), self.trace.place_of(key))
        if None in places or id(container) in trace.containers or calls_back(key, KEYS) or key not in container:
            return MISSING
        return trace.enter(container[key], trace.facts.place("computed", None, (dict.__getitem__, *places)))

    def _truth(self, value: Any) -> Any:
        trace, kind = self.trace, type(value)
        if kind in (list, tuple, set, *DICTS):
            trace.length(value)
            return MISSING
        if kind.__flags__ & MADE_BY_PYTHON and not issubclass(kind, type):
            for name in ("__bool__", "__len__"):
                found = trace.class_entry(kind, name)
                if type(found) is FunctionType and self.enters(found):
                    return _truth_of(self.interpret(found, value), name)
                if self.base_methods.inherited(value, name):
                    length = self.base_methods.called(value, name, ())
                    if length is not MISSING:
                        return bool(length)
                if found is not MISSING:
                    trace.end(f"a {kind.__qualname__} is asked whether it is true")
                    return MISSING
            return True
        if isinstance(value, type) or kind in (FunctionType, MethodType, BuiltinFunctionType):
            return True
        trace.end(f"a {kind.__qualname__} is asked whether it is true")
        return MISSING

    def _by_method(self, function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """An operator that is one method of the user's, or of a dictionary's."""
        kind = type(operands[0])
        name = _METHODS.get(function)
        found = MISSING if name is None else self.trace.class_entry(kind, name)
        if name is not None and self.base_methods.inherited(operands[0], name):
            given = self.base_methods.called(operands[0], name, operands[1:])
            if given is not MISSING:
                return given
        if type(found) is FunctionType and self.enters(found):
            result = self.interpret(found, *operands)
            if function is iter and not hasattr(type(result), "__next__"):
                raise TypeError(f"iter() returned non-iterator of type '{type(result).__name__}'")
            if function is operator.contains and not is_settled(result):
                self.trace.end(f"{name} gives a {type(result).__qualname__}")
            if function is len:
                _truth_of(result, "__len__")
            return bool(result) if function is operator.contains else result
        self.trace.end(f"an operator on a {kind.__qualname__}")
        return MISSING


def _truth_of(found: Any, name: str) -> bool:
    """The truth of an object whose method ``name`` gave ``found``."""
    if name == "__bool__" and type(found) is not bool:
        raise TypeError(f"__bool__ should return bool, returned {type(found).__name__}")
    if name == "__len__" and not isinstance(found, int):
        raise TypeError(f"'{type(found).__name__}' object cannot be interpreted as an integer")
    if name == "__len__" and found < 0:
        raise ValueError("__len__() should return >= 0")
    return bool(found)
