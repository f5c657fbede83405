"""What Dynamo calls to compile a frame, and what becomes of frames that it fails on (torch 2.11 to 2.13)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from inspect import signature
from types import CodeType
from typing import Any

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch._dynamo import config
from torch._dynamo.convert_frame import CatchErrorsWrapper
from torch._dynamo.exc import (
    InternalTorchDynamoError,
    TorchRuntimeError,
)
from torch._dynamo.guards import get_and_maybe_log_recompilation_reasons
from torch._dynamo.mutation_guard import GenerationTracker
from torch._dynamo.types import ConvertFrameReturn

from lamina.base.modes import autocast_kept
from lamina.base.reasons import Reason
from lamina.capture.breaks import failure_reason
from lamina.capture.fixed_sizes.torch_private import FixedSizes
from lamina.capture.log import CaptureLog
from lamina.capture.modes.switches import enters_by_hand, place_of, switches_autocast
from lamina.capture.modes.torch_private import is_checkpointed, refused_code, refused_frame
from lamina.capture.reasons import RAISED
from lamina.capture.recompiles.reasons import LIMIT_REACHED

__all__ = ["SKIPPED", "callback_within"]

SKIPPED = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.DEFAULT)
"""Python runs the frame, and Dynamo looks at what it calls."""
_this_time = _FrameExecStrategy(_FrameAction.DEFAULT, _FrameAction.DEFAULT)
_with_all_it_calls = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)

_WRONG_INPUTS = (TorchRuntimeError, IndexError)
"""What Dynamo raises where a call refuses its inputs, or where it cannot run the call without values.

Its version 2.11 takes an ``IndexError`` of a tensor's sizes for a fault of its own.
"""
_INTERNAL = (InternalTorchDynamoError, AssertionError)
"""What it raises for faults of its own. Errors of backends and what a user's settings forbid are other classes."""

_UNSOUND = (
    "use_recursive_dict_tags_for_guards",
    "skip_tensor_guards_with_matching_dict_tags",
    "skip_guards_on_constant_func_defaults",
)
"""Settings by which guards are passed over where a dictionary is as it was, though what it holds may have changed.

A buffer that begins to require gradients, a parameter with other data, a default that was replaced: older versions of
torch use the compiled code of what was there before.
"""
_SETTINGS = {"record_runtime_overhead": False, **{name: False for name in _UNSOUND if hasattr(config, name)}}
if hasattr(config, "invalidate_compile_context_weakrefs"):
    # Else a trace leaves weak references to parameters, which may then not be swapped (torch.utils.swap_tensors).
    _SETTINGS["invalidate_compile_context_weakrefs"] = True


