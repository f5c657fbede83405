"""What each instruction does to a frame: calls, functions, returns, exceptions, ``with``, ``match`` and imports."""

from __future__ import annotations

import builtins
import sys
from types import CellType, FunctionType, MethodType
from typing import Any

from lamina.capture.own.building import described, listed
from lamina.capture.own.frame import MISSING, NULL, Frame, Step, Unhandled
from lamina.capture.own.places import native

__all__ = ["CONTROL_STEPS", "DELEGATED", "RETURNED", "YIELDED"]

RETURNED, YIELDED, DELEGATED = "returned", "yielded", "delegated"


def _kw_names(machine: Any, frame: Frame, arg: tuple[str, ...]) -> None:
    frame.keywords = arg


def _called(frame: Frame, values: list[Any]) -> tuple[Any, list[Any]]:
    """What is called and its arguments, of the callable's two places on the stack and the ``values`` above them."""
    first, second = frame.stack[-2:]
    del frame.stack[-2:]
    if first is NULL:
        return second, values
    if second is not NULL:
        values.insert(0, second)
    return first, values


def _call_with(machine: Any, frame: Frame, count: int, names: tuple[str, ...]) -> None:
    values = frame.stack[-count:] if count else []
    if count:
        del frame.stack[-count:]
    function, values = _called(frame, values)
    kwargs: dict[str, Any] = {}
    if names:
        kwargs = dict(zip(names, values[-len(names) :], strict=True))
        del values[-len(names) :]
    frame.stack.append(machine.call(frame, function, tuple(values), kwargs))


def _call(machine: Any, frame: Frame, arg: int) -> None:
    names, frame.keywords = frame.keywords, ()
    _call_with(machine, frame, arg, names)


def _call_kw(machine: Any, frame: Frame, arg: int) -> None:
    _call_with(machine, frame, arg, frame.stack.pop())


def _call_ex(machine: Any, frame: Frame, arg: int) -> None:
    kwargs = frame.stack.pop() if arg & 1 else {}
    args = frame.stack.pop()
    function, _ = _called(frame, [])
    if not hasattr(type(args), "__iter__") and not hasattr(type(args), "__getitem__"):
        raise TypeError(f"{described(function)} argument after * must be an iterable, not {type(args).__name__}")
    args = tuple(machine.world.operate(listed, args))
    frame.stack.append(machine.call(frame, function, args, dict(kwargs)))


def _return(machine: Any, frame: Frame, arg: Any) -> str:
    frame.result = frame.stack.pop()
    return RETURNED


def _yield(machine: Any, frame: Frame, arg: Any) -> str:
    frame.result = frame.stack.pop()
    return YIELDED


def _send(machine: Any, frame: Frame, arg: int) -> str:
    """Python delegates to the iterator below the value to send; its result is put where the instruction leads."""
    frame.stack.pop()
    frame.result = frame.stack[-1]
    if frame.program.steps[arg][0] != "END_SEND":
        frame.stack.pop()
    frame.leads_to = arg
    return DELEGATED


