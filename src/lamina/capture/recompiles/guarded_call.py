"""The call that a guard did not hold for: its variables, the user's line that makes it, and what that line gives."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from lamina.base.user_warnings import OWN_FOLDERS, is_pythons

__all__ = ["GuardedCall", "calling_frame", "given_names", "value_of"]


@dataclass(frozen=True, slots=True)
class GuardedCall:
    """What is known of a call when guards are told of, for texts alone.

    ``scope`` holds the local variables and ``names`` the global ones of the function called. ``place`` is the user's
    line that calls it (of a function that is compiled too, if ``inner``), ``given`` its parameters with what that line
    gives for each. ``after`` is the line of the graph break after which the part of the function called begins, or
    "". ``fixed`` are sizes and numbers that a line of the program fixed, ``outer`` variables of the functions around.
    """

    scope: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""
    given: Mapping[str, str] = field(default_factory=dict)
    inner: bool = False
    after: str = ""
    fixed: frozenset[str] = frozenset()
    outer: frozenset[str] = frozenset()

    @property
    def held(self) -> bool:
        """Whether a function that is compiled makes the call, so that no line of the user's own gives arguments."""
        return self.inner or bool(self.after)

    def value(self, expression: str) -> tuple[Any] | None:
        """What ``value_of`` gives for the variables of the call."""
        return value_of(expression, self.scope, self.names)

    def written(self, name: str) -> str:
        """How the caller writes what is ``name`` in the function: a variable at its line, with items; "" if unknown."""
        root = name.partition("[")[0].partition(".")[0]
        return self.given[root] + name[len(root) :] if root in self.given else ""


def calling_frame(called: CodeType) -> FrameType | None:
    """The innermost frame that is neither of ``called`` nor of Lamina, torch or Python's library; nothing if none is.

    Of Python's library threads and the like stand between a caller and what is called; they are passed over.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code is called or _is_passed(frame.f_code.co_filename)):
        frame = frame.f_back
    return frame


def _is_passed(filename: str) -> bool:
    return filename.startswith((*OWN_FOLDERS, "<frozen")) or is_pythons(filename)


def given_names(frame: FrameType, called: CodeType, bound: bool) -> dict[str, str]:
    """The parameters of ``called`` with the names that ``frame`` gives for them in its call, where it gives names.

    ``bound`` tells whether the first parameter is the object that a method is of. Only texts are read: the variables of
    a frame cannot be asked for without keeping them alive.
    """
    try:
        call = _call_made(frame)
    except Exception:  # positions and sources may be missing, or those of another text
        return {}
    if call is None:
        return {}
    positional = called.co_varnames[bound : called.co_argcount]
    starred = next((i for i, one in enumerate(call.args) if isinstance(one, ast.Starred)), len(call.args))
    given = [
        *zip(positional, call.args[:starred], strict=False),
        *((one.arg, one.value) for one in call.keywords if one.arg is not None),
    ]
    return {name: ast.unparse(value) for name, value in given if _is_a_name(value)}


def _is_a_name(value: ast.expr) -> bool:
    """Whether it is a variable, or an attribute or item of one."""
    while isinstance(value, ast.Attribute) or (isinstance(value, ast.Subscript) and isinstance(value.slice, _INDICES)):
        value = value.value
    return isinstance(value, ast.Name)


_INDICES = (ast.Constant, ast.Name)


def _call_made(frame: FrameType) -> ast.Call | None:
    """The call that ``frame`` is at; nothing if it is at none that is written as such."""
    first, last, begin, end = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    if first is None or last is None or begin is None or end is None:
        return None
    lines = [linecache.getline(frame.f_code.co_filename, line).encode() for line in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    found = ast.parse(f"({b''.join(lines).decode()})", mode="eval").body
    return found if isinstance(found, ast.Call) else None


_READS = (ast.Expression, ast.Name, ast.Load, ast.Attribute, ast.Subscript, ast.Constant, ast.Call)


def value_of(expression: str, scope: Mapping[str, Any], names: Mapping[str, Any]) -> tuple[Any] | None:
    """What an expression of names, attributes, items, lengths and sizes gives now; nothing if it is more, or raises."""
    try:
        tree = ast.parse(expression, mode="eval")
        if not all(isinstance(node, _READS) for node in ast.walk(tree)):
            return None
        if not all(_is_harmless(node) for node in ast.walk(tree) if isinstance(node, ast.Call)):
            return None
        return (eval(compile(tree, "<guard>", "eval"), {"__builtins__": {"len": len}, "G": names}, dict(scope)),)
    except Exception:  # told for the user's sake only
        return None


def _is_harmless(call: ast.Call) -> bool:
    """Whether it is ``len(...)``, or a size, stride or offset of a tensor."""
    called = call.func
    if isinstance(called, ast.Attribute):
        return not call.args and called.attr in ("size", "stride", "storage_offset")
    return isinstance(called, ast.Name) and called.id == "len"
