"""The user's functions of autograd's as nodes of a history; private names as read in torch 2.11 to 2.13."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch.autograd import Function
from torch.autograd.function import BackwardCFunction, FunctionMeta, _SingleLevelFunction

__all__ = ["APPLY", "in_history", "is_apply", "sets_up"]

APPLY: Any = vars(Function)["apply"].__func__
"""What ``apply`` of each such class is."""
_SETUP: Any = vars(_SingleLevelFunction)["setup_context"].__func__
_OPTIONS = ("clear_saved_tensors_on_access", "boxed_grads_call", "generate_vmap_rule")
"""Attributes of such a class that autograd asks for."""


_IN_STAND_INS = frozenset(
    (
        "apply",
        "mark_dirty",
        "mark_non_differentiable",
        "needs_input_grad",
        "requires_grad",
        "save_for_backward",
        "save_for_forward",
        "set_materialize_grads",
    )
)
_OF_NODES = frozenset(name for name in dir(BackwardCFunction) if not name.startswith("__")) - _IN_STAND_INS
"""What a node of a history has that a forward may ask its context for, and a stand-in does not have."""


def is_apply(function: Any) -> bool:
    """Whether ``function`` is the ``apply`` of a class of the user's, as torch defines it."""
    if type(function) is not MethodType or function.__func__ is not APPLY:
        return False
    kind: Any = function.__self__
    return isinstance(kind, type) and type(kind) is FunctionMeta and issubclass(kind, Function)


def sets_up(kind: Any, args: tuple[Any, ...]) -> bool | None:
    """Whether ``kind.apply(*args)`` calls a forward without a context, which ``setup_context`` is given after it.

    None where it calls it otherwise, or where one of both may ask for what only the node of a history has.
    """
    entries = [_entry(kind, name) for name in ("forward", "setup_context")]
    if not all(type(entry) is staticmethod and type(entry.__func__) is FunctionType for entry in entries):
        return None
    forward, setup = (entry.__func__ for entry in entries)
    apart = setup is not _SETUP
    code = forward.__code__
    if not _OF_NODES.isdisjoint((*_names(code), *_names(setup.__code__))):
        return None
    if apart and (code.co_argcount != len(args) or code.co_kwonlyargcount or code.co_flags & 0x0C):
        return None  # arguments that are not said are found by the signature
    return apart


def _names(code: CodeType) -> Iterator[str]:
    """Names of globals and attributes in ``code`` and the functions that it makes."""
    yield from code.co_names
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from _names(constant)


def _entry(kind: type, name: str) -> Any:
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


class _Waiting(threading.local):
    """What the node that is being made in this thread gets: attributes, marks, and results."""

    def __init__(self) -> None:
        self.parts: list[Any] = []


_WAITING = _Waiting()


def _forward(ctx: Any, *args: Any) -> Any:
    names, values, saved, unwanted, dirty, fills, output = _WAITING.parts.pop()
    for name, value in zip(names, values, strict=True):
        setattr(ctx, name, value)
    if saved is not None:
        ctx.save_for_backward(*saved)
    if unwanted is not None:
        ctx.mark_non_differentiable(*unwanted)
    if dirty is not None:
        ctx.mark_dirty(*dirty)
    if fills is not None:
        ctx.set_materialize_grads(fills)
    return output


@lru_cache(maxsize=64)
def _stand_in(kind: Any) -> Any:
    """A class whose forward gives what was computed already, and whose nodes are those of ``kind``."""
    made: Any = FunctionMeta
    found = made(kind.__name__, (Function,), {"forward": staticmethod(_forward), "__module__": kind.__module__})
    found._backward_cls = kind._backward_cls
    return found


def in_history(
    kind: Any,
    names: tuple[str, ...],
    values: tuple[Any, ...],
    saved: tuple[Any, ...] | None,
    unwanted: tuple[Any, ...] | None,
    dirty: tuple[Any, ...] | None,
    fills: bool | None,
    args: tuple[Any, ...],
    output: Any,
) -> Any:
    """What ``kind.apply(*args)`` gives, whose forward has computed ``output`` and has left the rest in its context.

    Its gradients are those that the class gives then.
    """
    _WAITING.parts.append((names, values, saved, unwanted, dirty, fills, output))
    try:
        made = _stand_in(kind)
        for name in _OPTIONS:
            if hasattr(kind, name):
                setattr(made, name, getattr(kind, name))
        return super(Function, made).apply(*args)
    finally:
        _WAITING.parts.clear()
