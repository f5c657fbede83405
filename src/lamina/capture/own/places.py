"""Where the user's program stands, for whoever asks Python: tracebacks, warnings, ``sys._getframe``."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any

from lamina.capture.own.frame import MOST_KEPT, Frame

__all__ = ["Places", "by_interpreter", "native"]

_OURS = os.path.dirname(__file__) + os.sep
_CALL = (lambda function, args, kwargs: function(*args, **kwargs)).__code__
_NOWHERE = next(c for c in compile("def here(): yield", "", "exec").co_consts if isinstance(c, CodeType))
_callers: dict[tuple[int, int, int], tuple[FunctionType, CodeType, object]] = {}
"""Functions that call from a line of the user's, by code, line and namespace: one a line that calls something."""

_caller_codes: set[int] = set()
"""Identities of their code."""


class Places:
    """Calls from the user's lines, and tracebacks that name them.

    ``again`` is an exception, with its context, that is raised once more in a frame that its traceback names already.
    """

    def __init__(self) -> None:
        self.again: tuple[BaseException, BaseException | None] | None = None
        self._noted: tuple[int, int] | None = None  # an exception and the frame that its traceback begins with

    def caller(self, frame: Frame) -> Callable[..., Any]:
        """A function whose frame has file, line, name and globals of ``frame``, which makes the call it is given."""
        code, line, space = frame.code, frame.line, frame.function.__globals__
        key = (id(code), line, id(space))
        found = _callers.get(key)
        if found is None:
            if len(_callers) >= MOST_KEPT:
                _forget_first()
            found = _callers[key] = (FunctionType(_at(_CALL, code, line), space), code, space)
            _caller_codes.add(id(found[0].__code__))
        return found[0]

    def note(self, frame: Frame, error: BaseException) -> bool:
        """Put ``frame`` into the traceback of ``error``, unless it is being raised again, and take ours out of it.

        Gives whether an instruction of ``frame`` raised it, rather than a call.
        """
        kept, self.again = self.again, None
        again = kept is not None and kept[0] is error
        if kept is not None and again:
            error.__context__ = kept[1]  # raising it has put what Python handles there
        entries = [t for t in _entries(error.__traceback__) if not _is_ours(t)]
        by_call = bool(entries) and self._is_call_of(entries[0], frame)
        by_callee = bool(entries) and self._noted == (id(error), id(entries[0].tb_frame))
        direct = not (again or by_call or by_callee)
        if by_call and not by_callee:
            del entries[0]
        if not again:
            entries.insert(0, _entry(frame))
        self._noted = (id(error), id(entries[0].tb_frame)) if entries else None
        rebuilt = None
        for entry in reversed(entries):
            rebuilt = TracebackType(rebuilt, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
        error.__traceback__ = rebuilt
        return direct

    def _is_call_of(self, entry: TracebackType, frame: Frame) -> bool:
        """Whether ``entry`` is of a native call that ``frame``, or another call of its code, made from its line."""
        made = _callers.get((id(frame.code), frame.line, id(frame.function.__globals__)))
        return made is not None and entry.tb_frame.f_code is made[0].__code__


def _forget_first() -> None:
    """Forget the line that was called from first; a call from it in progress is a native one to those who look."""
    first = next(iter(_callers), None)
    gone = None if first is None else _callers.pop(first, None)
    if gone is not None:
        _caller_codes.discard(id(gone[0].__code__))


def by_interpreter(frame: FrameType | None, passed: str) -> bool:
    """Whether the code of ``frame`` is called by the interpreter, through nothing but files that begin so."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_OURS) or id(code) in _caller_codes:
            return True
        if not code.co_filename.startswith(passed):
            return False
        frame = frame.f_back
    return True


def _at(own: CodeType, code: CodeType, line: int) -> CodeType:
    """Code of ours with the name and the file of ``code`` and one line of it."""
    return own.replace(
        co_filename=code.co_filename, co_name=code.co_name, co_qualname=code.co_qualname, co_firstlineno=line
    )


def _entry(frame: Frame) -> TracebackType:
    """A traceback entry for the line where ``frame`` stands, which keeps no frame of the interpreter alive.

    The frame is that of a generator that was never started: Python 3.12 runs one that was to its end when it is let go
    of, and its frame then leads to those that did so.
    """
    unstarted = FunctionType(_at(_NOWHERE, frame.code, frame.line), frame.function.__globals__)()
    return TracebackType(None, unstarted.gi_frame, unstarted.gi_frame.f_lasti, frame.line)


def native(source: str, name: str) -> Any:
    """The function ``name`` that ``source`` defines, which tracebacks leave out as they do the interpreter."""
    space: dict[str, Any] = {}
    exec(compile(source, f"{_OURS}{name}", "exec"), space)
    return space[name]


def _entries(traceback: TracebackType | None) -> list[TracebackType]:
    found = []
    while traceback is not None:
        found.append(traceback)
        traceback = traceback.tb_next
    return found


def _is_ours(entry: TracebackType) -> bool:
    return entry.tb_frame.f_code.co_filename.startswith(_OURS)
