"""What torch writes on functions that it has compiled (2.11 to 2.13), and how what they were made of is found."""

from __future__ import annotations

from functools import partial
from types import FunctionType, MethodType
from typing import Any

__all__ = ["marked", "uncompiled"]

_MADE_OF, _IDENTITY, _SETTINGS = "_torchdynamo_orig_callable", "_torchdynamo_wrapper_id", "get_compiler_config"


def marked(compiled: FunctionType, target: Any) -> FunctionType:
    """``compiled``, on which stands that it was made of ``target``, as torch writes it."""
    compiled.__dict__.update({_MADE_OF: target, _IDENTITY: id(compiled)})
    return compiled


def uncompiled(target: Any) -> Any:
    """What torch.compile can be given in place of ``target``, which is, calls or imitates something compiled before.

    Of a compiled function, and of a method whose function is compiled, it is what they were made of. Torch refuses what
    has an attribute of the name that it is about to write; decorators copy it to functions and objects of their own,
    for which something stands that does the same and has no such attribute. Anything else is given back as it is, as
    are modules, classes and what is never to be compiled.
    """
    if type(target) is MethodType:
        function = uncompiled(target.__func__)
        return target if function is target.__func__ else MethodType(function, target.__self__)
    if isinstance(target, type) or hasattr(type(target), "named_modules"):
        return target
    while type(target) is FunctionType and target.__dict__.get(_IDENTITY) == id(target):
        if hasattr(target, "_torchdynamo_disable"):
            return target
        target = target.__dict__[_MADE_OF]
    if _SETTINGS not in getattr(target, "__dict__", ()):
        return target
    return _without_settings(target) if type(target) is FunctionType else partial(target)


def _without_settings(function: FunctionType) -> FunctionType:
    """A function of the same code, variables and attributes, but for the one that torch refuses."""
    made = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__, made.__qualname__ = function.__kwdefaults__, function.__qualname__
    made.__module__, made.__doc__ = function.__module__, function.__doc__
    made.__annotations__ = function.__annotations__
    made.__dict__.update({name: value for name, value in vars(function).items() if name != _SETTINGS})
    return made
