"""The world of a captured call: torch's calls are recorded, and what is not understood runs after their graph."""

from __future__ import annotations

import builtins
import operator
from collections import defaultdict
from collections.abc import Callable
from functools import partial, reduce
from inspect import signature
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MethodWrapperType,
)
from typing import Any

import torch
from torch.overrides import has_torch_function

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.base.torch_names.torch_private import CONTEXTLIB, DISPATCHERS, FUNCTIONS, LISTS_OF_TENSORS
from lamina.capture.own.attributes import deletes_by_code, read_attribute, read_plainly, setter_of
from lamina.capture.own.callbacks import asks, calls_back
from lamina.capture.own.causes.torch_private import cause_of_call, is_of_tensors, maker_of, only_dynamo_captures
from lamina.capture.own.compiler_marks.torch_private import MARK, is_mark, never_entered, target_of_compiled
from lamina.capture.own.frame import MISSING
from lamina.capture.own.importing import is_loaded
from lamina.capture.own.iterating import advance, advanced, by_key, consumable, drawn, is_by_key, iterators, reduced
from lamina.capture.own.natives import (
    CLOCK,
    CONSUMERS,
    KEEPING,
    LAZY,
    is_change,
    is_clock,
    is_seen,
    runs_the_users,
    unbound,
)
from lamina.capture.own.nested import flat
from lamina.capture.own.of_torch import of_torch, unrecorded
from lamina.capture.own.pending import Pending
from lamina.capture.own.queries.torch_private import STATE_READERS, asks_for_compiling
from lamina.capture.own.recorder import Recorder, leave
from lamina.capture.own.torch_calls import LEFT_OUT
from lamina.capture.own.world import PlainWorld

__all__ = ["CapturingWorld", "is_captured", "reads_plainly"]

_OPENED = (
    "torch.nn.modules.",
    "torch.nn.functional",
    "torch.nn.attention",
    "torch.nn.utils.",
    "torch.autograd.grad_mode",
    "torch.backends.mha",
    "torch.optim.",
    LISTS_OF_TENSORS,
    DISPATCHERS,
    CONTEXTLIB,
    FUNCTIONS,
    "torch.amp.",
    "torch.cpu.amp.",
    "torch.cuda.amp.",
)
"""Modules of torch's whose functions are interpreted; those of others, and of Lamina's own, are called."""
_PROGRAM = "IS_A_PROGRAM"
"""What a module of Lamina's says of itself whose functions are interpreted like the user's: models, and deep copies."""

_METHODS: dict[Callable[..., Any], str] = {
    iter: "__iter__",
    len: "__len__",
    operator.truth: "__bool__",
    operator.getitem: "__getitem__",
    operator.setitem: "__setitem__",
    operator.delitem: "__delitem__",
    operator.contains: "__contains__",
    operator.neg: "__neg__",
}
"""Operators that are one method of their first operand, by the functions that they are."""
_KNOWN_CLASSES = frozenset((type(MISSING), Pending, torch.Tensor, torch.nn.Parameter, torch.Size))
_TENSORS = (Pending, torch.Tensor, torch.nn.Parameter)
_PLAIN = (object, dict, list, tuple, set, int, float, str)
"""Classes of C's whose ``__getattribute__`` is that of ``object``."""
_IDENTITY = (operator.is_, operator.is_not)


