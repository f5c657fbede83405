"""Functions that make objects whose end is noticed are Python's to run; names as read in torch 2.11 to 2.13."""

from __future__ import annotations

import functools
import weakref
from types import FunctionType
from typing import Any

from torch._dynamo.exc import SkipFrame, unimplemented
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.user_defined import UserDefinedClassVariable

from lamina.capture.log import CaptureLog
from lamina.capture.modes.torch_private import traced_function
from lamina.capture.trace_corrections.torch_private import compiles_for_lamina
from lamina.record import Record

__all__ = ["leave_finalizers_to_python"]

_FINALIZER = "it makes an object of class {name}, whose __del__ runs when nothing refers to it any more"
_WEAK_REFERENCE = "it makes a weak reference that is told when an object ends"


def leave_finalizers_to_python() -> None:
    """Let Python run functions that make an object with ``__del__``, or a weak reference that notices an object's end.

    Dynamo makes an object for each one that it traces, whose ``__del__`` runs while it compiles; those that the
    program makes live as long as the call, or are never made. It calls no weak reference's function, and takes what
    one refers to to be there for ever.
    """
    track_any, call_any = SideEffects.track_new_user_defined_object, UserDefinedClassVariable.call_function

    @functools.wraps(track_any)
    def track(self: Any, base: Any, kind: Any, *args: Any, **kwargs: Any) -> Any:
        _leave_where_finalized(kind.value)
        return track_any(self, base, kind, *args, **kwargs)

    @functools.wraps(call_any)
    def call(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        _leave_where_finalized(self.value)
        if self.value is weakref.ref and args and (len(args) > 1 or args[0].source is None):
            _leave(_WEAK_REFERENCE)
        return call_any(self, tx, args, kwargs)

    SideEffects.track_new_user_defined_object = track  # type: ignore[method-assign, assignment]
    UserDefinedClassVariable.call_function = call  # type: ignore[method-assign]


def _leave_where_finalized(kind: type) -> None:
    if isinstance(getattr(kind, "__del__", None), FunctionType):  # those of files are C's
        _leave(_FINALIZER.format(name=kind.__qualname__))


def _leave(why: str) -> None:
    """End the trace, if it is for Lamina: the function that it began with is Python's, with what it calls compiled."""
    tx = InstructionTranslator.current_tx()
    if not compiles_for_lamina(tx.output):
        return
    if tx.one_graph:
        unimplemented(
            gb_type="object whose end is noticed",
            context="__del__ or a weak reference",
            explanation=f"Something runs when an object ends: {why}",
            hints=["Make such objects outside of the compiled function"],
        )
    CaptureLog(Record()).run_by_python(traced_function(), why, True)
    raise SkipFrame(why)