def _return_generator(machine: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(None)


def _cleanup_throw(machine: Any, frame: Frame, arg: Any) -> None:
    raise frame.stack.pop()


def _stop_iteration_error(machine: Any, frame: Frame, arg: Any) -> None:
    error = frame.stack[-1]
    if isinstance(error, StopIteration):
        told = RuntimeError("generator raised StopIteration")
        told.__cause__ = told.__context__ = error
        frame.stack[-1] = told


def _closure_of(function: FunctionType, closure: tuple[Any, ...]) -> FunctionType:
    return FunctionType(function.__code__, function.__globals__, function.__name__, None, closure)


def _named_annotations(value: Any) -> dict[str, Any]:
    return dict(zip(value[::2], value[1::2], strict=True)) if isinstance(value, tuple) else value


def _make_function(machine: Any, frame: Frame, arg: int) -> None:
    code = frame.stack.pop()
    closure = frame.stack.pop() if arg & 8 else None
    space = frame.function.__globals__
    made = FunctionType(code, space, code.co_name, None, closure or tuple(CellType() for _ in code.co_freevars))
    if code.co_consts and isinstance(code.co_consts[0], str):
        made.__doc__ = code.co_consts[0]
    made.__qualname__ = code.co_qualname
    if arg & 4:
        made.__annotations__ = _named_annotations(frame.stack.pop())
    if arg & 2:
        made.__kwdefaults__ = frame.stack.pop()
    if arg & 1:
        made.__defaults__ = frame.stack.pop()
    frame.stack.append(machine.world.made(made))


def _set_function_attribute(machine: Any, frame: Frame, arg: int) -> None:
    made = frame.stack.pop()
    value = frame.stack.pop()
    if arg == 8:
        before, made = made, _closure_of(made, value)
        for name in ("__defaults__", "__kwdefaults__", "__annotations__", "__doc__", "__qualname__"):
            setattr(made, name, getattr(before, name))
        machine.world.made(made)
    else:
        name = {1: "__defaults__", 2: "__kwdefaults__", 4: "__annotations__"}[arg]
        setattr(made, name, _named_annotations(value) if arg == 4 else value)
    frame.stack.append(made)


def _build_class(machine: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(builtins.__build_class__)


def _import(machine: Any, frame: Frame, arg: str) -> None:
    names = frame.stack.pop()
    level = frame.stack.pop()
    function = machine.world.variable(frame.function, "__import__")
    if function is MISSING:
        raise ImportError("__import__ not found")
    args = (arg, frame.function.__globals__, None, names, level)
    frame.stack.append(machine.world.call(machine.caller(frame), function, args, {}))


def _import_from(machine: Any, frame: Frame, arg: str) -> None:
    module = frame.stack[-1]
    try:
        found = machine.world.attribute(module, arg)
    except AttributeError:
        found = MISSING
    frame.stack.append(_imported(module, arg) if found is MISSING else found)


def _imported(module: Any, name: str) -> Any:
    """A module of a package that has no such attribute yet; raises CPython's error."""
    source = f"def found(given):\n    from module import {name} as value\n    return value"
    function = native(source, "found")
    space = {"__builtins__": {"__import__": lambda *given: module}}
    return FunctionType(function.__code__, space)(None)


def _assertion_error(machine: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(AssertionError)


def _raise(machine: Any, frame: Frame, arg: int) -> None:
    if arg == 0:
        error = sys.exception() if machine.handled is None else machine.handled
        if error is None:
            raise RuntimeError("No active exception to reraise")
        machine.reraise(frame, error)
    cause = frame.stack.pop() if arg == 2 else MISSING
    error = frame.stack.pop()
    if isinstance(error, type) and issubclass(error, BaseException):
        error = machine.call(frame, error, (), {})
        if not isinstance(error, BaseException):
            raise TypeError(
                f"calling {error!r} should have returned an instance of BaseException, not {type(error).__name__}"
            )
    elif not isinstance(error, BaseException):
        raise TypeError("exceptions must derive from BaseException")
    if cause is not MISSING:
        _with_cause(machine, frame, error, cause)
    machine.raise_new(frame, error)


def _with_cause(machine: Any, frame: Frame, error: BaseException, cause: Any) -> None:
    if isinstance(cause, type) and issubclass(cause, BaseException):
        cause = machine.call(frame, cause, (), {})
    if cause is not None and not isinstance(cause, BaseException):
        raise TypeError("exception causes must derive from BaseException")
    error.__cause__ = cause


def _reraise(machine: Any, frame: Frame, arg: int) -> None:
    machine.reraise(frame, frame.stack.pop())


def _push_exc_info(machine: Any, frame: Frame, arg: Any) -> None:
    error = frame.stack.pop()
    frame.stack.append(frame.handled)
    frame.handled = machine.handled = error
    frame.stack.append(error)
    if isinstance(error, Unhandled) and frame.program.steps[frame.place][0] == "POP_TOP":  # a bare ``except``
        machine.reraise(frame, error)


def _pop_except(machine: Any, frame: Frame, arg: Any) -> None:
    frame.handled = frame.stack.pop()
    machine.handled = frame.outer if frame.handled is None else frame.handled


def _check_exc_match(machine: Any, frame: Frame, arg: Any) -> None:
    wanted = frame.stack.pop()
    for kind in wanted if isinstance(wanted, tuple) else (wanted,):
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError("catching classes that do not inherit from BaseException is not allowed")
    frame.stack.append(_matches(frame.stack[-1], wanted))


def _matches(error: BaseException, wanted: Any) -> bool:
    """Whether ``except wanted`` catches it: by the classes themselves, without ``__instancecheck__``."""
    kinds = wanted if isinstance(wanted, tuple) else (wanted,)
    return not isinstance(error, Unhandled) and any(kind in type(error).__mro__ for kind in kinds)


def _bound(found: Any, owner: Any) -> Any:
    """What a class has, as an attribute of ``owner``."""
    if type(found) is FunctionType:
        return MethodType(found, owner)
    get = getattr(type(found), "__get__", None)
    return found if get is None else get(found, owner, type(owner))


def _before_with(machine: Any, frame: Frame, arg: Any) -> None:
    manager = frame.stack.pop()
    kind = type(manager)
    enter, leave = machine.world.looked_up(kind, "__enter__"), machine.world.looked_up(kind, "__exit__")
    for name, found in (("__enter__", enter), ("__exit__", leave)):
        if found is MISSING:
            also = " (missed __exit__ method)" if name == "__exit__" else ""
            raise TypeError(f"'{kind.__name__}' object does not support the context manager protocol{also}")
    leave = _bound(leave, manager)
    frame.stack.append(leave)
    frame.stack.append(machine.call(frame, _bound(enter, manager), (), {}))


def _with_except_start(machine: Any, frame: Frame, arg: Any) -> None:
    error, leave = frame.stack[-1], frame.stack[-4]
    suppresses = machine.call(frame, leave, (type(error), error, error.__traceback__), {})
    frame.stack.append(False if isinstance(error, Unhandled) else suppresses)


_SEQUENCE, _MAPPING = 1 << 5, 1 << 6  # Py_TPFLAGS_SEQUENCE and Py_TPFLAGS_MAPPING of CPython's object.h


def _match_flag(flag: int) -> Step:
    def step(machine: Any, frame: Frame, arg: Any) -> None:
        subject = frame.stack[-1]
        frame.stack.append(machine.world.operate(_has_flag, subject, flag))

    return step


def _has_flag(subject: Any, flag: int) -> bool:
    return bool(type(subject).__flags__ & flag)


def _get_len(machine: Any, frame: Frame, arg: Any) -> None:
    frame.stack.append(machine.world.operate(len, frame.stack[-1]))


def _match_keys(machine: Any, frame: Frame, arg: Any) -> None:
    subject, keys = frame.stack[-2:]
    frame.stack.append(machine.world.operate(_values_of, subject, keys))


def _values_of(subject: Any, keys: tuple[Any, ...]) -> Any:
    seen, values = set[Any](), []
    for key in keys:
        if key in seen:
            raise ValueError(f"mapping pattern checks duplicate key ({key!r})")
        seen.add(key)
        found = subject.get(key, MISSING)
        if found is MISSING:
            return None
        values.append(found)
    return tuple(values)


def _match_class(machine: Any, frame: Frame, arg: int) -> None:
    names = frame.stack.pop()
    kind, subject = frame.stack.pop(), frame.stack.pop()
    frame.stack.append(machine.world.operate(_attributes_of, subject, kind, arg, names))


_MATCHED_BY_THEMSELVES = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)


def _attributes_of(subject: Any, kind: Any, count: int, names: tuple[str, ...]) -> Any:
    """What a class pattern binds, None if it does not match (Python/ceval.c, match_class)."""
    if not isinstance(kind, type):
        raise TypeError("called match pattern must be a class")
    if not isinstance(subject, kind):
        return None
    values: list[Any] = []
    seen: set[str] = set()
    try:
        if count and (positional := _positional(kind, count)) is not None:
            for name in positional:
                values.append(_attribute(subject, name, seen, kind))
        elif count:
            values.append(subject)
        values.extend(_attribute(subject, name, seen, kind) for name in names)
    except AttributeError:
        return None
    return tuple(values)


def _positional(kind: type, count: int) -> tuple[str, ...] | None:
    """Names of the attributes that the first ``count`` patterns are for; None: the subject itself."""
    itself = issubclass(kind, _MATCHED_BY_THEMSELVES) and not hasattr(kind, "__match_args__")
    names = getattr(kind, "__match_args__", ())
    if type(names) is not tuple:
        raise TypeError(f"{kind.__name__}.__match_args__ must be a tuple (got {type(names).__name__})")
    allowed = 1 if itself else len(names)
    if allowed < count:
        plural = "" if allowed == 1 else "s"
        raise TypeError(f"{kind.__name__}() accepts {allowed} positional sub-pattern{plural} ({count} given)")
    return None if itself else names[:count]


def _attribute(subject: Any, name: Any, seen: set[str], kind: type) -> Any:
    if not isinstance(name, str):
        raise TypeError(f"__match_args__ elements must be strings (got {type(name).__name__})")
    if name in seen:
        raise TypeError(f"{kind.__name__}() got multiple sub-patterns for attribute {name!r}")
    seen.add(name)
    return getattr(subject, name)


CONTROL_STEPS: dict[str, Step] = {
    "KW_NAMES": _kw_names,
    "CALL": _call,
    "CALL_KW": _call_kw,
    "CALL_FUNCTION_EX": _call_ex,
    "RETURN_VALUE": _return,
    "YIELD_VALUE": _yield,
    "SEND": _send,
    "RETURN_GENERATOR": _return_generator,
    "CLEANUP_THROW": _cleanup_throw,
    "STOP_ITERATION_ERROR": _stop_iteration_error,
    "MAKE_FUNCTION": _make_function,
    "SET_FUNCTION_ATTRIBUTE": _set_function_attribute,
    "LOAD_BUILD_CLASS": _build_class,
    "IMPORT_NAME": _import,
    "IMPORT_FROM": _import_from,
    "LOAD_ASSERTION_ERROR": _assertion_error,
    "RAISE_VARARGS": _raise,
    "RERAISE": _reraise,
    "PUSH_EXC_INFO": _push_exc_info,
    "POP_EXCEPT": _pop_except,
    "CHECK_EXC_MATCH": _check_exc_match,
    "BEFORE_WITH": _before_with,
    "WITH_EXCEPT_START": _with_except_start,
    "MATCH_SEQUENCE": _match_flag(_SEQUENCE),
    "MATCH_MAPPING": _match_flag(_MAPPING),
    "MATCH_KEYS": _match_keys,
    "MATCH_CLASS": _match_class,
    "GET_LEN": _get_len,
}
"""Steps by the names of instructions."""
