"""Calls that tell the user something, or read a clock, which a later call makes again."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from typing import Any

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.capture.own.frame import MISSING
from lamina.capture.own.reuse.calls import Calls
from lamina.capture.own.reuse.learning import NUMBERS
from lamina.capture.own.reuse.trace import Effect, Trace

__all__ = ["printed", "read_clock", "writes_by_c"]

_NAMED = ("sep", "end", "file", "flush")
_STREAMS = (io.TextIOWrapper, io.StringIO)
_BELOW = (io.BufferedWriter, io.BufferedRandom, io.BytesIO, io.FileIO)
_CLOCKS: frozenset[int] = frozenset(map(id, (time.time, time.perf_counter, time.monotonic, time.process_time)))


def printed(trace: Trace, calls: Calls, settle: Callable[[], None], args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether ``print`` was called with what a later call knows as well, which prints it when its graphs have run.

    What is printed are texts and numbers, also those that a call learns; other constants as the texts that they are.
    """
    stream = kwargs.get("file")
    named = [value for name, value in kwargs.items() if name != "file"]
    if not kwargs.keys() <= {*_NAMED} or not all(type(value) in (str, bool, type(None)) for value in named):
        return False
    read = trace.child(trace.fixed(sys), "attribute", "stdout", sys.stdout) if stream is None else stream
    place = trace.place_of(read)
    if trace.ended is not None or place is None or not writes_by_c(read):
        return False
    if not all(type(value) in (*NUMBERS, str) or calls.known(value) for value in args):
        return False
    trace.note("constant", (trace.facts.place("computed", None, (writes_by_c, place)),), True)
    texts = []
    for value in args:
        if type(value) not in (*NUMBERS, str):
            trace.learning.pin(value)
            value = str(value)
        texts.append(value)
    if trace.attempt is not None:
        trace.attempt()
    settle()
    print(*texts, **kwargs)
    trace.effects.append(Effect(_print, tuple(texts), (*(kwargs.get(name) for name in _NAMED),)))
    return True


def _print(texts: tuple[Any, ...], sep: str | None, end: str | None, file: Any, flush: bool | None) -> None:
    print(*texts, sep=sep, end=end, file=file, flush=bool(flush))


def writes_by_c(stream: Any) -> bool:
    """Whether nothing of the user's runs where a text is written to ``stream``."""
    kind = type(stream)
    if not issubclass(kind, _STREAMS) or not {"write", "flush"}.isdisjoint(object.__getattribute__(stream, "__dict__")):
        return False
    for base in kind.__mro__:
        entries = vars(base)
        own = ("write", "flush", "__getattribute__", "__getattr__", "buffer", "closed")
        if base.__flags__ & MADE_BY_PYTHON and not entries.keys().isdisjoint(own):
            return False
    if not issubclass(kind, io.TextIOWrapper):
        return True
    below = object.__getattribute__(stream, "buffer")
    return type(below) in _BELOW and (not hasattr(below, "raw") or type(below.raw) in _BELOW)


def read_clock(trace: Trace, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What a clock says that a call reads, another number in each call; ``MISSING`` for other calls.

    What was recorded before has been computed, as the program may want to know how long that takes.
    """
    if id(function) not in _CLOCKS or args or kwargs:
        return MISSING
    found = function()
    trace.learning.learn(function, (), found)
    return found