class FrameCallback(CatchErrorsWrapper):
    """Compiles a frame under settings that torch's wrapper has around each whole call.

    The code it makes does not tell a profiler where a graph's call begins, which takes a microsecond of every call
    without a profiler, too.

    A frame that need not be one graph and switches modes in a way that Dynamo does not follow is run by Python, as is
    one that starts with gradients on within inference mode: Dynamo leaves that to trace, and takes gradients to be off.

    Where Dynamo fails on a frame that need not be one graph, Python runs the frame: if the inputs were to blame, with
    eager's own exception, which Dynamo replaces by one of its own; and otherwise with eager's result. So it does if the
    program raises an exception that leaves the frame; with other arguments it may not, so it is captured again then.
    """

    def __init__(
        self,
        callback: CatchErrorsWrapper,
        settings: Sequence[Callable[[], Callable[[], None]]],
        caught: tuple[type[Exception], ...],
        log: CaptureLog,
        whole: bool,
    ) -> None:
        super().__init__(callback._torchdynamo_orig_backend, callback.hooks)
        self.settings, self.caught, self.log, self.whole = settings, caught, log, whole
        self.sizes = FixedSizes(log)
        self.looked_at: tuple[type[Exception], ...] = (*caught, InternalTorchDynamoError)
        self.entry: CodeType | None = None
        """The code of the function through which Python calls what is compiled here."""
        self.unsettled = True
        """Whether the call that goes on is the first or has compiled something: what came of it is told at its end."""
        self.met = False
        """Whether a frame came here that no compiled code was there for."""
        self.switches = False
        """Whether Python has run a function that switches autocast by hand, which may raise in between."""
        self.failed: tuple[int, CodeType, Exception] | None = None
        """The last frame whose capture failed, and the number of the call in which it did."""
        self.ran: dict[CodeType, int] = {}
        """How many calls Python brought to an end for each function whose capture had failed in them."""
        self.left: set[CodeType] = set()
        """The functions that Python ran for another reason than a failure, of which it was told."""
        self.raised: dict[CodeType, int] = {}
        """How often an exception of the program's own ended the capture of each function."""

    def __call__(self, frame: Any, cache_entry: Any, frame_state: Any) -> Any:
        self.met = True
        if frame.f_code.co_filename.startswith(_FROZEN):
            return ConvertFrameReturn(frame_exec_strategy=_with_all_it_calls, apply_to_code=False)
        if not self.whole and (why := refused_frame(frame.f_code)):
            by_hand = switches_autocast(frame.f_code) or enters_by_hand(frame.f_code)
            self.switches = self.switches or by_hand
            return self._left_to_python(frame.f_code, why)
        if not self.whole and is_checkpointed(self.entry):
            return self._left_to_python(frame.f_code, _CHECKPOINTED, _with_all_it_calls)
        missed = len(self.log.missed)
        with contextlib.ExitStack() as stack:
            stack.callback(autocast_kept())  # Dynamo calls its setters while it traces
            stack.enter_context(config.patch(_SETTINGS))
            for enter in self.settings:
                stack.callback(enter())
            try:
                capture = functools.partial(super().__call__, frame, cache_entry, frame_state)
                compiled = self.sizes.capture(frame.f_code, capture)
            except self.looked_at as error:
                wrong = not self.whole and isinstance(error.__context__, _WRONG_INPUTS)
                if not wrong and not isinstance(error, self.caught):
                    raise
                self.failed = (GenerationTracker.generation, frame.f_code, error.with_traceback(None))
                self.unsettled = True
                return ConvertFrameReturn(frame_exec_strategy=_this_time, apply_to_code=False)
        self.unsettled = self.unsettled or not self.log.graphs
        if compiled.guarded_code is None:
            if any(reason.code == RAISED.number for reason in self.log.missed[missed:]):
                count = self.raised[frame.f_code] = self.raised.get(frame.f_code, 0) + 1
                if count < _MOST_FAILURES:
                    return ConvertFrameReturn(frame_exec_strategy=_this_time, apply_to_code=False)
            if compiled.frame_exec_strategy.cur_action == compiled.frame_exec_strategy.recursive_action == _NO_MORE:
                self.log.run_by_python(f"other calls of {place_of(frame.f_code)}", _too_often(frame, cache_entry), True)
            return compiled
        made = compiled.guarded_code.code
        if not self.whole and (why := refused_code(frame.f_code, made)):
            return self._left_to_python(frame.f_code, why)
        _call_directly(made, frame.f_globals)
        return compiled

    def _left_to_python(
        self, code: CodeType, why: str, strategy: _FrameExecStrategy = _this_time
    ) -> ConvertFrameReturn:
        """What has Python run the frame of ``code`` this time, and that it is said once."""
        if code not in self.left:
            self.left.add(code)
            self.log.run_by_python(place_of(code), why, False)
        return ConvertFrameReturn(frame_exec_strategy=strategy, apply_to_code=False)

    def finished(self) -> None:
        """Called at the end of a call without an exception while ``unsettled`` is set."""
        self.unsettled = False
        if not self.met:
            self.log.nothing_met()
        if self.failed is None:
            self.log.tell_nothing_compiled()
            return
        generation, code, error = self.failed
        self.failed = None
        if generation != GenerationTracker.generation:
            return  # an earlier call's, which ended in an exception: that was told instead
        count = self.ran[code] = self.ran.get(code, 0) + 1
        if count == _MOST_FAILURES:
            set_code_exec_strategy(code, SKIPPED)
        if count in (1, _MOST_FAILURES):
            self.log.run_by_python(place_of(code), failure_reason(error), count == _MOST_FAILURES)


_FROZEN = "<frozen "
"""How the files of modules begin that are part of Python, as its import is: nothing of the program runs there."""

_CHECKPOINTED = (
    "hooks of a module discard what it saves and call it again in the backward, uncompiled; checkpoint within what is "
    "compiled, by torch.utils.checkpoint.checkpoint"
)

_MOST_FAILURES = 8
"""So many calls may try in vain to capture a function that Python then runs without an error; none does after them."""


_NO_MORE = _FrameAction.RUN_ONLY
"""What Dynamo answers where a function was compiled as often as may be: what there is is used, nothing is compiled."""


def _too_often(frame: Any, entry: Any) -> Reason:
    """Why a function is not compiled again, with what the last compiled version did not fit."""
    reason = ""
    with contextlib.suppress(Exception):  # told for the user's sake only, in words that differ between versions
        names = list(signature(get_and_maybe_log_recompilation_reasons).parameters)
        entries = [entry] if names[0] == "cache_entries" and not isinstance(entry, list) else entry
        found = get_and_maybe_log_recompilation_reasons(entries, frame, *((None,) if len(names) > 2 else ()))
        reason = f"; the last version did not fit because {_one_line(str(found[0]))}" if found else ""
    return LIMIT_REACHED(limit=config.recompile_limit, why=reason)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]


def _call_directly(code: CodeType, scope: dict[str, Any]) -> None:
    """Take what keeps Dynamo out of compiled graphs off those that say themselves that they are never captured."""
    for name in code.co_names:
        shell = scope.get(name)
        graph = getattr(shell, "_torchdynamo_orig_callable", None)
        if getattr(shell, "_torchdynamo_disable", False) and getattr(graph, "never_captured", False):
            scope[name] = graph


def callback_within(callback: CatchErrorsWrapper, context: Any, log: CaptureLog, strict: bool) -> FrameCallback:
    """What compiles the frames that are called within ``context``, torch's own ``callback`` around Lamina's."""
    caught = () if context.fullgraph else _WRONG_INPUTS if strict else (*_WRONG_INPUTS, *_INTERNAL)
    return FrameCallback(callback, context.enter_exit_hooks[:-1], caught, log, context.fullgraph)
