"""What a piece of the user's code is, as text that is equal for equal code in any process."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import traceback
import types
from typing import Any

__all__ = ["caller_place", "identity_of", "line_of", "place_of", "values_of"]

_PLAIN = (int, float, complex, bool, str, bytes, type(None))
_DEEPEST = 8
"""Functions found in functions found in functions: beyond this their names must do."""


def identity_of(code: Any, depth: int = 0) -> str:
    """Module, qualified name and hash of the source of a function or callable object.

    The values that a function closes over, its defaults, the globals of its module that it names and the fields of an
    object count as far as they are numbers, texts, functions or tuples of such; of anything else (what may change, or
    is large) the type counts.
    """
    if isinstance(code, functools.partial):
        bound = (*code.args, *sorted(code.keywords.items()))
        return f"partial({identity_of(code.func, depth)}, {_value(bound, depth)})"
    if isinstance(code, types.MethodType):
        return f"{identity_of(code.__func__, depth)} of {type(code.__self__).__qualname__}"
    if isinstance(code, types.FunctionType):
        own = values_of(code, depth)
        text = _source(code)
    elif isinstance(code, (type, types.BuiltinFunctionType)):
        own = text = ""
    else:
        fields = tuple(sorted(vars(code).items())) if hasattr(code, "__dict__") else ()
        own = _value(fields, depth)
        call = vars(type(code)).get("__call__")
        text = _source(call) if isinstance(call, types.FunctionType) else ""
    named = code if hasattr(code, "__qualname__") else type(code)
    name = f"{named.__module__}.{named.__qualname__}"
    return f"{name}:{hashlib.sha256(text.encode()).hexdigest()[:16]}:{hashlib.sha256(own.encode()).hexdigest()[:16]}"


def values_of(function: types.FunctionType, depth: int = 0) -> str:
    """What a function closes over, its defaults and the globals that it names, as ``identity_of`` counts them."""
    cells = tuple(_contents(cell) for cell in function.__closure__ or ())
    return _value((cells, function.__defaults__, *(function.__kwdefaults__ or {}).items(), *_globals(function)), depth)


def place_of(code: Any) -> str:
    """Where ``code`` is written ("file.py:line"); its name where that is not known."""
    found = getattr(inspect.unwrap(code) if callable(code) else code, "__code__", None)
    if found is None:
        return str(getattr(code, "__qualname__", type(code).__qualname__))
    return _place(found, found.co_firstlineno)


def line_of(error: BaseException, code: Any) -> str:
    """The line of the function ``code`` at which it raised ``error``, as "file.py:line"; "" if it is not among them."""
    wanted = getattr(code, "__code__", None)
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_code is wanted:
            return _place(wanted, line)
    return ""


def caller_place(depth: int = 2) -> str:
    """The statement ``depth`` calls up, as "file.py:line"."""
    frame = sys._getframe(depth)
    return _place(frame.f_code, frame.f_lineno)


def _place(code: types.CodeType, line: int) -> str:
    return f"{code.co_filename.replace(chr(92), '/').rsplit('/', 1)[-1]}:{line}"


def _source(function: types.FunctionType) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        code = function.__code__
        return repr((code.co_code, code.co_names, [str(c) for c in code.co_consts]))


def _globals(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Numbers, texts and functions of its own module that a function or one written inside of it names."""
    names: set[str] = set()
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        names.update(code.co_names)
        waiting += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    found = [(name, function.__globals__[name]) for name in sorted(names) if name in function.__globals__]
    return [
        (name, value)
        for name, value in found
        if isinstance(value, (*_PLAIN, tuple))
        or (isinstance(value, types.FunctionType) and value.__module__ == function.__module__ and value is not function)
    ]


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _value(value: Any, depth: int) -> str:
    if isinstance(value, _PLAIN):
        return repr(value)
    if depth < _DEEPEST:
        if isinstance(value, tuple):
            return "(" + ", ".join(_value(v, depth + 1) for v in value) + ")"
        if isinstance(value, types.FunctionType):
            return identity_of(value, depth + 1)
    named = value if isinstance(value, (type, types.BuiltinFunctionType)) else type(value)
    return f"{named.__module__}.{named.__qualname__}"
