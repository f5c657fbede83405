"""How CPython finds an attribute, step by step, with what each step reads noted."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from functools import partial
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
    SimpleNamespace,
    WrapperDescriptorType,
)
from typing import Any

import torch

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.capture.own.frame import MISSING
from lamina.capture.own.natives import CACHED
from lamina.capture.own.pending import Pending
from lamina.capture.own.reuse.facts import is_settled
from lamina.capture.own.reuse.trace import Trace
from lamina.capture.own.torch_calls import QUERIES
from lamina.capture.own.torch_private import FUNCTIONS_OF_TORCH, unseen

__all__ = ["Attributes"]

_FIELD: Any = type(vars(namedtuple("_Field", "a"))["a"])
_OF_TENSORS = (Pending, torch.Tensor, torch.nn.Parameter)
_BUILTIN = (
    list, dict, tuple, str, int, float, bool, complex, set, frozenset, bytes, range, OrderedDict, defaultdict,
    torch.Size,
    torch.finfo, torch.iinfo, torch.device, torch.dtype, CodeType, NoneType,
)  # fmt: skip
_UNCHANGING = (CodeType, torch.finfo, torch.iinfo)
"""Classes whose objects never change, but are no constants by which a fact tells them."""
_USUAL = tuple(
    vars(kind)["__getattribute__"]
    for kind in (object, SimpleNamespace, dict, OrderedDict, list, tuple, set, int, float, str)
    if "__getattribute__" in vars(kind)
)
"""Ways of C code to find an attribute, which are the usual one."""
_OF_FUNCTIONS = frozenset(
    ("__code__", "__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__", "__dict__")
)
"""Attributes of functions that C code gives as they are."""
_OF_CLASSES = frozenset(("__name__", "__qualname__", "__module__", "__bases__", "__mro__"))
"""Attributes of classes that ``type`` gives."""
_PARTS: dict[type, tuple[str, ...]] = {
    MethodType: ("__func__", "__self__"),
    property: ("fget",),
    slice: ("start", "stop", "step"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    partial: ("func", "args", "keywords"),
}
"""Attributes of Python's own objects that nothing changes, or that are noted as they are."""


