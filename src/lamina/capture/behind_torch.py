"""The logs of functions that ``torch.compile`` compiles with Lamina as its backend."""

from __future__ import annotations

from types import CodeType
from weakref import WeakKeyDictionary

from lamina.capture.events.torch_private import function_being_compiled, was_reset
from lamina.capture.log import CaptureLog
from lamina.record import Record, keep

__all__ = ["log_behind_torch"]

_logs: WeakKeyDictionary[CodeType, CaptureLog] = WeakKeyDictionary()
"""By the function's code, with which what Dynamo compiled of it is kept, too."""


def log_behind_torch(function: CodeType | None = None) -> CaptureLog:
    """The log of ``function``, or of that which is compiled in this thread; one of no function outside of both."""
    function = function or function_being_compiled()
    if function is None:
        return CaptureLog(Record())
    if was_reset():
        _logs.clear()
    log = _logs.get(function)
    if log is None:
        log = _logs[function] = CaptureLog(keep(Record(function.co_qualname)))
    return log
