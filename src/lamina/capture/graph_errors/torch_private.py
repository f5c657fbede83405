"""Code of Dynamo's with a handler for what its graph raises; names as read in torch 2.11 to 2.13.

Dynamo has the graph compute all tensors of a frame first, and then does what the program does to lists, dictionaries,
attributes and variables of others. What the graph raises comes before all of it, whatever the program does first. So
the code of such a frame gets a handler that has Python run the frame again from its begin.
"""

from __future__ import annotations

import dis
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from types import CodeType
from typing import Any

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch._dynamo import disable
from torch._dynamo.bytecode_transformation import (
    Instruction,
    InstructionExnTabEntry,
    create_call_function,
    create_copy,
    create_instruction,
    create_load_const,
    transform_code_object,
)
from torch._dynamo.convert_frame import register_bytecode_hook
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.base import AttributeMutationNew, ValueMutationNew
from torch._guards import TracingContext
from torch.fx import GraphModule

from lamina.capture.graph_errors.again import Again, Engine, arguments_of, may_raise
from lamina.capture.log import CaptureLog

__all__ = ["keep_changes", "rerun_frames"]

_TORCH = os.path.dirname(torch.__file__) + os.sep
_UNLESS = "POP_JUMP_FORWARD_IF_FALSE" if sys.version_info < (3, 12) else "POP_JUMP_IF_FALSE"
_CELL = "LOAD_CLOSURE" if sys.version_info < (3, 13) else "LOAD_FAST"
_OF_NEW_OBJECTS = (AttributeMutationNew, ValueMutationNew)
_thread = threading.local()
"""``frame``: what Dynamo compiles in this thread, whose code is to get a handler."""


def keep_changes(made: Callable[..., Any], gm: GraphModule, log: CaptureLog, strict: bool) -> Callable[..., Any]:
    """``made``, what is compiled of a graph, such that its errors come after what the program has changed before them.

    To be called while Dynamo's trace is open.
    """
    _thread.frame = None
    try:
        tx = InstructionTranslator.current_tx()
    except AttributeError:  # none has ever run in this thread
        return made
    if tx is None or not may_raise(gm):
        return made
    changes = _changes(tx)
    if not changes and not any(map(_handles, _traced())):
        return made
    engine = Engine(partial(disable, recursive=True), torch._C._set_grad_enabled, _is_hooked)
    frame = Again(tx.f_code, gm, changes, bool(tx.output.random_calls), engine, log, strict)
    _thread.frame = frame
    watched = frame.watched(made)
    if getattr(made, "never_captured", False):
        set_code_exec_strategy(watched.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
        watched.never_captured = True  # type: ignore[attr-defined]
    return watched


def _changes(tx: Any) -> bool:
    """Whether the code of a frame changes objects after its graph that were there before it."""
    effects = tx.output.side_effects
    old = [v for v in effects.id_to_variable.values() if not isinstance(v.mutation_type, _OF_NEW_OBJECTS)]
    return any(map(effects.is_modified, old)) or bool(effects.tensor_hooks or effects.save_for_backward)


def _traced() -> list[CodeType]:
    context = TracingContext.try_get()
    return [] if context is None else list(context.traced_code or ())


def _handles(code: CodeType) -> bool:
    """Whether a function of the program's has a ``try`` or ``with`` statement, which may change something as well."""
    return not code.co_filename.startswith(_TORCH) and bool(getattr(dis.Bytecode(code), "exception_entries", ()))


def _is_hooked() -> bool:
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def rerun_frames() -> None:
    """Give the code of frames with such a graph a handler, from now on."""
    register_bytecode_hook(_with_handler)


def _with_handler(code: CodeType, new_code: CodeType) -> CodeType | None:
    """``new_code``, which Dynamo has made of ``code``, with the handler; None if it needs none."""
    frame = getattr(_thread, "frame", None)
    _thread.frame = None
    if not isinstance(frame, Again) or frame.code is not code or not frame.possible:
        return None

    def transform(instructions: list[Instruction], options: dict[str, Any]) -> None:
        handler = _handler(frame, options)
        _cover(instructions, handler[0])
        instructions.extend(handler)

    # Dynamo looks a code up by its constants, among which it may have put what has no hash, as a dict.
    constants = tuple(c if _has_hash(c) else _Unhashed(c) for c in new_code.co_consts)
    found: CodeType = transform_code_object(new_code.replace(co_consts=constants), transform)[0]
    return found.replace(co_consts=tuple(c.value if isinstance(c, _Unhashed) else c for c in found.co_consts))


@dataclass(frozen=True, slots=True, eq=False)
class _Unhashed:
    """Stands for a constant without a hash."""

    value: Any


def _has_hash(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _cover(instructions: list[Instruction], target: Instruction) -> None:
    """Have ``target`` handle what instructions raise that have no handler."""
    for handled, run in groupby(list(instructions), lambda one: one.exn_tab_entry is not None):
        covered = list(run)
        for one in () if handled else covered:
            one.exn_tab_entry = InstructionExnTabEntry(covered[0], covered[-1], target, 0, False)


def _handler(frame: Again, options: dict[str, Any]) -> list[Instruction]:
    """What is done with an exception on the stack: the frame runs again, or it is raised on."""
    code = frame.code
    held = (*options["co_cellvars"], *options["co_freevars"])
    loads = [create_instruction("LOAD_DEREF" if n in held else "LOAD_FAST", argval=n) for n in arguments_of(code)]
    loads += [create_instruction(_CELL, argval=name) for name in code.co_freevars]
    raised_on = create_instruction("RERAISE", arg=0)
    return [
        create_load_const(frame.takes, checked=False),
        *create_copy(2),
        *create_call_function(1, True),
        create_instruction(_UNLESS, target=raised_on),
        create_load_const(frame.run, checked=False),
        create_instruction("SWAP", arg=2),
        create_load_const(globals, checked=False),
        *create_call_function(0, True),
        *loads,
        *create_call_function(2 + len(loads), True),
        create_instruction("RETURN_VALUE"),
        raised_on,
    ]