class Attributes:
    """Attributes of all kinds of objects.

    ``interpret`` runs a function of the user's, ``enters`` tells whether it may; ``otherwise`` reads an attribute where
    the trace has ended, ``plain`` does by ``object.__getattribute__``.
    """

    def __init__(
        self,
        trace: Trace,
        interpret: Callable[..., Any],
        enters: Callable[[FunctionType], bool],
        otherwise: Callable[[Any, str], Any],
        plain: Callable[[Any, str], Any],
    ) -> None:
        self.trace, self.interpret, self.enters = trace, interpret, enters
        self.otherwise, self.plain = otherwise, plain

    def read(self, value: Any, name: str) -> Any:
        """``value.name``."""
        kind = type(value)
        if kind in _OF_TENSORS:
            return self._of_tensor(value, name)
        if kind is ModuleType:
            return self._of_module(value, name)
        if issubclass(kind, type):
            return self._of_class(value, name)
        if kind is super:
            return self._of_super(value, name)
        if kind is FunctionType:
            return self._of_function(value, name)
        if kind.__flags__ & MADE_BY_PYTHON or kind is SimpleNamespace:
            return self._of_instance(value, name)
        if name in _PARTS.get(kind, ()):
            return self.trace.attribute_of(value, name)
        if issubclass(kind, tuple) and hasattr(kind, "n_sequence_fields") and self.trace.place_of(value) is None:
            return getattr(value, name)  # one of several results of a call of torch's
        if kind not in _BUILTIN and not (kind is FUNCTIONS_OF_TORCH and self.trace.place_of(value) is not None):
            self.trace.end(f"attribute {name} of a {kind.__name__} is read")
            return self.otherwise(value, name)
        if kind in _UNCHANGING and (place := self.trace.place_of(value)) is not None:
            self.trace.note("is", (place,), value)
        found = getattr(value, name)
        if is_settled(found) or type(found) is BuiltinFunctionType:
            return found
        self.trace.end(f"attribute {name} of a {kind.__name__} is read")
        return found

    def _of_tensor(self, value: Any, name: str) -> Any:
        trace = self.trace
        kind = torch.Tensor if type(value) is Pending else type(value)
        found = trace.class_entry(kind, name)
        place = trace.place_of(value)
        if name == "__class__":
            return trace.fixed(kind)
        if isinstance(found, GetSetDescriptorType):
            if name == "is_leaf" and place is not None:
                with unseen():
                    return value.is_leaf
            if name == "grad" and (held := trace.gradients.read(value)) is not MISSING:
                return held
            if name == "grad_fn" and type(value) is not Pending and trace.learning.ref(value) is not None:
                with unseen():
                    if value.grad_fn is None:  # which its looks tell
                        return None
            if name in QUERIES and name != "is_shared":
                return getattr(value, name)
            if name.startswith("_"):
                trace.end(f"attribute {name} of a tensor is read")
            return self.otherwise(value, name)
        seen = type(found) is FunctionType and "handle_torch_function" in found.__code__.co_names
        if seen or isinstance(found, (MethodDescriptorType, WrapperDescriptorType)):
            if place is not None:
                self.bare(value, name)
            return getattr(value, name)
        fallback = trace.class_entry(kind, "__getattr__")
        if found is MISSING and fallback is MISSING and name not in value.__dict__ and not name.startswith("_"):
            self.bare(value, name)
            return getattr(value, name)
        if place is not None and found is MISSING and name in value.__dict__:
            return trace.dict_item(trace.attribute_of(value, "__dict__"), name)
        trace.end(f"attribute {name} of a tensor is read")
        return self.otherwise(value, name)

    def bare(self, value: Any, name: str) -> None:
        """Note that a tensor has no attribute ``name`` of its own, which would come before that of its class."""
        trace, place = self.trace, self.trace.place_of(value)
        if place is None:
            return
        if not value.__dict__:
            trace.note("bare", (place,), None)
        elif trace.dict_item(trace.attribute_of(value, "__dict__"), name) is not MISSING:
            trace.end(f"a tensor has an attribute {name} of its own")

    def _of_module(self, value: Any, name: str) -> Any:
        trace = self.trace
        trace.fixed(value)
        space = trace.attribute_of(value, "__dict__")
        found = trace.dict_item(space, name)
        if found is not MISSING:
            return found
        trace.end(f"attribute {name} of module {value.__name__} is computed")
        return self.otherwise(value, name)

    def _of_function(self, value: Any, name: str) -> Any:
        trace = self.trace
        if name in _OF_FUNCTIONS and (trace.place_of(value) is not None or trace.is_made(value)):
            if name == "__code__" and (place := trace.place_of(value)) is not None:
                trace.note("is", (trace.facts.place("attribute", place, name),), value.__code__)
                return value.__code__
            return trace.attribute_of(value, name)
        if name == "__get__" and (trace.place_of(value) is not None or trace.is_made(value)):
            return getattr(value, name)
        if hasattr(FunctionType, name):
            trace.end(f"attribute {name} of a function is read")
            return self.otherwise(value, name)
        found = trace.dict_item(trace.attribute_of(value, "__dict__"), name)
        return getattr(value, name) if found is MISSING else found

    def _of_class(self, value: type, name: str) -> Any:
        trace, meta = self.trace, type(value)
        trace.fixed(value)
        if name in _OF_CLASSES and trace.class_entry(meta, name) is vars(type)[name]:
            return trace.attribute_of(value, name)
        of_meta = trace.class_entry(meta, name)
        usual = trace.class_entry(meta, "__getattribute__") is type.__getattribute__
        found: Any = trace.class_entry(value, name) if usual and of_meta is MISSING else MISSING
        if found is MISSING:
            usual = usual and trace.class_entry(meta, "__getattr__") is MISSING
            getter = trace.attribute_of(of_meta, "fget") if usual and type(of_meta) is property else None
            if type(getter) is FunctionType and self.enters(getter):
                return self.interpret(getter, value)
            if usual and of_meta is MISSING:
                return getattr(value, name)
            trace.end(f"attribute {name} of class {value.__qualname__} is its metaclass's")
            return self.otherwise(value, name)
        kind = type(found)
        if kind is FunctionType or kind is property or not self.has(found, "__get__"):
            return found
        if kind is staticmethod:
            return trace.attribute_of(found, "__func__")
        if kind is classmethod:
            return self._bound(trace.attribute_of(found, "__func__"), value)
        if kind in (MethodDescriptorType, WrapperDescriptorType, BuiltinFunctionType):
            return found
        if kind is ClassMethodDescriptorType and not value.__flags__ & MADE_BY_PYTHON:
            return getattr(value, name)
        trace.end(f"attribute {name} of class {value.__qualname__} is a descriptor")
        return self.otherwise(value, name)

    def _bound(self, function: Any, owner: Any) -> Any:
        if type(function) is not FunctionType:
            self.trace.end("a method is no function")
        return MethodType(function, owner)

    def _of_super(self, value: Any, name: str) -> Any:
        trace = self.trace
        if trace.place_of(value) is not None:
            trace.end("super() is kept")
            return self.otherwise(value, name)
        owner, kind = value.__self__, value.__self_class__
        order = kind.__mro__
        rest = order[order.index(value.__thisclass__) + 1 :]
        found = trace.searched(kind, rest, name)
        if type(found) is FunctionType:
            return MethodType(found, owner) if owner is not kind else found
        if type(found) is BuiltinFunctionType:
            return found
        if type(found) is WrapperDescriptorType and (name == "__init__" or found in (*_USUAL, object.__setattr__)):
            return getattr(value, name)
        if type(found) in (WrapperDescriptorType, MethodDescriptorType) and found.__objclass__ in (dict, OrderedDict):
            return getattr(value, name)
        trace.end(f"attribute {name} of super() is a descriptor")
        return self.otherwise(value, name)

    def _of_instance(self, value: Any, name: str) -> Any:
        trace, kind = self.trace, type(value)
        if trace.place_of(value) is None and not trace.is_made(value):
            trace.end(f"it is not known where a {kind.__qualname__} comes from")
            return self.otherwise(value, name)
        reader = trace.class_entry(kind, "__getattribute__")
        if type(reader) is FunctionType and self.enters(reader):
            try:
                return self.interpret(reader, value, name)
            except AttributeError:
                return self._by_fallback(value, name)
        if name == "__class__":
            return self._class_of(value)
        of_module = reader is ModuleType.__getattribute__
        if (reader not in _USUAL and not of_module) or not self._has_plain_dict(kind):
            trace.end(f"attributes of {kind.__qualname__} are found in a way of its own")
            return self.otherwise(value, name)
        try:
            found = self._found_usually(value, name, self.otherwise)
        except AttributeError:  # of what a property runs
            if trace.class_entry(kind, "__getattr__") is MISSING:
                raise
            found = MISSING
        if found is not MISSING:
            return found
        if of_module and trace.dict_item(self.stored(value, "__dict__"), "__getattr__") is not MISSING:
            trace.end(f"attribute {name} of a {kind.__qualname__} is computed")
            return self.otherwise(value, name)
        other = trace.class_entry(kind, "__getattr__")
        if type(other) is FunctionType and (self.enters(other) or trace.ended is not None):
            return self.interpret(other, value, name)
        if other is not MISSING:
            trace.end(f"attributes of {kind.__qualname__} are found in a way of its own")
        return self.otherwise(value, name)

    def _by_fallback(self, value: Any, name: str) -> Any:
        """What a ``__getattr__`` gives after the class's own ``__getattribute__`` has raised; raises that without."""
        other = self.trace.class_entry(type(value), "__getattr__")
        if other is MISSING:
            raise
        if type(other) is not FunctionType or not self.enters(other):
            self.trace.end(f"attributes of {type(value).__qualname__} are found in a way of its own")
        return self.interpret(other, value, name)

    def _class_of(self, value: Any) -> Any:
        trace = self.trace
        if trace.class_entry(type(value), "__class__") is not vars(object)["__class__"]:
            trace.end("a class has a __class__ of its own")
        return trace.fixed(type(value))

    def plainly(self, value: Any, name: str) -> Any:
        """``object.__getattribute__(value, name)`` of an object of a class of Python's."""
        trace, kind = self.trace, type(value)
        if (trace.place_of(value) is None and not trace.is_made(value)) or not self._has_plain_dict(kind):
            trace.end(f"it is not known where the attributes of a {kind.__qualname__} are")
            return self.plain(value, name)
        if name == "__class__":
            return self._class_of(value)
        found = self._found_usually(value, name, self.plain)
        return object.__getattribute__(value, name) if found is MISSING else found

    def _found_usually(self, value: Any, name: str, otherwise: Callable[[Any, str], Any]) -> Any:
        """What the class of ``value`` or ``value`` itself has under ``name``, ``MISSING`` if there is nothing."""
        trace, kind = self.trace, type(value)
        found = trace.class_entry(kind, name)
        if found is not MISSING and self.has(found, "__set__", "__delete__"):
            return self._by_descriptor(value, name, found, otherwise)
        space = self.stored(value, "__dict__") if kind.__dictoffset__ else {}
        own = trace.dict_item(space, name)
        if own is not MISSING:
            return own
        return MISSING if found is MISSING else self._of_class_of(value, name, found, otherwise)

    def stored(self, value: Any, name: str) -> Any:
        """An attribute that C code finds, whatever the class of ``value`` has as ``__getattribute__``."""
        trace, place = self.trace, self.trace.place_of(value)
        if place is None or trace.class_entry(type(value), "__getattribute__") in _USUAL:
            return object.__getattribute__(value, name) if place is None else trace.attribute_of(value, name)
        found = object.__getattribute__(value, name)
        return trace.enter(found, trace.facts.place("computed", None, (object.__getattribute__, place, name)))

    def has_reader(self, value: Any) -> bool:
        """Whether the class of ``value`` has a ``__getattribute__`` of the user's."""
        kind = type(value)
        if not kind.__flags__ & MADE_BY_PYTHON or kind in _OF_TENSORS or issubclass(kind, type):
            return False
        return type(self.trace.class_entry(kind, "__getattribute__")) is FunctionType

    def has(self, found: Any, *names: str) -> bool:
        """Whether the class of ``found`` has one of the methods that make it a descriptor."""
        return any(self.trace.class_entry(type(found), name) is not MISSING for name in names)

    def _has_plain_dict(self, kind: type) -> bool:
        """Whether ``__dict__`` is where instances keep their attributes."""
        for base in kind.__mro__:
            if "__dict__" in vars(base):
                return type(vars(base)["__dict__"]) in (GetSetDescriptorType, MemberDescriptorType)
        return True

    def _by_descriptor(self, value: Any, name: str, found: Any, otherwise: Callable[[Any, str], Any]) -> Any:
        trace, kind = self.trace, type(found)
        if kind is property:
            getter = trace.attribute_of(found, "fget")
            if type(getter) is FunctionType and self.enters(getter):
                return self.interpret(getter, value)
        elif name == "__dict__":
            return self.stored(value, "__dict__")
        elif kind is MemberDescriptorType or kind is _FIELD:
            try:
                return self.stored(value, name)
            except AttributeError:
                trace.end(f"attribute {name} of a {type(value).__qualname__} is missing")
                raise
        getter = trace.class_entry(kind, "__get__")
        if kind is not property and type(getter) is FunctionType and self.enters(getter):
            return self.interpret(getter, found, value, trace.fixed(type(value)))
        trace.end(f"attribute {name} of a {type(value).__qualname__} is a descriptor")
        return otherwise(value, name)

    def _of_class_of(self, value: Any, name: str, found: Any, otherwise: Callable[[Any, str], Any]) -> Any:
        """What the class of ``value`` has, as an attribute of ``value``."""
        trace, kind = self.trace, type(found)
        if kind is FunctionType or kind is CACHED:
            return MethodType(found, value)
        if kind is staticmethod:
            return trace.attribute_of(found, "__func__")
        if kind is classmethod:
            return self._bound(trace.attribute_of(found, "__func__"), trace.fixed(type(value)))
        if not self.has(found, "__get__"):
            return found
        getter = trace.class_entry(kind, "__get__")
        if type(getter) is FunctionType and self.enters(getter):
            return self.interpret(getter, found, value, trace.fixed(type(value)))
        if kind is BuiltinFunctionType:
            return found
        if kind in (MethodDescriptorType, WrapperDescriptorType) and found.__objclass__ in (dict, OrderedDict):
            return object.__getattribute__(value, name)
        if kind is MethodDescriptorType and found.__objclass__ is object:  # a method of C's, which is another each time
            return object.__getattribute__(value, name)
        trace.end(f"attribute {name} of a {type(value).__qualname__} is a descriptor")
        return otherwise(value, name)
