"""How much work Python code does: a count, equal on a fast machine and a busy one, where a time is not."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["executed"]


def executed(function: Callable[[], object]) -> int:
    """Bytecode instructions that a call executes, all that it calls in Python included.

    Work within one instruction (a long list copied by C code) counts as one. The collector waits: what it runs is
    another program's.
    """
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "opcode"
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return trace

    before, collecting = sys.gettrace(), gc.isenabled()
    gc.disable()
    try:
        sys.settrace(trace)
        _nothing()  # Python 3.12 and 3.13 note the first wish for instructions, and tell of them the next time
        sys.settrace(trace)
        count = 0
        function()
    finally:
        sys.settrace(before)
        if collecting:
            gc.enable()
    return count


def _nothing() -> None:
    pass
