"""Whether a function does nothing but compute a value from its arguments, as far as its bytecode tells.

Such a function may run at another time, or once more, and nobody sees it: it changes and reads no state that could be
another later, and draws no random numbers. What is not understood counts as doing more.
"""

from __future__ import annotations

import builtins
import cmath
import dis
import math
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from lamina.base.drawing import may_draw
from lamina.ops import rows_named

__all__ = ["is_pure", "is_settled"]

_SETTLED = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_BUILTINS = frozenset((
    abs, all, any, bool, complex, dict, divmod, enumerate, float, frozenset, int, isinstance, len, list, map, max, min,
    pow, range, reversed, round, set, slice, sorted, str, sum, tuple, zip,
))  # fmt: skip
_MODULES = (math, cmath, torch.linalg, torch.fft, torch.special)
_MAKERS = ("tensor", "as_tensor", "device", "outer", "einsum", "meshgrid")
"""Functions of torch's that are no operations of their own, or classes, and compute without state."""
_OTHER_INSTRUCTIONS = (
    "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "IMPORT", "LOAD_BUILD_CLASS", "LOAD_NAME", "BEFORE_",
    "SETUP_", "LOAD_SUPER", "YIELD", "SEND", "GET_AWAITABLE", "LOAD_LOCALS", "LOAD_FROM_DICT",
)  # fmt: skip
"""How instructions begin that do more, or that are not looked at closer."""


def is_settled(value: object) -> bool:
    """Whether a value is a constant: a number, a text, a dtype or a tuple of such."""
    return isinstance(value, _SETTLED) or (type(value) is tuple and all(map(is_settled, value)))


def is_pure(function: object) -> bool:
    """Whether calls of a function with constants give a value and do nothing else."""
    return _is_pure(function, set())


def _is_pure(function: object, met: set[int]) -> bool:
    if id(function) in met:
        return True
    met.add(id(function))
    if type(function) is not FunctionType or not _is_known_by_default(function):
        return False
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    try:
        given = {name: cell.cell_contents for name, cell in cells.items()}
    except ValueError:  # a cell that is empty
        return False
    return all(_code_is_pure(code, function.__globals__, given, met) for code in _codes(function.__code__))


def _is_known_by_default(function: FunctionType) -> bool:
    return all(map(is_settled, (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions that it makes."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _code_is_pure(code: CodeType, space: dict[str, Any], given: dict[str, Any], met: set[int]) -> bool:
    missing = object()
    names_of_torch = any(space.get(name) is torch for name in code.co_names)
    for one in dis.get_instructions(code):
        name = one.argval
        if one.opname.startswith(_OTHER_INSTRUCTIONS):
            return False
        if one.opname == "LOAD_GLOBAL":
            if not _may_be_read(space.get(name, getattr(builtins, name, missing)), met):
                return False
        elif one.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF", "STORE_DEREF", "DELETE_DEREF") and name in given:
            if one.opname != "LOAD_DEREF" or not _may_be_read(given[name], met):
                return False
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD") and not _attribute_is_pure(name, names_of_torch):
            return False
    return True


def _may_be_read(value: Any, met: set[int]) -> bool:
    """Whether what a name of a function's module, or a variable around it, stands for is no state."""
    if is_settled(value) or value is torch or any(value is module for module in _MODULES):
        return True
    if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == "builtins":
        return True
    if isinstance(value, FunctionType):
        return _is_pure(value, met)
    return any(value is known for known in _BUILTINS)


def _attribute_is_pure(name: str, of_torch: bool) -> bool:
    """Whether an attribute, which may be one of torch's, computes without state."""
    if may_draw(name):
        return False
    value = getattr(torch, name, None) if of_torch else None
    if value is None or is_settled(value):
        return True
    if isinstance(value, ModuleType):
        return any(value is module for module in _MODULES)
    return name in _MAKERS or (bool(rows_named(name)) and not name.endswith("_"))
