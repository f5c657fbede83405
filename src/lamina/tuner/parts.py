"""The modules that a model holds, whatever holds them, and the model with some of them replaced.

A model is a module, a method, a function with modules in its closure or its global names, a ``functools.partial`` of
one of these, or an object with modules in its attributes, such as a pipeline.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from lamina.tuner.torch_private import children_of, shadow

__all__ = ["modules_in", "replaced", "tensors_of"]

_PLAIN = (str, bytes, int, float, complex, type(None), type, types.ModuleType, Tensor)
_DEEPEST = 2
"""Functions and objects that are opened one within another: a function that calls a pipeline that it names."""


def modules_in(model: Callable[..., Any]) -> dict[str, nn.Module]:
    """All modules by path, each once, parents before children. A module is "" itself, its children have their names."""
    found: dict[str, nn.Module] = {}
    seen: set[int] = set()

    def visit(value: Any, path: str, depth: int) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, nn.Module):
            found[path] = value
        for name, item in _held(value, depth):
            visit(item, f"{path}.{name}" if path and name else path or name, _deeper(value, depth))

    visit(model, "", 0)
    return found


def tensors_of(model: Callable[..., Any]) -> list[Tensor]:
    """The parameters and buffers of all modules of a model, each once."""
    held = [t for m in modules_in(model).values() for t in (*m.parameters(False), *m.buffers(False))]
    return list({id(t): t for t in held}.values())


def replaced(model: Any, new: Mapping[int, nn.Module]) -> Any:
    """The model with the modules whose ``id`` is in ``new`` replaced wherever it holds them.

    What holds them is new and shares all else with the model, which stays as it is.
    """
    made: dict[int, Any] = {}

    def other(value: Any, depth: int) -> Any:
        if id(value) in new:
            return new[id(value)]
        if id(value) not in made:
            made[id(value)] = value  # for what holds itself
            items = {name: (item, other(item, _deeper(value, depth))) for name, item in _held(value, depth)}
            changed = {name: theirs for name, (mine, theirs) in items.items() if theirs is not mine}
            if changed:
                made[id(value)] = _with(value, changed)
        return made[id(value)]

    return other(model, 0)


def _deeper(value: Any, depth: int) -> int:
    """Modules hold modules however deep; what else there is, is opened near the model only."""
    return _DEEPEST if isinstance(value, nn.Module) else depth + (not isinstance(value, (dict, list, tuple)))


def _held(value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """What may be or hold a module, by name."""
    if isinstance(value, nn.Module):
        yield from children_of(value).items()
    elif type(value) in (list, tuple):
        yield from ((str(k), item) for k, item in enumerate(value) if _may_hold(item))
    elif type(value) is dict:
        yield from ((str(k), item) for k, item in value.items() if _may_hold(item))
    elif depth >= _DEEPEST or isinstance(value, _PLAIN):
        return
    elif isinstance(value, MethodType):
        yield "", value.__self__
    elif isinstance(value, functools.partial):
        yield "", value.func
    elif isinstance(value, FunctionType):
        yield from ((name, item) for name, item in _named(value).items() if _is_model(item))
    else:
        yield from ((name, item) for name, item in getattr(value, "__dict__", {}).items() if _may_hold(item))


def _may_hold(value: Any) -> bool:
    return isinstance(value, (nn.Module, list, tuple, dict))


def _is_model(value: Any) -> bool:
    """Of the names of a function: modules, lists of them, and objects of the user's own classes."""
    if isinstance(value, (FunctionType, MethodType, *_PLAIN)) or callable(getattr(value, "__get__", None)):
        return False
    return _may_hold(value) or hasattr(value, "__dict__")


def _named(function: FunctionType) -> dict[str, Any]:
    """What a function closes over, and the global names that its code reads."""
    found = {n: function.__globals__[n] for n in function.__code__.co_names if n in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _with(value: Any, changed: Mapping[str, Any]) -> Any:
    """``value`` with other items of these names."""
    if isinstance(value, nn.Module):
        return shadow(value, changed)
    if type(value) in (list, tuple):
        return type(value)(changed.get(str(k), item) for k, item in enumerate(value))
    if type(value) is dict:
        return {key: changed.get(str(key), item) for key, item in value.items()}
    if isinstance(value, MethodType):
        return MethodType(value.__func__, changed[""])
    if isinstance(value, functools.partial):
        return functools.partial(changed[""], *value.args, **value.keywords)
    if isinstance(value, FunctionType):
        return _function_with(value, changed)
    other = object.__new__(type(value))
    other.__dict__.update({**value.__dict__, **changed})
    return other


class _Globals(dict[str, Any]):
    """The names of a module with some replaced; the others are looked up when they are read."""

    def __init__(self, names: dict[str, Any], changed: Mapping[str, Any]) -> None:
        super().__init__(changed)
        self["__builtins__"] = names.get("__builtins__", __builtins__)
        self.names = names

    def __missing__(self, name: str) -> Any:
        return self.names[name]


def _function_with(function: FunctionType, changed: Mapping[str, Any]) -> FunctionType:
    code = function.__code__
    cells = tuple(
        CellType(changed[name]) if name in changed else cell
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
    )
    of_module = {name: item for name, item in changed.items() if name not in code.co_freevars}
    names: dict[str, Any] = _Globals(function.__globals__, of_module) if of_module else function.__globals__
    other = FunctionType(code, names, function.__name__, function.__defaults__, cells)
    other.__kwdefaults__ = function.__kwdefaults__
    return other
