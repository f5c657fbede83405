"""Attributes of objects whose classes have code of the user's for them: properties, descriptors, ``__getattr__``."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.capture.own.frame import MISSING

__all__ = ["deletes_by_code", "read_attribute", "read_plainly", "setter_of"]

Interpret = Callable[..., Any]
"""Runs a function of the user's with the arguments that follow."""


def read_attribute(value: Any, name: str, interpret: Interpret) -> Any:
    """``value.name``, with what the class of ``value`` has of the user's for it run by ``interpret``."""
    kind = type(value)
    if kind is super:
        return _of_super(value, name, interpret)
    fallback = _entry(kind, "__getattr__")
    getter = _users_getter(value, kind, name)
    if getter is None and (type(fallback) is not FunctionType or _is_torchs(fallback)):
        return getattr(value, name)
    try:
        return _entry(kind, "__getattribute__")(value, name) if getter is None else getter(interpret)
    except AttributeError:
        if type(fallback) is not FunctionType:
            raise
    return interpret(fallback, value, name)


def read_plainly(value: Any, name: str, interpret: Interpret) -> Any:
    """``object.__getattribute__(value, name)``, with a property's or a descriptor's function run by ``interpret``."""
    getter = _users_getter(value, type(value), name, plainly=True)
    return object.__getattribute__(value, name) if getter is None else getter(interpret)


def setter_of(kind: type, name: str, hooks: bool) -> Callable[..., Any] | None:
    """The user's function that an assignment to the attribute calls with the object and the value, if there is one.

    It is a ``__setattr__``, if ``hooks`` are asked for, the setter of a property, or a ``__set__``. One of torch's
    counts where there is a setter that it may come to.
    """
    hook = _entry(kind, "__setattr__") if hooks else None
    found = _entry(kind, name)
    setter = found.fset if type(found) is property else None
    written = _python_method(found, "__set__")
    by_descriptor = type(setter) is FunctionType or written is not None
    if type(hook) is FunctionType and (by_descriptor or not _is_torchs(hook)):
        return lambda interpret, owner, value: interpret(hook, owner, name, value)
    if type(setter) is FunctionType:
        return lambda interpret, owner, value: interpret(setter, owner, value)
    return None if written is None else lambda interpret, owner, value: interpret(written, found, owner, value)


def deletes_by_code(kind: type, name: str) -> bool:
    """Whether to delete an attribute runs code of Python's other than torch's."""
    hook, found = _entry(kind, "__delattr__"), _entry(kind, name)
    if type(hook) is FunctionType and not _is_torchs(hook):
        return True
    return (type(found) is property and found.fdel is not None) or _python_method(found, "__delete__") is not None


def _users_getter(value: Any, kind: type, name: str, plainly: bool = False) -> Callable[[Interpret], Any] | None:
    """What reads an attribute by a function of the user's that it runs; None if no such function has to do with it.

    ``plainly``: a ``__getattribute__`` is not asked.
    """
    hook = None if plainly else _entry(kind, "__getattribute__")
    if type(hook) is FunctionType:
        return lambda interpret: interpret(hook, value, name)
    found = _entry(kind, name)
    if issubclass(kind, type) and not _is_data(found):
        held = next((vars(base)[name] for base in _order(value) if name in vars(base)), MISSING)
        get = _python_method(held, "__get__")
        if get is not None or held is not MISSING:
            return get and (lambda interpret: interpret(get, held, None, value))
    if type(found) is property:
        getter = found.fget
        return (lambda interpret: interpret(getter, value)) if type(getter) is FunctionType else None
    get = _python_method(found, "__get__")
    if get is None or not (_is_data(found) or name not in getattr(value, "__dict__", ())):
        return None
    return lambda interpret: interpret(get, found, value, kind)


_order: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
"""The classes that a class looks into, whatever its metaclass says."""


def _of_super(value: Any, name: str, interpret: Interpret) -> Any:
    """An attribute that ``super()`` looks for in the classes after its own."""
    owner, kind = value.__self__, value.__self_class__
    if owner is None or name == "__class__":
        return getattr(value, name)
    classes = list(kind.__mro__)
    after = classes[classes.index(value.__thisclass__) + 1 :] if value.__thisclass__ in classes else []
    found = next((vars(base)[name] for base in after if name in vars(base)), MISSING)
    if type(found) is property and type(found.fget) is FunctionType and owner is not kind:
        return interpret(found.fget, owner)
    get = _python_method(found, "__get__")
    return getattr(value, name) if get is None else interpret(get, found, None if owner is kind else owner, kind)


def _entry(kind: type, name: str) -> Any:
    for base in kind.__mro__:
        found = base.__dict__
        if name in found:
            return found[name]
    return MISSING


def _python_method(descriptor: Any, name: str) -> FunctionType | None:
    """The method of a descriptor's class, if it is a function of Python's."""
    kind = type(descriptor)
    if not kind.__flags__ & MADE_BY_PYTHON:
        return None
    found = _entry(kind, name)
    return found if type(found) is FunctionType else None


def _is_data(descriptor: Any) -> bool:
    kind = type(descriptor)
    return descriptor is not MISSING and any(_entry(kind, name) is not MISSING for name in ("__set__", "__delete__"))


def _is_torchs(function: FunctionType) -> bool:
    module = function.__globals__.get("__name__", "")
    return isinstance(module, str) and module.startswith("torch.")
