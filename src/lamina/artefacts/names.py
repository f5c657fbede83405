"""Objects by names that another process finds them by: modules, classes, functions, and what belongs to them.

Whoever reads a name checks that what it finds is what was named: a class of the same name with the same bases, a
function of the same name and code. What has no such name is not stored.
"""

from __future__ import annotations

import sys
import types
from functools import lru_cache
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import torch
from torch.backends import PropModule

from lamina.artefacts.code import code_digest
from lamina.artefacts.constants import Unstorable, read_constant, written_constant
from lamina.artefacts.torch_private import HIDDEN
from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.base.namespaces import ATEN
from lamina.base.torch_private import OpOverload
from lamina.capture.own.reuse.facts import is_settled
from lamina.capture.own.reuse.kinds import IsA, Remembered

__all__ = ["ANY_MODULES", "CODE", "named", "written_name"]

CODE = "code"
"""How the name of a code object begins: the object is found where a fact says that it is."""

_ENTRIES = (
    MethodDescriptorType, WrapperDescriptorType, ClassMethodDescriptorType, GetSetDescriptorType, MemberDescriptorType,
)  # fmt: skip
ANY_MODULES = (
    "builtins",
    "operator",
    "_operator",
    "math",
    "torch",
    "torch.nn.functional",
    "torch.special",
    "torch.linalg",
    "torch.fft",
)
"""Modules in which functions are looked for that do not say where they are."""
_OF_PYTHON = {"builtins", "__main__", *sys.stdlib_module_names}


def _reached(module: str, path: str) -> Any:
    """What a module that is loaded has at a dotted ``path``. Raises ``LookupError``."""
    found: Any = sys.modules.get(module)
    if found is None:
        raise LookupError(f"module {module} is not loaded")
    for part in path.split("."):
        space = vars(found)
        if part not in space and isinstance(found, PropModule):  # what torch puts in a module's place
            space = vars(space["m"])
        if part not in space:
            raise LookupError(f"{module} has no {path}")
        found = space[part]
        if isinstance(found, staticmethod):
            found = found.__func__
    return found


def _is_at(module: Any, path: Any, value: Any) -> bool:
    try:
        return type(module) is str and type(path) is str and _reached(module, path) is value
    except (LookupError, TypeError):
        return False


# Classes.

_OF_TYPES = {id(value): name for name, value in vars(types).items() if isinstance(value, type)}


def _class_parts(kind: type) -> list[Any]:
    module, path = _class_place(kind)
    bases = [list(_class_place(base)) for base in kind.__mro__[1:]] if kind.__flags__ & MADE_BY_PYTHON else []
    return [module, path, bases, list(_class_place(type(kind)))]


def _class_place(kind: type) -> tuple[str, str]:
    module, path = kind.__module__, kind.__qualname__
    if _is_at(module, path, kind):
        if not kind.__flags__ & MADE_BY_PYTHON:
            _check_origin(module, path)
        return module, path
    if id(kind) in _OF_TYPES:
        return "types", _OF_TYPES[id(kind)]
    if _is_at(HIDDEN, kind.__name__, kind):
        return HIDDEN, kind.__name__
    raise Unstorable(f"class {path} of {module} cannot be found by its name")


def _check_origin(module: str, path: str) -> None:
    """Of code in C only Python's and torch's is known to be the same in another process: their versions say so."""
    top = module.partition(".")[0]
    if top not in _OF_PYTHON and top != "torch":
        raise Unstorable(f"{module}.{path} is written in C")


def _read_class(module: str, path: str, bases: list[Any], meta: list[str]) -> type:
    found = _reached(module, path)
    if not isinstance(found, type) or _class_parts(found) != [module, path, bases, meta]:
        raise LookupError(f"class {path} of {module} is another one")
    return found


# Functions.


def _function_name(function: FunctionType) -> list[Any]:
    module, path = function.__module__, function.__qualname__
    places = ((module, path), (module, function.__name__), *((known, function.__name__) for known in ANY_MODULES))
    operators = (("torch", f"Tensor.{name}") for name, entry in vars(torch.Tensor).items() if entry is function)
    for at in (*places, *operators):
        if _is_at(*at, function):
            return ["function", *at, *_function_parts(function)]
    raise Unstorable(f"function {path} of {module} cannot be found by its name")