class CapturingWorld(PlainWorld):
    """Objects are what they are; calls of torch's go to ``recorder``, whose mode is on but in calls from here.

    ``interpret`` runs a function of the user's that an operator or an attribute stands for, ``module`` gives the name
    of the module of the function in progress.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.interpret: Callable[..., Any] = lambda function, *args: function(*args)
        self.module: Callable[[], str] = str

    def attribute(self, value: Any, name: str) -> Any:
        kind = type(value)
        if kind is Pending and name == "__class__":
            return torch.Tensor
        if kind is Pending and name.startswith(MARK):
            self.recorder.flush()
        if kind in _KNOWN_CLASSES or not (kind.__flags__ & MADE_BY_PYTHON or kind is type or kind is super):
            return getattr(value, name)
        return read_attribute(value, name, self._interpreted)

    def plainly(self, value: Any, name: str) -> Any:
        """``object.__getattribute__(value, name)``."""
        return read_plainly(value, name, self._interpreted)

    def operate(self, function: Callable[..., Any], *operands: Any) -> Any:
        if function in _IDENTITY:
            return function(*operands)
        if function is next:
            return advanced(self, operands[0])
        if type(function) is FunctionType and len(operands) == 1:  # it takes the values of an iterable
            return self._consumed(_called, function, operands, {})
        if function is operator.contains and hasattr(type(operands[0]), "__next__"):
            self.settle()
        if not asks(function, operands):
            return function(*operands)
        if function is operator.not_:
            return not self.operate(operator.truth, *operands)
        if function in _METHODS:
            found = self.looked_up(type(operands[0]), _METHODS[function])
            if type(found) is FunctionType and self.enters(found):
                given = self.interpret(found, *operands)
                return (
                    self.operate(operator.truth, given) if function is operator.contains else _checked(function, given)
                )
            if function is operator.truth and found is MISSING:
                length = self.looked_up(type(operands[0]), "__len__")
                if type(length) is FunctionType and self.enters(length):
                    return bool(_Length(self.interpret(length, *operands)))
        if function is operator.getitem and type(operands[0]) is defaultdict:
            return _with_default(self, *operands)
        return self.natively(function, operands, {})

    build = operate

    def change(self, function: Callable[..., Any], *operands: Any) -> Any:
        if function is setattr:
            return self._set(*operands)
        if function is delattr:
            return self._delete(*operands)
        self.settle()
        if type(operands[0]) is CellType:
            return function(*operands)
        return self.operate(function, *operands)

    def enters(self, function: FunctionType) -> bool:
        module = function.__globals__.get("__name__", "")
        if function is signature:
            return False
        if "handle_torch_function" in function.__code__.co_names or never_entered(function):
            return False
        if isinstance(module, str) and module.startswith("triton."):
            return False
        if isinstance(module, str) and module.startswith(("torch.", "lamina.")):
            if function.__globals__.get(_PROGRAM) is True:
                return True
            if (module, function.__name__) in STATE_READERS:
                return True
            of_a_module = module.startswith("torch.nn.modules.")  # whose __iter__ is that of no tensor
            return module.startswith(_OPENED) and (of_a_module or function.__name__ not in LEFT_OUT)
        return True

    def call(self, caller: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_captured(self, function, args, kwargs):
            return True
        target = target_of_compiled(function)
        found = of_torch(self, function, args, kwargs) if target is None else self.interpret(target, *args, **kwargs)
        if found is not MISSING:
            return found
        if type(function) in (BuiltinFunctionType, type, MethodWrapperType) and args and not kwargs:
            found = self._asked(function, args)
            if found is not MISSING:
                return found
        function, args = unbound(function, args)
        if type(function) is partial:
            return self.interpret(function.func, *function.args, *args, **{**function.keywords, **kwargs})
        if id(function) in LAZY:
            args = iterators(self, function, args)
        if id(function) in CONSUMERS and len(args) == 1 and not kwargs:
            return self._consumed(caller, function, args, kwargs)
        if type(kwargs.get("key")) is FunctionType and is_by_key(function, args, kwargs):
            return by_key(self, function, *args, **kwargs)
        if is_clock(function):
            self.recorder.end(CLOCK)
        if is_seen(function, args) and not runs_the_users(function, args, kwargs):
            if self.recorder.watching and is_change(function, args):
                self.settle()
            return caller(function, args, kwargs)
        if is_mark(function) and args and isinstance(args[0], torch.Tensor):
            if type(args[0]) is not Pending:
                return caller(function, args, kwargs)
            self.settle()
            if type(args[0]) is Pending:
                return self.recorder.mark(function, args, kwargs)
        return self.natively(caller, (function, args, kwargs), {})

    def _asked(self, function: Any, args: tuple[Any, ...]) -> Any:
        """What a built-in function gives that stands for an operator or an attribute; ``MISSING`` for others."""
        if function is builtins.__import__ and is_loaded(*args):
            return function(*args)
        if function is type and len(args) == 1:
            return torch.Tensor if type(args[0]) is Pending else type(args[0])
        if function is setattr and len(args) == 3 and type(args[1]) is str:
            return self.change(setattr, *args)
        if function is delattr and len(args) == 2 and type(args[1]) is str:
            return self.change(delattr, *args)
        if function in (getattr, hasattr) and 1 < len(args) < 4 and type(args[1]) is str:
            return self._got(function, *args)
        if function in (iter, len) and len(args) == 1:
            return self.operate(function, *args)
        if function is next and len(args) < 3 and hasattr(type(args[0]), "__next__"):
            self.settle()
            if len(args) == 1:
                return advance(self, args[0])
            value = advanced(self, args[0])
            return args[1] if value is MISSING else value
        if function is reduce and len(args) > 1:
            return reduced(self, *args)
        if type(function) is MethodWrapperType and function.__name__ == "__setattr__" and len(args) == 2:
            return self._set(function.__self__, *args, plainly=function)
        if reads_plainly(function) and len(args) == 1 and type(args[0]) is str:
            return self.plainly(function.__self__, args[0])
        if function is has_torch_function and len(args) == 1 and are_tensors(args[0]):
            return False
        return MISSING

    def _got(self, function: Any, value: Any, name: str, *default: Any) -> Any:
        """``getattr`` and ``hasattr``."""
        try:
            found = self.attribute(value, name)
        except AttributeError:
            if function is getattr and not default:
                raise
            return default[0] if function is getattr else False
        return found if function is getattr else True

    def _set(self, owner: Any, name: str, value: Any, plainly: Callable[..., Any] | None = None) -> None:
        """``setattr``, or the method ``plainly`` of ``object`` that it comes to."""
        kind = type(owner)
        self.settle()
        if kind in (Pending, torch.Tensor):
            self.recorder.end(f"the assignment to the attribute {name} of a tensor")
        elif kind.__flags__ & MADE_BY_PYTHON:
            set_by = setter_of(kind, name, plainly is None)
            if set_by is not None:
                set_by(self._interpreted, owner, value)
                return
        if plainly is None:
            setattr(owner, name, value)
        else:
            plainly(name, value)

    def _delete(self, owner: Any, name: str) -> None:
        kind = type(owner)
        self.settle()
        if kind.__flags__ & MADE_BY_PYTHON and deletes_by_code(kind, name):
            self.natively(delattr, (owner, name), {})
            return
        if kind in (Pending, torch.Tensor):
            self.recorder.end(f"the deletion of the attribute {name} of a tensor")
        delattr(owner, name)

    def _consumed(
        self, caller: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call of a function that takes the values of its one argument one by one."""
        (values,) = args
        if hasattr(type(values), "__next__"):
            self.settle()
        if consumable(self, values):
            values = drawn(self, values)
        asks_them = id(function) not in KEEPING and type(function) is not FunctionType
        if calls_back(values) if asks_them else asks(iter, (values,)):
            return self.natively(caller, (function, args, kwargs), {})
        return caller(function, (values,), kwargs)

    def _interpreted(self, function: FunctionType, *args: Any) -> Any:
        """A function of an attribute; those of torch's that are not opened run with recording on."""
        return self.interpret(function, *args) if self.enters(function) else function(*args)

    def settle(self) -> None:
        self.recorder.settle()

    def natively(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of what is not understood: everything is computed before, and nothing is recorded in it."""
        recorder = self.recorder
        called = _called_by(function, args)
        tensors = list(flat((args, kwargs)))
        computes = is_of_tensors(called, args if called is function else args[1])
        what, cause = _said_of(called)
        if only_dynamo_captures(args[0] if called is operator.getitem else called):
            recorder.regions.others = recorder.regions.others or what
            leave(recorder, what)
        recorder.end(what, given=tensors, cause=cause, computes=computes)
        recorder.escaped("what may call the program back")
        recorder.regions.native += 1
        return unrecorded(recorder, function, args, kwargs)


def is_captured(world: CapturingWorld, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call asks if it is captured, which it is. Modules of torch's do what they do without that."""
    return not args and not kwargs and asks_for_compiling(function) and not world.module().startswith("torch.")


def _with_default(world: CapturingWorld, mapping: defaultdict[Any, Any], key: Any) -> Any:
    """``mapping[key]`` in a world, with what makes a missing value interpreted."""
    if calls_back(key):
        return world.natively(operator.getitem, (mapping, key), {})
    if key not in mapping and mapping.default_factory is not None:
        made = world.interpret(mapping.default_factory)
        world.settle()
        mapping[key] = made
    return mapping[key]


class _Length:
    """What ``len`` is given in place of an object whose ``__len__`` was interpreted."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def __len__(self) -> Any:
        return self.found


def are_tensors(values: Any) -> bool:
    """Whether all of a tuple or list are tensors of torch's own classes."""
    return type(values) in (list, tuple) and all(type(value) in _TENSORS for value in values)


def reads_plainly(function: Any) -> bool:
    """Whether a function is ``object.__getattribute__`` of an object of a class of Python's, which is no class."""
    if type(function) is not MethodWrapperType or function.__name__ != "__getattribute__":
        return False
    kind = type(function.__self__)
    known = kind in _KNOWN_CLASSES or issubclass(kind, type)
    return function.__objclass__ in _PLAIN and bool(kind.__flags__ & MADE_BY_PYTHON) and not known


def _called(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


def _checked(function: Callable[..., Any], found: Any) -> Any:
    """What an operator makes of what its method gave."""
    if function is operator.truth and type(found) is not bool:
        raise TypeError(f"__bool__ should return bool, returned {type(found).__name__}")
    if function is len:
        return len(_Length(found))
    if function is iter and not hasattr(type(found), "__next__"):
        raise TypeError(f"iter() returned non-iterator of type '{type(found).__name__}'")
    return found


def _called_by(function: Any, args: tuple[Any, ...]) -> Any:
    """What is called; ``args`` are those of a function of the interpreter's that makes a call."""
    return args[0] if len(args) > 2 and isinstance(args[1], tuple) and callable(args[0]) else function


def _said_of(called: Any) -> tuple[str, str]:
    """What is called, in words, and why it is not recorded; the user's class may answer with an error."""
    try:
        return _named(called), cause_of_call(called)
    except Exception:
        return "a call", ""


def _named(called: Any) -> str:
    """What is called, in words."""
    if maker := maker_of(called):
        return f"the call of {maker}"
    name = getattr(called, "__qualname__", None) or type(called).__qualname__
    if "<locals>" in name:  # torch's choices between two functions have the name of what they stand for
        name = getattr(called, "__name__", name.rpartition("<locals>.")[2])
    return f"the call of {name}"
