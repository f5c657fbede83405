"""Whether a function asks Python for the variables of the frame that runs it, which code made of a trace has not."""

from __future__ import annotations

import os
from types import CodeType

import torch

from lamina.capture.bytecode import instructions

__all__ = ["asks_for_own_frame"]

_TORCH = os.path.dirname(torch.__file__) + os.sep
_ALWAYS = frozenset({"eval", "exec"})
_WITHOUT_ARGUMENTS = frozenset({"vars", "dir"})
_OF_MODULES = frozenset({"_getframe", "currentframe"})


def asks_for_own_frame(code: CodeType) -> str:
    """What a function calls to look at its own frame, "" if nothing: eval, exec, vars(), dir(), sys._getframe."""
    names = {*code.co_names}
    if names.isdisjoint(_ALWAYS | _WITHOUT_ARGUMENTS | _OF_MODULES) or code.co_filename.startswith(_TORCH):
        return ""
    steps = [step for step in instructions(code) if step.opname not in ("PRECALL", "PUSH_NULL")]
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL") and step.argval in _OF_MODULES:
            return str(step.argval)
        if step.opname not in ("LOAD_GLOBAL", "LOAD_NAME"):
            continue
        called_alone = after is not None and after.opname == "CALL" and after.arg == 0
        if step.argval in _ALWAYS or (step.argval in _WITHOUT_ARGUMENTS and called_alone):
            return str(step.argval)
    return ""
