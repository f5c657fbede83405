"""What a piece of the user's code is, as text that is equal for equal code in any process."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import types
from typing import Any

__all__ = ["caller_place", "identity_of", "place_of"]

_PLAIN = (int, float, complex, bool, str, bytes, type(None))
_DEEPEST = 4
"""Functions found in functions found in functions: beyond this their names must do."""


def identity_of(code: Any, depth: int = 0) -> str:
    """Module, qualified name and hash of the source of a function, class or callable object.

    The values that a function closes over and its defaults count as far as they are numbers, texts, functions or
    tuples of such; of anything else the type counts.
    """
    if isinstance(code, functools.partial):
        return f"partial({identity_of(code.func, depth)}, {_values((code.args, code.keywords), depth)})"
    if isinstance(code, types.MethodType):
        return f"{identity_of(code.__func__, depth)} of {_value(code.__self__, depth + 1)}"
    function = code if isinstance(code, (types.FunctionType, types.BuiltinFunctionType, type)) else type(code)
    name = f"{function.__module__}.{function.__qualname__}"
    digest = hashlib.sha256(_source(function).encode()).hexdigest()[:16]
    own = ""
    if isinstance(code, types.FunctionType):
        cells = [_contents(cell) for cell in code.__closure__ or ()]
        own = _values((cells, code.__defaults__, code.__kwdefaults__), depth)
    elif function is not code:
        own = _values(vars(code) if hasattr(code, "__dict__") else (), depth)
    return f"{name}:{digest}:{hashlib.sha256(own.encode()).hexdigest()[:16]}"


def place_of(code: Any) -> str:
    """Where ``code`` is written ("file.py:line"); its name where that is not known."""
    found = getattr(inspect.unwrap(code) if callable(code) else code, "__code__", None)
    if found is None:
        return str(getattr(code, "__qualname__", type(code).__qualname__))
    return f"{found.co_filename.replace(chr(92), '/').rsplit('/', 1)[-1]}:{found.co_firstlineno}"


def caller_place(depth: int = 2) -> str:
    """The statement ``depth`` calls up, as "file.py:line"."""
    frame = sys._getframe(depth)
    return f"{frame.f_code.co_filename.replace(chr(92), '/').rsplit('/', 1)[-1]}:{frame.f_lineno}"


def _source(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        return "" if code is None else repr((code.co_code, code.co_names, [str(c) for c in code.co_consts]))


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _values(values: Any, depth: int) -> str:
    if isinstance(values, dict):
        return "{" + ", ".join(f"{k}: {_value(v, depth)}" for k, v in sorted(values.items(), key=str)) + "}"
    return "(" + ", ".join(_value(v, depth) for v in values) + ")"


def _value(value: Any, depth: int) -> str:
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, (tuple, list, dict)):
        return _values(value, depth)
    if callable(value) and depth < _DEEPEST and hasattr(value, "__qualname__"):
        return identity_of(value, depth + 1)
    return f"{type(value).__module__}.{type(value).__qualname__}"
