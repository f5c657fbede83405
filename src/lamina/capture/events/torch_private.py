"""Dynamo's graph breaks, skipped functions and failed guards, told to a ``CaptureLog``; names as read in 2.11 to 2.13.

Four functions of Dynamo's are replaced by ones around them: that which is asked for a frame, that which compiles a
function, that which logs a graph break, and that which finds the guards that failed. Nothing is added to a call of
what is compiled.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from inspect import signature
from types import CodeType, FrameType
from typing import Any

import torch
from torch._dynamo import convert_frame, guards, symbolic_convert
from torch._dynamo.callback import callback_handler
from torch._dynamo.resume_execution import ContinueExecutionCache
from torch._guards import TracingContext

from lamina.base.torch_logs.torch_private import asked_for_torch_logs
from lamina.capture.breaks import break_reason, is_torchs
from lamina.capture.conditions import Condition, Conditions
from lamina.capture.finalizers.torch_private import release_trace
from lamina.capture.log import CaptureLog
from lamina.capture.recompiles.dynamo_conditions import conditions_of
from lamina.capture.recompiles.guard_texts import FailedGuard, failed_guard, is_of_another, refusal
from lamina.capture.recompiles.guarded_call import GuardedCall, calling_frame, given_names
from lamina.capture.torch_private import passed_through
from lamina.errors import RecompileRefused

__all__ = ["Guards", "function_being_compiled", "note_fixed_sizes", "refused_recompile", "was_reset", "watch_frames"]

_thread = threading.local()
"""``function``: the code of the function that Dynamo compiles in this thread, and nothing else."""
_LOGGERS = ("torch._subclasses.fake_tensor", "torch._dynamo.variables.tensor", "torch._dynamo.utils")
_REPEATED = (
    "failed while attempting to run meta for",
    "Graph break from `Tensor.item()`",
    "Encountered exception (",
)
"""What begins messages about what Lamina tells in its own words."""


class Guards(Conditions):
    """What one version of a compiled function rests on: read when it is asked for, while Dynamo keeps that version."""

    def _raw(self, owner: Any) -> Iterator[str]:
        with suppress(Exception):  # text for people, made by functions of Dynamo's that differ between versions
            return iter([line.strip(" |+-") for line in str(owner).splitlines() if line.strip(" |+-")])
        return iter(owner.code_parts)

    def _conditions(self, owner: Any) -> Iterator[Condition]:
        return conditions_of(self._raw(owner), self.function.rpartition(" (")[2].rpartition(":")[0])


def was_reset() -> bool:
    """Whether ``torch.compiler.reset()`` was called since this was last asked; yes, if it never was."""
    if _mark in callback_handler.start_callbacks:
        return False
    callback_handler.register_start_callback(_mark)
    return True


def _mark(*_: Any) -> None:
    """Stands among Dynamo's callbacks until they are cleared."""


def function_being_compiled() -> CodeType | None:
    """The code of the user's function that Dynamo compiles in this thread, a part after a graph break included."""
    code: CodeType | None = getattr(_thread, "function", None)
    return None if code is None else _original(code)


def _original(code: CodeType) -> CodeType:
    """The code that a part of a function, after a graph break, comes from."""
    made = ContinueExecutionCache.generated_code_metadata
    while (found := made.get(code)) is not None:
        code = found.code
    return code


def _backends(compiler: Any) -> Iterator[Any]:
    """What Dynamo was given to compile with, and what stands within it."""
    while compiler is not None:
        yield compiler
        compiler = getattr(compiler, "_torchdynamo_orig_backend", None) or getattr(compiler, "compiler_fn", None)


def _log_of(compiler: Any, code: CodeType) -> CaptureLog | None:
    """The log of the backend that Dynamo compiles ``code`` for; a backend of Lamina's has a function ``log_of``."""
    for backend in _backends(compiler):
        log_of: Callable[[CodeType], CaptureLog] | None = getattr(backend, "log_of", None)
        if log_of is not None:
            return log_of(_original(code))
    return None


@functools.cache
def watch_frames() -> None:
    """Replace the functions, once."""
    _hear_of_breaks()
    _hear_of_failed_guards()
    _hear_of_frames()
    _hear_of_passed_frames()
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_repeats_nothing)


def _repeats_nothing(record: logging.LogRecord) -> bool:
    """Whether a message of torch's says what nobody else does, or somebody asked for torch's logs.

    The error of a call is raised by eager, with the user's lines, and a graph's end is a decision of the record.
    """
    level = logging.getLogger(record.name).getEffectiveLevel()
    wanted = level < logging.WARNING or asked_for_torch_logs()
    repeated = isinstance(record.msg, str) and record.msg.lstrip().startswith(_REPEATED)
    return wanted or not repeated or getattr(_thread, "function", None) is None


