"""Transforms of ``torch.func``: what they are given, and what they make of another function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch.func import grad, grad_and_value, hessian, jacfwd, jacrev, jvp, vmap

from lamina.capture.own.reuse.facts import constant_key

__all__ = ["MAKERS", "Transform", "is_made_by_transform", "transform_of"]

MAKERS: tuple[Callable[..., Any], ...] = (grad, grad_and_value, vmap, jacrev, jacfwd, hessian)
"""Functions that make another one of a function, which computes when it is called."""
_FUNCTION = "func"
_CODES: dict[CodeType, str] = {
    code: maker.__name__
    for maker in MAKERS
    for code in maker.__code__.co_consts
    if isinstance(code, CodeType) and _FUNCTION in code.co_freevars
}
"""Code of what they make, which has the function that they were given as a variable."""


@dataclass(frozen=True, slots=True)
class Transform:
    """What is done with a ``function`` of the program's: ``of`` gives the same for another one.

    ``key`` tells it from all others, with the constants that it was given.
    """

    name: str
    function: Any
    of: Callable[[Callable[..., Any]], Callable[..., Any]]
    key: tuple[Any, ...]


def is_made_by_transform(function: Any) -> bool:
    """Whether one of torch's transforms has made ``function``."""
    return type(function) is FunctionType and function.__code__ in _CODES


def transform_of(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_constant: Callable[[Any], bool]
) -> tuple[Transform, tuple[Any, ...], dict[str, Any]] | None:
    """The transform that a call makes, with what the function is to be given in it; None for other calls."""
    if function is jvp:
        if not 2 < len(args) < 6 or not all(map(is_constant, (*args[3:], *kwargs.values()))):
            return None
        more = constant_key((*args[3:], *kwargs.items()))
        return Transform("jvp", args[0], partial(_partly, args[3:], kwargs), (jvp, more)), args[1:3], {}
    if not is_made_by_transform(function):
        return None
    held = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
    others = {name: cell.cell_contents for name, cell in held.items() if name != _FUNCTION}
    others = {name: value for name, value in others.items() if type(value) is not ModuleType}
    if not all(map(is_constant, others.values())):
        return None
    key = function.__code__, constant_key((*others.items(),))
    transform = Transform(
        _CODES[function.__code__], held[_FUNCTION].cell_contents, partial(_with_function, function), key
    )
    return transform, args, kwargs


def _with_function(made: FunctionType, function: Callable[..., Any]) -> Callable[..., Any]:
    """What a transform has made, with another function in place of the program's."""
    cells = zip(made.__code__.co_freevars, made.__closure__ or (), strict=True)
    closure = tuple(CellType(function) if name == _FUNCTION else cell for name, cell in cells)
    return FunctionType(made.__code__, made.__globals__, made.__name__, made.__defaults__, closure)


def _partly(
    more: tuple[Any, ...], named: dict[str, Any], function: Callable[..., Any]
) -> Callable[..., tuple[torch.Tensor, ...]]:
    return lambda *args: jvp(function, *args, *more, **named)