def _function_parts(function: FunctionType) -> list[Any]:
    of_torch = (function.__module__ or "").partition(".")[0] in ("torch", "lamina")
    if function.__closure__ and not of_torch:
        raise Unstorable(f"function {function.__qualname__} has variables of another one")
    defaults = written_constant(function.__defaults__) if is_settled(function.__defaults__) else None
    if defaults is None and function.__defaults__ is not None and not of_torch:
        raise Unstorable(f"function {function.__qualname__} has defaults that may change")
    keywords = sorted(function.__kwdefaults__ or ())
    return [function.__name__, function.__qualname__, code_digest(function.__code__), defaults, keywords]


def _read_function(module: str, path: str, *parts: Any) -> FunctionType:
    found = _reached(module, path)
    if type(found) is not FunctionType or _function_parts(found) != list(parts):
        raise LookupError(f"function {path} of {module} is another one")
    return found


def _builtin_name(function: BuiltinFunctionType) -> list[Any]:
    owner = function.__self__
    homes = [owner.__name__] if isinstance(owner, ModuleType) else []
    for module in (*homes, function.__module__, *ANY_MODULES):
        if _is_at(module, function.__name__, function):
            _check_origin(module, function.__name__)
            return ["builtin", module, *_builtin_parts(function)]
    if isinstance(owner, type):
        return ["method of class", *_class_parts(owner), *_builtin_parts(function)]
    raise Unstorable(f"function {function.__qualname__} cannot be found by its name")


def _builtin_parts(function: BuiltinFunctionType) -> list[Any]:
    owner = function.__self__
    of = owner.__name__ if isinstance(owner, (ModuleType, type)) else None
    return [function.__name__, function.__qualname__, function.__module__, of]


def _read_builtin(module: str, name: str, *parts: Any) -> Any:
    found = _reached(module, name)
    if type(found) is not BuiltinFunctionType or _builtin_parts(found) != [name, *parts]:
        raise LookupError(f"{module}.{name} is another function")
    return found


def _read_class_method(module: str, path: str, bases: list[Any], meta: list[str], name: str, *parts: Any) -> Any:
    found = getattr(_read_class(module, path, bases, meta), name)
    if type(found) is not BuiltinFunctionType or _builtin_parts(found) != [name, *parts]:
        raise LookupError(f"{path}.{name} is another function")
    return found


def _entry_name(entry: Any) -> list[Any]:
    kind, name = entry.__objclass__, entry.__name__
    if vars(kind).get(name) is not entry:
        raise Unstorable(f"{kind.__qualname__}.{name} is not what its class has")
    return ["entry", *_class_parts(kind), name, type(entry).__name__]


def _read_entry(module: str, path: str, bases: list[Any], meta: list[str], name: str, how: str) -> Any:
    kind = _read_class(module, path, bases, meta)
    found = vars(kind)[name]
    if type(found).__name__ != how or found.__objclass__ is not kind or found.__name__ != name:
        raise LookupError(f"{path}.{name} is another method")
    return found


# Functions with a cache.

_CACHED: Any = type(lru_cache(len))


def _cached_name(function: Any) -> list[Any]:
    module, path = function.__module__, function.__qualname__
    if not _is_at(module, path, function):
        raise Unstorable(f"function {path} of {module} cannot be found by its name")
    return ["cached", module, path, *_cached_parts(function)]


def _cached_parts(function: Any) -> list[Any]:
    inner = function.__wrapped__
    if type(inner) is not FunctionType:
        raise Unstorable(f"function {function.__qualname__} is not of Python's")
    return [*_function_parts(inner), *sorted(map(list, function.cache_parameters().items()))]


def _read_cached(module: str, path: str, *parts: Any) -> Any:
    found = _reached(module, path)
    if type(found) is not _CACHED or _cached_parts(found) != list(parts):
        raise LookupError(f"function {path} of {module} is another one")
    return found


# Operators.


def _operator_name(operator: OpOverload) -> list[Any]:
    whole = _of_operator(operator)
    space, _, name = whole.partition("::")
    if space not in ATEN:
        raise Unstorable(f"the operator {space}::{name}")
    packet = name.partition(".")[0]
    return ["operator", space, packet, str(operator).rpartition(".")[2], whole]