def _hear_of_passed_frames() -> None:
    """Hear of frames that end without a graph, most of which are never compiled."""
    wrapper: Any = convert_frame.CatchErrorsWrapper
    convert_any = wrapper.__call__

    @functools.wraps(convert_any)
    def convert(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        result = convert_any(self, frame, *args, **kwargs)
        release_trace()
        with suppress(Exception):  # what is told must not keep a function from being compiled
            log = _log_at_end(self._torchdynamo_orig_backend, frame.f_code)
            if log is not None:
                if result.guarded_code is None:
                    _tell_passed(log, frame.f_code, getattr(result, "skip_reason", None))
                elif log.called_by_torch and not any("_resume_" in n for n in result.guarded_code.code.co_names):
                    log.tell_nothing_compiled()
        return result

    wrapper.__call__ = convert


def _tell_passed(log: CaptureLog, code: CodeType, why: str | None) -> None:
    """A frame that Python runs, of which Dynamo says ``why`` in some versions and cases."""
    if code.co_flags & _GENERATORS and not is_torchs(code.co_filename):
        log.generator(log.name_of(_original(code)))
    elif why:
        log.without_graph(why)
    if log.called_by_torch:
        log.tell_nothing_compiled()


_GENERATORS = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def _log_at_end(compiler: Any, code: CodeType) -> CaptureLog | None:
    """The log to be told of the end of a frame of ``code``: behind torch.compile only that of what a user calls."""
    if _is_lamina_compile(compiler):
        return _log_of(compiler, code)
    wrapper = _calling_wrapper()
    if wrapper is None and _original(code) is code:
        return None
    log = _log_of(compiler, code)
    if log is not None and wrapper is not None:
        log.called_by_torch = True
        if is_torchs(code.co_filename):  # a frame that torch puts around a callable
            compiled = inspect.unwrap(wrapper.f_locals["fn"])
            owner = getattr(compiled, "__self__", compiled)
            log.record.name = getattr(owner, "__qualname__", type(owner).__qualname__)
    return log


def _is_lamina_compile(compiler: Any) -> bool:
    """Whether ``compiler`` is behind ``lamina.compile``, not behind ``torch.compile(backend="lamina")``."""
    return any(isinstance(getattr(backend, "log", None), CaptureLog) for backend in _backends(compiler))


def _calling_wrapper() -> FrameType | None:
    """The frame of torch's own wrapper of a compiled function, if it calls the one that Dynamo is asked for."""
    frame: FrameType | None = sys._getframe(3)
    while frame is not None and frame.f_code.co_filename in _CONVERTERS:
        frame = frame.f_back
    return frame if frame is not None and frame.f_code.co_name == "compile_wrapper" else None


_CONVERTERS = (__file__, convert_frame.__file__)


def _hear_of_breaks() -> None:
    translator: Any = symbolic_convert.InstructionTranslatorBase
    log_any = translator.log_graph_break

    @functools.wraps(log_any)
    def log_graph_break(
        self: Any, code_options: Any, reason: Any = "", exc: Any = None, *args: Any, **rest: Any
    ) -> Any:
        with suppress(Exception):  # what is told must not keep a function from being compiled
            if exc is not None and not exc.logged:
                log = _log_of(self.output.compiler_fn, self.output.root_tx.f_code)
                if log is not None:
                    _tell_break(log, self.output.root_tx.f_code, exc)
        return log_any(self, code_options, reason, exc, *args, **rest)

    translator.log_graph_break = log_graph_break


def _tell_break(log: CaptureLog, code: CodeType, error: Any) -> None:
    stack = getattr(error, "real_stack", None) or TracingContext.extract_stack()
    message = str(getattr(error, "msg", "") or error)
    log.broken(log.name_of(_original(code)), getattr(error, "gb_type", "") or "", message, stack)


def _hear_of_failed_guards() -> None:
    for module in (convert_frame, guards):  # one is asked for a recompile, the other where the stance forbids it
        _hear_of_failed_guards_of(module)


def _hear_of_failed_guards_of(asked: Any) -> None:
    find_any = asked.get_and_maybe_log_recompilation_reasons

    @functools.wraps(find_any)
    def find(entries: Any, frame: Any, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        given = (entries, frame) if backend is None else (entries, frame, backend)
        reasons = find_any(*given, *args, **kwargs)
        refused: RecompileRefused | None = None
        with suppress(Exception):
            compiler = getattr(_thread, "compiler", None) if asked is convert_frame else backend
            log = _log_of(compiler, frame.f_code)
            if log is not None:
                own = [text for text in map(str, reasons) if not is_of_another(text)]
                call = _guarded_call(frame, log)
                failed = [failed_guard(text, call) for text in own]
                if asked is convert_frame:
                    log.compiled_again(log.name_of(_original(frame.f_code)), failed)
                elif _is_lamina_compile(backend):
                    _thread.refused = failed[:1]
                elif failed:
                    code = frame.f_code
                    refused = refusal(failed[0], f"{code.co_filename}:{code.co_firstlineno}", code.co_name)
        if refused is not None:
            raise passed_through(refused)
        return reasons

    asked.get_and_maybe_log_recompilation_reasons = find


def _is_bound(code: CodeType, scope: Mapping[str, Any]) -> bool:
    """Whether the first parameter of ``code`` is the object that it is a method of, which no caller gives."""
    first = code.co_varnames[0] if code.co_argcount else ""
    return first in ("self", "cls") or isinstance(scope.get(first), torch.nn.Module)


_PART = re.compile(r"^torch_dynamo_resume_in_.*_at_(\d+)$")


def _guarded_call(frame: Any, log: CaptureLog) -> GuardedCall:
    """The call of ``frame``, which is not run yet."""
    code = frame.f_code
    fixed = frozenset(log.fixed_names)
    part = _PART.match(code.co_name)
    if part is not None:
        return GuardedCall(frame.f_locals, frame.f_globals, after=f"{code.co_filename}:{part.group(1)}", fixed=fixed)
    caller = calling_frame(code)
    if caller is None:
        return GuardedCall(frame.f_locals, frame.f_globals, fixed=fixed)
    return GuardedCall(
        frame.f_locals,
        frame.f_globals,
        f"{caller.f_code.co_filename}:{caller.f_lineno}",
        given_names(caller, code, _is_bound(code, frame.f_locals)),
        inner=caller.f_code in convert_frame.output_codes,
        fixed=fixed,
        outer=frozenset(code.co_freevars),
    )


def _hear_of_frames() -> None:
    compile_any: Any = convert_frame._compile
    names = list(signature(compile_any).parameters)
    place_of_compiler = names.index("compiler_fn")

    @functools.wraps(compile_any)
    def _compile(code: CodeType, *args: Any, **kwargs: Any) -> Any:
        compiler = kwargs["compiler_fn"] if "compiler_fn" in kwargs else args[place_of_compiler - 1]
        log = _log_of(compiler, code)
        if log is None:
            return compile_any(code, *args, **kwargs)
        around = getattr(_thread, "function", None), getattr(_thread, "compiler", None)
        _thread.function, _thread.compiler = code, compiler
        start = log.started = time.perf_counter()
        log.returned = None
        try:
            result = compile_any(code, *args, **kwargs)
        except Exception as error:
            with suppress(Exception):
                _tell_failed(log, code, error)
            raise
        finally:
            _thread.function, _thread.compiler = around
        with suppress(Exception):
            _tell_compiled(log, code, result, start)
        return result

    convert_frame._compile = _compile


def _tell_failed(log: CaptureLog, code: CodeType, error: Exception) -> None:
    """A function that Python runs since what ended its graph leaves none; other errors are their handlers' to tell."""
    kind = getattr(error, "gb_type", None)
    if kind is None:
        return
    if not getattr(error, "logged", False):
        _tell_break(log, code, error)
    log.skipped(log.name_of(_original(code)), break_reason(kind, str(getattr(error, "msg", error))))


def _tell_compiled(log: CaptureLog, code: CodeType, result: Any, start: float) -> None:
    end = time.perf_counter()
    function = log.name_of(_original(code))
    guarded = getattr(result, "guarded_code", None)
    if guarded is None:
        if log.returned is None:
            log.record.add("", "capture", end - start)
            log.without_graph(getattr(result, "skip_reason", None) or "")
        return
    began = start if log.returned is None else log.returned
    log.record.add("", "guards", end - began, Guards(function, guarded.guard_manager))


_REFUSED = "Detected recompile when torch.compile stance"
_FUNCTION = re.compile(r"filename: '(.*)', function name: '(.*)', line number: (\d+)")


def refused_recompile(error: RuntimeError) -> RuntimeError:
    """Torch's error of the stance "fail_on_recompile" in our words; any other ``error`` as it is."""
    text = str(error)
    if not text.startswith(_REFUSED):
        return error
    function = _FUNCTION.search(text)
    file, name, line = ("", "the function", "") if function is None else function.groups()
    failed: list[FailedGuard] = getattr(_thread, "refused", [])
    _thread.refused = []
    return refusal(failed[0] if failed else None, f"{file}:{line}", name)


def note_fixed_sizes(log: CaptureLog) -> None:
    """Note the sizes and numbers of the graph being compiled that were symbols and hold for one value only."""
    context = TracingContext.try_get()
    shapes = getattr(getattr(context, "fake_mode", None), "shape_env", None)
    if shapes is None:
        return
    stacks: dict[Any, Sequence[Any]] = getattr(shapes, "specialization_stacks", {})
    for source, stack in stacks.items():
        name: Any = source.name  # a method in some versions
        text = str(name() if callable(name) else name)
        symbol = getattr(shapes, "source_to_var", {}).get(text)
        value = getattr(shapes, "replacements", {}).get(symbol, "one value")
        log.fixed(text.replace("L['", "").replace("']", "", 1), str(value), stack)
