"""Functions of torch's that are answered, or done in a way of ours, while a call is captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lamina.capture.own.frame import MISSING
from lamina.capture.own.functions.applying import apply
from lamina.capture.own.functions.history import history_of, is_apart, parts_of, program_of
from lamina.capture.own.functions.torch_private import in_history
from lamina.capture.own.noting import looks
from lamina.capture.own.queries.torch_private import FUNCTION_MODES_ENTERED
from lamina.capture.own.recorder import Recorder
from lamina.capture.own.reuse.remade import Remade
from lamina.capture.own.torch_private import autocast_states, has_other_modes, paused, resumed

__all__ = ["of_torch", "unrecorded"]


def of_torch(world: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What such a function gives in a ``world``; ``MISSING`` for others."""
    if function is FUNCTION_MODES_ENTERED:
        return has_other_modes()
    if (given := program_of(function, args, kwargs)) is not None:
        return world.interpret(apply, *given)
    return _put_in_history(world.recorder, *args) if function is history_of else MISSING


def _put_in_history(recorder: Recorder, kind: Any, context: Any, args: tuple[Any, ...], output: Any) -> Any:
    """What a function of autograd's gives that has computed ``output``."""
    if is_apart(args, output, looks):
        return output
    recorder.end(f"the call of {kind.__qualname__}.apply", always=True, cause="functions")
    recorder.regions.native += 1
    given = (kind, *parts_of(context), args, output)
    found = unrecorded(recorder, in_history, given, {})
    if recorder.trace is not None:
        state = torch.is_grad_enabled(), autocast_states()
        recorder.trace.learning.called(Remade(in_history, calls_back=True), given, {}, found, state)
        if vars(context).get("dirty_tensors") is not None:
            recorder.escaped("a function that writes to what it is given")
    return found


def unrecorded(recorder: Recorder, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call in which nothing is recorded."""
    was_on = paused(recorder)
    try:
        return function(*args, **kwargs)
    finally:
        if was_on or recorder.left:
            recorder.left = not resumed(recorder)