def _of_operator(operator: Any) -> str:
    return str(operator.name())


def _read_operator(space: str, packet: str, overload: str, name: str) -> Any:
    found = getattr(getattr(getattr(torch.ops, space), packet), overload)
    if type(found) is not OpOverload or _of_operator(found) != name:
        raise LookupError(f"operator {name} is another one")
    return found


# All of them.


def written_name(value: Any, target: Any, views: dict[int, type]) -> list[Any]:
    """A name of an object, a value of JSON. Raises ``Unstorable`` for one that has none.

    ``target`` is what is compiled, ``views`` the classes by the identities of what ``vars`` gave of them.
    """
    if value is target:
        return ["target"]
    for kinds, write in _WRITERS:
        if isinstance(value, kinds):
            name: list[Any] = write(value)
            return name
    if type(value) is MappingProxyType and id(value) in views:
        return ["vars", *_class_parts(views[id(value)])]
    if type(value) is dict:
        return _space_name(value)
    if type(value) is tuple and value and isinstance(value[0], type) and value[0].__mro__ is value:
        return ["bases", *_class_parts(value[0])]
    if type(value) is CodeType:
        return [CODE, code_digest(value)]
    if is_settled(value):
        return ["constant", written_constant(value)]
    raise Unstorable(f"a {type(value).__qualname__} has no name")


def _space_name(space: dict[Any, Any]) -> list[Any]:
    if space is sys.modules:
        return ["modules"]
    for module in (space.get("__name__"), getattr(space.get("__spec__"), "name", None)):
        found = sys.modules.get(module) if type(module) is str else None
        if type(found) is ModuleType and vars(found) is space:
            return ["globals", module]
    raise Unstorable("a dictionary is no module's")


def _module_name(module: ModuleType) -> list[Any]:
    if type(module) is not ModuleType or sys.modules.get(module.__name__) is not module:
        raise Unstorable(f"module {module.__name__} cannot be found by its name")
    return ["module", module.__name__]


_WRITERS: tuple[tuple[Any, Any], ...] = (
    (type, lambda kind: ["class", *_class_parts(kind)]),
    (ModuleType, _module_name),
    (FunctionType, _function_name),
    (BuiltinFunctionType, _builtin_name),
    (_ENTRIES, _entry_name),
    (OpOverload, _operator_name),
    (IsA, lambda asks: ["instance of", *_class_parts(asks.kind)]),
    (_CACHED, _cached_name),
    (Remembered, lambda asks: ["remembered", list(asks.names), asks.early, *_cached_name(asks.function)[1:]]),
)


def named(name: list[Any], target: Any) -> Any:
    """The object of a name in this process. Raises ``LookupError`` where there is none, or another one."""
    how, *parts = name
    if how == "target":
        return target
    if how not in _READERS:
        raise LookupError(f"nothing is found as {how}")
    try:
        return _READERS[how](*parts)
    except LookupError:
        raise
    except Exception as error:  # what a name finds may be anything
        raise LookupError(f"{how} {parts[:2]} cannot be found: {error}") from error


def _read_module(name: str) -> ModuleType:
    found = sys.modules.get(name)
    if type(found) is not ModuleType or found.__name__ != name:
        raise LookupError(f"module {name} is not loaded")
    return found


def _read_space(name: str) -> dict[str, Any]:
    found = sys.modules.get(name)
    if type(found) is not ModuleType:
        raise LookupError(f"module {name} is not loaded")
    return vars(found)


_READERS: dict[str, Any] = {
    "module": _read_module,
    "modules": lambda: sys.modules,
    "globals": _read_space,
    "class": _read_class,
    "vars": lambda *parts: vars(_read_class(*parts)),
    "bases": lambda *parts: _read_class(*parts).__mro__,
    "instance of": lambda *parts: IsA(_read_class(*parts)),
    "function": _read_function,
    "cached": _read_cached,
    "remembered": lambda names, early, *parts: Remembered(_read_cached(*parts), tuple(names), early, True),
    "builtin": _read_builtin,
    "method of class": _read_class_method,
    "entry": _read_entry,
    "operator": _read_operator,
    "constant": read_constant,
}
