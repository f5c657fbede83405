"""The world of a captured call: torch's calls are recorded, and what is not understood runs after their graph."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache, partial
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import torch

from lamina.capture.own.frame import MADE_BY_PYTHON, MISSING
from lamina.capture.own.pending import Pending
from lamina.capture.own.recorder import Recorder
from lamina.capture.own.torch_private import STATE_QUERIES, overridable, paused, resumed
from lamina.capture.own.world import PlainWorld

__all__ = ["CapturingWorld"]

_CONTAINERS = (list, tuple, dict, set, frozenset, str, bytes, int, float, bool, complex, range, slice)
_MAKERS = frozenset(map(id, (*_CONTAINERS, enumerate, zip, reversed, super, object, type, property, BaseException)))
_PURE = frozenset(
    map(
        id,
        (
            abs, all, any, callable, chr, divmod, format, hasattr, hash, id, isinstance, issubclass, iter, len, max,
            min, next, ord, pow, print, range, repr, round, sum,
        ),
    )
)  # fmt: skip
"""Builtins that only ask their arguments, which function modes see where they are tensors."""

_OPENED = ("torch.nn.modules.", "torch.nn.functional", "torch.autograd.grad_mode", "torch.utils._contextlib")
"""Modules of torch's whose functions are interpreted; the others are called."""

_METHODS: dict[Callable[..., Any], str] = {
    iter: "__iter__",
    next: "__next__",
    operator.getitem: "__getitem__",
}
_KNOWN_CLASSES = frozenset((type(MISSING), Pending, torch.Tensor, torch.nn.Parameter, torch.Size))
_CALLED_BACK = frozenset((FunctionType, MethodType, partial, map, filter))
"""Classes of arguments by which a native function may call the user's: nothing is recorded in such a call."""
_IDENTITY = (operator.is_, operator.is_not)


@cache
def _seen_by_modes() -> frozenset[int]:
    return overridable()


class CapturingWorld(PlainWorld):
    """Objects are what they are; calls of torch's go to ``recorder``, whose mode is on but in calls from here.

    ``interpret`` runs a function of the user's that an operator or an attribute stands for.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.interpret: Callable[..., Any] = lambda function, *args: function(*args)

    def attribute(self, value: Any, name: str) -> Any:
        kind = type(value)
        if kind is Pending and name == "__class__":
            return torch.Tensor
        if kind.__flags__ & MADE_BY_PYTHON and kind not in _KNOWN_CLASSES:
            found = self.looked_up(kind, name)
            if type(found) is property and type(found.fget) is FunctionType and self.enters(found.fget):
                return self.interpret(found.fget, value)
        return getattr(value, name)

    def operate(self, function: Callable[..., Any], *operands: Any) -> Any:
        if function in _IDENTITY or all(self._is_known(type(operand)) for operand in operands):
            return function(*operands)
        method = _METHODS.get(function)
        if method is not None:
            found = self.looked_up(type(operands[0]), method)
            given = operands[:1] if function is next else operands
            if type(found) is FunctionType and function is not next and self.enters(found):
                return self.interpret(found, *given)
        return self.natively(function, operands, {})

    def change(self, function: Callable[..., Any], *operands: Any) -> Any:
        if function in (setattr, delattr):
            if type(operands[0]) in (Pending, torch.Tensor):
                self.recorder.flush()
            return function(*operands)
        return self.operate(function, *operands)

    def enters(self, function: FunctionType) -> bool:
        module = function.__globals__.get("__name__", "")
        if "handle_torch_function" in function.__code__.co_names or hasattr(function, "_torchdynamo_disable"):
            return False
        if isinstance(module, str) and module.startswith(("torch.", "lamina.")):
            return module.startswith(_OPENED)
        return True

    def call(self, caller: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function is type and len(args) == 1 and type(args[0]) is Pending:
            return torch.Tensor
        if function is setattr and not kwargs:
            return self.change(setattr, *args)
        if function is getattr and len(args) == 2 and type(args[1]) is str:
            return self.attribute(*args)
        given = {*map(type, args), *map(type, kwargs.values())}
        if given.isdisjoint(_CALLED_BACK) and (self._is_seen(function) or function is getattr):
            return caller(function, args, kwargs)
        return self.natively(caller, (function, args, kwargs), {})

    def natively(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of what is not understood: everything is computed before, and nothing is recorded in it."""
        recorder = self.recorder
        recorder.flush()
        recorder.regions.native += 1
        was_on = paused(recorder)
        try:
            return function(*args, **kwargs)
        finally:
            if was_on or recorder.left:
                recorder.left = not resumed(recorder)

    def _is_known(self, kind: type) -> bool:
        return not kind.__flags__ & MADE_BY_PYTHON or kind in _KNOWN_CLASSES

    def _is_seen(self, function: Any) -> bool:
        """Whether function modes see what ``function`` does with tensors, and it does nothing else that matters."""
        kind = type(function)
        if id(function) in _PURE or id(function) in _MAKERS:
            return True
        if kind is FunctionType:
            return "handle_torch_function" in function.__code__.co_names
        if kind is BuiltinFunctionType or kind is MethodWrapperType:
            return self._is_seen_builtin(function)
        if kind is MethodDescriptorType:
            return function.__objclass__ in _CONTAINERS or id(function) in _seen_by_modes()
        return False

    def _is_seen_builtin(self, function: Any) -> bool:
        owner = function.__self__
        if isinstance(owner, torch.Tensor):
            return True
        if type(owner) in _CONTAINERS or any(owner is kind for kind in (dict, list, str)):
            return True
        if isinstance(owner, ModuleType) and owner.__name__ in ("math", "_operator"):
            return True
        return function in STATE_QUERIES or id(function) in _seen_by_modes() or function is object.__new__
