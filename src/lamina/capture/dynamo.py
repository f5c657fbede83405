"""Capture through torch.compile's public backend contract."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import CodeType, MappingProxyType
from typing import Any

import torch

from lamina.base.files import graph_text, text_of
from lamina.base.recovery import recover
from lamina.base.source import name_users_lines
from lamina.base.symbolic.environment.torch_private import questions_unlimited
from lamina.capture.compiled_before.torch_private import uncompiled
from lamina.capture.entry.torch_private import improve_entry
from lamina.capture.events.torch_private import note_fixed_sizes, watch_frames
from lamina.capture.external_state.torch_private import guard_unguarded, is_guarded
from lamina.capture.graph_errors.torch_private import keep_changes, rerun_frames
from lamina.capture.log import CaptureLog
from lamina.capture.modes.torch_private import refused_trace, traced_function
from lamina.capture.module import is_transparent, original_of, transparent
from lamina.capture.printed_name import name_compiled
from lamina.capture.torch_private import (
    guard_empty_hooks,
    leave_to_python,
    passed_through,
    seconds_since_compile_started,
    serve_any_hooks,
    watch_compile_start,
)
from lamina.capture.trace_corrections.torch_private import guard_without_graph
from lamina.capture.trace_notes.torch_private import unseen
from lamina.capture.wrong_traces.torch_private import refused, unseen_end
from lamina.errors import BadArgument, LaminaError
from lamina.record import Record

__all__ = ["Backend", "Captured", "compile_callable", "compiled_graph", "guarded", "note_behind_torch", "note_capture"]

Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Captured:
    """One region of the user's program as Dynamo saw it.

    ``gm`` is an FX graph of torch calls, ``hook_guards`` the number of module hook dictionaries whose emptiness the
    region depends on. What the region was first called with is not kept: it would stay alive.
    """

    gm: torch.fx.GraphModule
    hook_guards: int

    def __str__(self) -> str:
        return text_of(self)

    def files(self) -> dict[str, str]:
        """The graph as Python."""
        return {".py": graph_text(self.gm)}


def note_capture(gm: torch.fx.GraphModule, record: Record | None) -> Captured:
    """Describe the region a backend was just handed, make its guards fit and put it in ``record``.

    Call it first thing in a backend, while Dynamo's trace is still open.
    """
    name_users_lines(gm.graph)
    captured = Captured(gm, guard_empty_hooks())
    guard_unguarded(gm)
    serve_any_hooks()
    if record is not None:
        with record.harmless("capture"):
            record.add("", "capture", seconds_since_compile_started(), captured)
    return captured


def note_behind_torch(gm: torch.fx.GraphModule, log: CaptureLog) -> None:
    """Note a graph that torch.compile gave to its backend, and guard what Dynamo does not."""
    name_users_lines(gm.graph)
    guard_unguarded(gm)
    log.record.add("", "capture", time.perf_counter() - log.started if log.started else 0.0, Captured(gm, 0))


def guarded(
    gm: torch.fx.GraphModule,
    guard: Callable[[], object],
    refused_in_eager: Callable[[torch.fx.Node], bool],
    strict: bool,
    record: Record | None = None,
) -> None:
    """Guard what Dynamo does not by ``guard``; let Python run the function if its graph is known not to compute it.

    ``refused_in_eager`` tells of calls that only tracing takes: the program may handle what they raise.
    Python runs it as well where that cannot be found out, since nobody knows then when the graph may be used again.
    Call it while Dynamo's trace is open.
    """
    try:
        why = refused_trace(gm, refused_in_eager)
        if not why:
            guard()
            why = refused(gm)
    except Exception as error:
        recover(
            error,
            doing="making the guards of a graph fit",
            region="a function",
            instead="Python runs it",
            strict=strict,
            note=lambda decision: None if record is None else record.note("", "capture", decision),
        )
        raise leave_to_python("its guards could not be made to fit") from error
    if why:
        CaptureLog(Record() if record is None else record).run_by_python(traced_function(), why, True)
        raise leave_to_python(why)


def _guard_empty() -> None:
    """Guard a part of a function in which nothing is computed, or let Python run the function."""
    empty = torch.fx.GraphModule(torch.nn.Module(), torch.fx.Graph())
    try:
        guard_unguarded(empty)
    except Exception as error:
        doing, told = "making the guards of a part without a graph fit", lambda decision: None
        recover(error, doing=doing, region="a function", instead="Python runs it", strict=False, note=told)
        raise leave_to_python("its guards could not be made to fit") from error
    if why := unseen_end():
        CaptureLog(Record()).run_by_python(traced_function(), why, True)
        raise leave_to_python(why)


guard_without_graph(_guard_empty, is_guarded)
watch_frames()
rerun_frames()


class _Backend:
    """What torch.compile sees: notes the capture, then calls the compiler.

    Equal when the compilers behind them and Dynamo's settings are equal, so that instances of one module class,
    compiled alike, share their graphs instead of compiling each of them again.
    """

    def __init__(
        self,
        compiler: Backend,
        settings: tuple[object, ...],
        record: Record | None,
        refused_in_eager: Callable[[torch.fx.Node], bool],
        strict: bool = False,
    ) -> None:
        self.compiler, self.settings, self.record, self.strict = compiler, settings, record, strict
        self.refused_in_eager = refused_in_eager
        self.log = CaptureLog(Record() if record is None else record)

    def log_of(self, function: CodeType) -> CaptureLog:
        """Where capture is to note what it does with ``function``."""
        return self.log

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        try:
            noting = functools.partial(note_capture, gm, self.record)
            guarded(gm, noting, self.refused_in_eager, self.strict, self.record)
            return compiled_graph(self.compiler, gm, example_inputs, self.log, self.strict)
        except LaminaError as error:
            raise passed_through(error) from error.__cause__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Backend):
            return NotImplemented
        return self.compiler == other.compiler and self.settings == other.settings

    def __hash__(self) -> int:
        return hash((self.compiler, self.settings))


def _unlimited() -> AbstractContextManager[object]:
    """``questions_unlimited``; with the limit where that fails, which leaves more sizes fixed."""
    try:
        return questions_unlimited()
    except Exception:
        return nullcontext()


def _captured_at(gm: torch.fx.GraphModule, record: Record) -> float:
    """When the capture of ``gm`` ended, by the record's last stage; now, if that is not it.

    What is logged of the capture takes time, too.
    """
    ended = record.ended(lambda value: isinstance(value, Captured) and value.gm is gm)
    return time.perf_counter() if ended is None else ended


def compiled_graph(
    compiler: Backend, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], log: CaptureLog, strict: bool = False
) -> Callable[..., Any]:
    """What ``compiler`` makes of a captured graph, with what capture fixed, and the seconds of no stage, in ``log``.

    With ``strict`` an error of the graph is raised that eager does not have.
    """
    log.graphs += 1
    before = log.record.booked()
    start = _captured_at(gm, log.record)
    try:
        with _unlimited():  # the limit is for capture
            return keep_changes(unseen(compiler(gm, example_inputs)), gm, log, strict)
    finally:
        log.returned = time.perf_counter()
        with log.record.harmless("other"):
            log.record.add("", "other", max(0.0, log.returned - start - (log.record.booked() - before)))
            note_fixed_sizes(log)


def compile_callable(
    target: Any,
    *,
    backend_callable: Backend,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    record: Record | None = None,
    refused_in_eager: Callable[[torch.fx.Node], bool] = lambda node: False,
    strict: bool = False,
    entry: str = "lamina",
    attributes: Mapping[str, object] = MappingProxyType({}),
) -> Any:
    """``target`` with its tensor regions compiled by ``backend_callable``.

    A module gives a transparent module (see ``transparent``); a function, method or module class gives what
    torch.compile gives, a function with a name that says that it is compiled. Each captured region is noted in
    ``record``. A function that cannot be captured for an internal error is run by Python, with a warning and a decision
    in the record; with ``strict`` the error is raised. ``refused_in_eager`` is that of ``guarded``. ``entry`` "torch"
    leaves the way from Python into compiled code to torch's wrapper. What comes back has the ``attributes``.
    """
    watch_compile_start()
    backend = _Backend(backend_callable, (fullgraph, dynamic), record, refused_in_eager, strict)

    def compiled(function: Any) -> Any:
        called = uncompiled(function.__call__) if isinstance(function, torch.nn.Module) else None
        if called is not None and called != function.__call__:
            function = called  # of a module whose class was compiled
        behind = torch.compile(function, backend=backend, fullgraph=fullgraph, dynamic=dynamic)
        return improve_entry(behind, backend.log, strict, entry == "torch")

    if isinstance(target, torch.nn.Module):
        module = original_of(target) if is_transparent(target) else target
        if isinstance(module, torch.jit.ScriptModule):
            return _with(_of_torchscript(compiled, module), attributes)
        return transparent(module, compiled, attributes)
    return _with(name_compiled(compiled(target), target), attributes)


def _of_torchscript(compiled: Callable[[Any], Any], module: torch.jit.ScriptModule) -> Any:
    """A TorchScript module as torch makes it compiled, which refuses some kinds of them."""
    try:
        return compiled(module)
    except RuntimeError as error:
        raise BadArgument(
            f"{type(module).__name__}: a module of torch.jit.script has no Python that could be captured",
            remedy="pass the module that it was made of",
        ) from error


def _with(compiled: Any, attributes: Mapping[str, object]) -> Any:
    for name, value in attributes.items():
        setattr(compiled, name, value)
    return compiled
