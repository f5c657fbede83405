"""Functions that are interpreted only if they change nothing: whoever else runs them does so once more, or otherwise.

``torch.utils.checkpoint`` runs its function again in the backward, with all that this does to the program's objects. It
is captured as calls that are computed again where there is nothing to see of that.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from functools import cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NoReturn

import torch

from lamina.base.modes import autocast_kept
from lamina.base.torch_private import transforms_kept
from lamina.capture.own.checkpoints.torch_private import checkpointed, draws_again
from lamina.capture.own.frame import MISSING, Unhandled
from lamina.capture.own.pending import Pending
from lamina.capture.own.recorder import Recorder
from lamina.capture.own.reuse.facts import is_settled
from lamina.capture.own.reuse.trace import TENSORS, Trace
from lamina.capture.own.segment import Segment
from lamina.capture.own.torch_private import SET_GRAD, autocast_states

__all__ = ["Attempt", "checkpointed_call", "is_from_outside"]


class Abandoned(Unhandled):
    """Ends an attempt before it does what cannot be taken back."""


def checkpointed_call(
    trace: Trace, recorder: Recorder, interpret: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What ``checkpoint(*args, **kwargs)`` gives, captured; ``MISSING``, and nothing was done, if it cannot be."""
    asked = checkpointed(args, kwargs)
    if asked is None:
        return MISSING
    function, given, named = asked
    if not torch.is_grad_enabled():
        return interpret(function, *given, **named)
    if not all(is_from_outside(trace, value) for value in (function, *given, *named.values())):
        return MISSING
    segment = recorder.segment
    if segment is not None and segment.state[1] != autocast_states():
        recorder.end("a call in another state of autocast", always=True)
    attempt = Attempt(trace, recorder, draws_again(kwargs))
    return attempt.of(partial(interpret, function, *given, **named), computed_again=True)


class Attempt:
    """A call that may be given up.

    Within it the trace and the recorder ask ``refuse`` before they do what cannot be taken back.
    """

    def __init__(self, trace: Trace, recorder: Recorder, draws: bool) -> None:
        self.trace, self.recorder, self.draws = trace, recorder, draws
        self.outer = trace.attempt, recorder.attempt, recorder.region

    def refuse(self) -> NoReturn:
        raise Abandoned

    def asked(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A function of torch's is called, or asks something of a tensor."""

    def of(self, call: Callable[[], Any], computed_again: bool = False) -> Any:
        """What ``call`` gives, whose calls of torch's are ``computed_again`` in the backward; ``MISSING`` if it is
        given up.
        """
        trace, recorder = self.trace, self.recorder
        segment, grad, set_back = recorder.segment, torch.is_grad_enabled(), autocast_kept()
        kept = None if segment is None else _kept(segment)
        trace.attempt, recorder.attempt = self.refuse, self
        if computed_again:
            recorder.regions_entered += 1
            recorder.region = recorder.regions_entered
        try:
            with transforms_kept():
                return call()
        except Abandoned:
            SET_GRAD(grad)
            set_back()
            recorder.segment = segment
            if segment is not None:
                _take_back(segment, kept)
            return MISSING
        finally:
            trace.attempt, recorder.attempt, recorder.region = self.outer


def _kept(segment: Segment) -> Any:
    """What ``_take_back`` needs for a graph to be as it is now."""
    counts = len(segment.graph.nodes), len(segment.key), len(segment.inputs)
    return counts, (segment.draws, segment.watched, segment.switches), segment.uses.copy(), segment.alike.copy()


def _take_back(segment: Segment, kept: Any) -> None:
    """Have a graph as before, when nothing was written to since."""
    counts, (segment.draws, segment.watched, segment.switches), segment.uses, segment.alike = kept
    segment.take_back(*counts)


def is_from_outside(trace: Trace, value: Any) -> bool:
    """Whether a call of ``value``, or one that is given it, reaches nothing that may change and that the call made."""
    if is_settled(value) or type(value) in (Pending, *TENSORS) or trace.place_of(value) is not None:
        return True
    if type(value) is ModuleType:
        return True
    reached = partial(is_from_outside, trace)
    if type(value) is tuple:
        return all(map(reached, value))
    if type(value) is MethodType:
        return reached(value.__func__) and reached(value.__self__)
    if type(value) is partial:
        return all(map(reached, (value.func, *value.args, *value.keywords.values())))
    if type(value) is not FunctionType or _writes_to_cells(value.__code__):
        return False
    given = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    made = [cell for cell in value.__closure__ or () if trace.place_of(cell) is None]
    return all(map(_is_full, made)) and all(map(reached, (*given, *(cell.cell_contents for cell in made))))


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not MISSING
    except ValueError:
        return False


@cache  # of each code once
def _writes_to_cells(code: CodeType) -> bool:
    """Whether code, or code within it, writes to variables of functions around it."""
    written = {one.argval for one in dis.get_instructions(code) if one.opname in ("STORE_DEREF", "DELETE_DEREF")}
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return not written.isdisjoint(code.co_freevars) or any(map(_writes_to_cells, inner))
