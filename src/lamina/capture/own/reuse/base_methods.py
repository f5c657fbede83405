"""Methods that objects of subclasses of ``dict`` have from the dictionary: what a traced call reads and writes so."""

from __future__ import annotations

from collections import OrderedDict
from types import BuiltinFunctionType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType
from typing import Any

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.capture.own.frame import MISSING
from lamina.capture.own.reuse.facts import constant_key, is_settled
from lamina.capture.own.reuse.trace import Trace

__all__ = ["BaseMethods"]

_BASES = (dict, OrderedDict)
_ITEMS = ("get", "__getitem__", "__contains__")
_WHOLE = ("__len__", "__iter__", "keys", "values", "items")


class BaseMethods:
    """Calls of such methods, whose objects are told by the dictionary's own functions, whatever their class has."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def is_one(self, function: Any) -> bool:
        """Whether ``function`` is a method of a dictionary, of an object of a subclass."""
        if type(function) not in (BuiltinFunctionType, MethodWrapperType):
            return False
        owner = function.__self__
        return self._is_of_subclass(type(owner))

    def _is_of_subclass(self, kind: type) -> bool:
        return bool(kind.__flags__ & MADE_BY_PYTHON) and issubclass(kind, dict)

    def inherited(self, owner: Any, name: str) -> bool:
        """Whether an object of such a class has a special method from the dictionary."""
        if not self._is_of_subclass(type(owner)):
            return False
        found = self.trace.class_entry(type(owner), name)
        return type(found) in (WrapperDescriptorType, MethodDescriptorType) and found.__objclass__ in _BASES

    def called(self, owner: Any, name: str, args: tuple[Any, ...]) -> Any:
        """What the dictionary's method ``name`` gives, if it is answered here; else ``MISSING``."""
        trace = self.trace
        if not self._is_of_subclass(type(owner)):
            return MISSING
        place = trace.place_of(owner)
        if place is None and not trace.is_made(owner):
            return MISSING
        if name in _ITEMS and args and is_settled(args[0]):
            missing = trace.class_entry(type(owner), "__missing__") if name == "__getitem__" else MISSING
            return self._item(owner, name, args) if missing is MISSING else MISSING
        if name == "__setitem__" and len(args) == 2 and is_settled(args[0]):
            of = OrderedDict if issubclass(type(owner), OrderedDict) else dict
            if place is not None:
                trace.effect(of.__setitem__, owner, args, owner, args[0])
            of.__setitem__(owner, *args)
            return None
        if place is None and name in _WHOLE and not args:
            return getattr(OrderedDict if issubclass(type(owner), OrderedDict) else dict, name)(owner)
        return MISSING

    def _item(self, owner: Any, name: str, args: tuple[Any, ...]) -> Any:
        found = self._found(owner, args[0])
        if name == "__contains__":
            return found is not MISSING
        if found is MISSING and name == "get":
            return args[1] if len(args) > 1 else None
        return dict.__getitem__(owner, args[0]) if found is MISSING else found

    def _found(self, owner: Any, key: Any) -> Any:
        """What is in a dictionary under ``key``, ``MISSING`` if there is nothing."""
        trace, place = self.trace, self.trace.place_of(owner)
        found = dict.get(owner, key, MISSING)
        if place is None or (id(owner), constant_key(key)) in trace.changed:
            return found
        if found is MISSING:
            asked = trace.facts.place("computed", None, (dict.__contains__, place, key))
            trace.note("constant", (asked,), False)
            return found
        return trace.enter(found, trace.facts.place("computed", None, (dict.__getitem__, place, key)))
