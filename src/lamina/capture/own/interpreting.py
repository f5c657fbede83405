"""Calls that are interpreted, what they read noted, and their computations compiled."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType, MethodType
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.base.collector import collector_held
from lamina.base.decision import Decision
from lamina.base.torch_names.torch_private import SUBMODULES
from lamina.base.user_warnings import calling_line
from lamina.capture.breaks import own_break_reason
from lamina.capture.dynamo import Captured, compiled_graph
from lamina.capture.frame_reasons import (
    BY_CALLS,
    IN_PARTS,
    INTEGERS_ARE_FIXED,
    INTEGERS_ARE_INPUTS,
    NO_TENSOR_CALLS,
    SHARED_BY_CALLS,
)
from lamina.capture.log import CaptureLog
from lamina.capture.own.capturing import CapturingWorld
from lamina.capture.own.frame import NotBegun, Unhandled
from lamina.capture.own.interrupts import end_if_from_outside
from lamina.capture.own.machine import Machine, goes_on
from lamina.capture.own.module_tensors import held_by_modules
from lamina.capture.own.recorder import Recorder
from lamina.capture.own.regions import FEW, Backend, Regions
from lamina.capture.own.reuse.answers import is_copied
from lamina.capture.own.reuse.driver import Driver, state_of_torch
from lamina.capture.own.reuse.sizes import Sizes
from lamina.capture.own.reuse.trace import Trace, let_go
from lamina.capture.own.reuse.tracing import TracingWorld
from lamina.capture.own.reuse.versions import Versions
from lamina.capture.own.sharing.families import Families
from lamina.capture.own.sharing.sized import form_of
from lamina.capture.own.torch_private import SET_GRAD, recording
from lamina.capture.recompiles.guard_texts import FailedGuard, refusal
from lamina.capture.recompiles.reasons import GUARDS
from lamina.capture.stance.torch_private import forbids_recompiles
from lamina.errors import GraphBroken
from lamina.record import Record

__all__ = ["Interpreting"]

_TORCH = os.path.dirname(torch.__file__) + os.sep


class _Refused(Unhandled):
    """A graph is not compiled, as the stance forbids it."""


class Interpreting:
    """Interprets calls of ``target``, called ``subject``, and adds to its ``versions``.

    ``keeps``: what graphs compute of parameters and buffers alone is kept, so that they are told which inputs these
    are.
    """

    def __init__(
        self,
        target: Any,
        subject: tuple[str, ...],
        backend: Backend,
        record: Record,
        fullgraph: bool,
        dynamic: bool | None,
        versions: Versions,
        other_in_eager: Callable[[Node, bool], bool],
        keeps: bool = False,
    ) -> None:
        self.target, self.subject, self.record, self.fullgraph = target, subject, record, fullgraph
        self.versions, self.keeps = versions, keeps
        self.log = CaptureLog(record)
        self.regions = Regions(
            partial(_noted, backend, self.log),
            other_in_eager,
            families=None if dynamic is False else Families(self._note_inputs, self._note_alone, bool(dynamic)),
            large=_is_large(target),
            told=self._note_by_calls,
            told_parts=self._note_parts,
            told_shared=self._note_shared,
        )
        self.hands_on = False
        """Whether calls that only Dynamo captures are handed on to it."""
        self.noted: set[str] = set()
        self.made: list[Driver] = []
        self.by_calls = False
        """Whether there was a small graph that is not compiled."""
        self.interpreted = False
        """Whether there was a call that is interpreted anew each time."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call gives; a driver that comes of it is added to those that are ``made``.

        Raises ``RecompileRefused`` where it would compile a graph and the stance of torch's compiler forbids that.
        """
        grad = torch.is_grad_enabled()
        try:
            return self._call(args, kwargs)
        except NotBegun:
            SET_GRAD(grad)
            raise
        except _Refused:
            SET_GRAD(grad)
            place = calling_line()
            failed = self.versions.missed
            if failed is None and self.log.graphs:
                failed = FailedGuard("", GUARDS["graphs"]())
            raise refusal(failed, place, self.subject[0]) from None

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        graphs = self.log.graphs
        recorder = Recorder(
            self.regions, lambda: _user_line(machine), lambda: machine.watch(), lambda: goes_on(machine), self.fullgraph
        )
        recorder.hands_on = self.hands_on
        varying = self.versions.varying
        trace = Trace(lambda: self._line_of(machine), state_of_torch(), varying) if self.versions.traced else None
        recorder.trace = trace
        if trace is not None and self.regions.families is not None:
            trace.sizes = Sizes(trace, self.versions.sizes, [*map(form_of, self.versions.graphs)])
        if self.keeps:
            recorder.held = held_by_modules(self.target, _nowhere if trace is None else trace.place_of)
        capturing = CapturingWorld(recorder)
        machine = Machine(capturing if trace is None else TracingWorld(capturing, trace))
        if paths := _paths(self.target):
            recorder.modules = partial(_modules, machine, paths)
        recorder.told = lambda what, cause: self._note_break(what, cause, machine)
        capturing.module = lambda: _module(machine)
        capturing.interpret = lambda function, *given, **named: machine.run(function, given, named)
        if trace is not None:
            machine.copies = partial(is_copied, trace)
            machine.caught = partial(end_if_from_outside, trace)
            args, kwargs = trace.begin(self.target, args, kwargs)
        raised: BaseException | None = None
        with recording(recorder):
            try:
                try:
                    result = machine.run(self.target, args, kwargs)
                except BaseException as error:
                    result, raised = None, error
                recorder.flush(last=True)  # what this raises eager raises before
            except BaseException:
                recorder.flush()  # the one before has not begun, if there is something left
                raise
        try:
            self._refuse(recorder)
            if raised is not None:
                raise raised
        finally:
            del raised  # whose traceback leads to this frame
            _let_go(machine)
        self._tell(result)
        compiled = self.log.graphs > graphs
        if trace is not None:
            with self.record.harmless("capture"), collector_held(lasting=compiled):  # nothing of the user's runs here
                self.made += self.versions.add(trace, result, compiled)
                if not machine.generators:
                    let_go(trace)
        if compiled and self.interpreted and (trace is None or trace.ended is not None):
            self._note_compiled_again()
        self.interpreted = self.interpreted or trace is None or trace.ended is not None
        return result

    def _note_compiled_again(self) -> None:
        """Note a call that nothing is kept of, as those before it, and that had to have more graphs."""
        with self.record.harmless("capture"):
            at = ("called at", calling_line())
            self.record.note("", "capture", Decision("recompile", self.subject, True, GUARDS["graphs"](), (at,)))

    def _refuse(self, recorder: Recorder) -> None:
        """Raise what the stance, or ``fullgraph``, asks for, if something has ended the graph."""
        if recorder.unhandled is not None:
            raise recorder.unhandled
        if recorder.broken:
            what, recorder.broken = recorder.broken, ""
            if self.hands_on and recorder.unbegun:
                raise NotBegun
            raise GraphBroken(
                f"fullgraph asks for one graph, which {what} ends in {self.subject[0]}",
                remedy="move it out of the compiled function, or compile without fullgraph",
            )

    def _note_break(self, what: str, cause: str, machine: Machine) -> None:
        """Note, once for each line, what ends a graph there."""
        with self.record.harmless("capture"):
            place = _place(machine)
            reason = own_break_reason(what, cause)
            if (key := f"{reason} {place}") not in self.noted:
                subject = (place or self.subject[0],)
                facts = (("function", self.subject[0]), *(() if place else self.log.called_at()))
                self.log.missed.append(reason)
                self.noted.add(key)
                self.record.note("", "break", Decision("break", subject, False, reason, facts))

    def _line_of(self, machine: Machine) -> str:
        """``_place`` of ``machine``; "" if it cannot be told."""
        found: list[str] = []
        with self.record.harmless("capture"):
            found.append(_place(machine))
        return "".join(found)

    def _note_inputs(self, count: int, numbers: str) -> None:
        """Note which integers are inputs of a graph."""
        with self.record.harmless("capture"):
            if (key := f"inputs {numbers}") not in self.noted:
                self.noted.add(key)
                told = INTEGERS_ARE_INPUTS(count=count, numbers=numbers)
                self.record.note("", "capture", Decision("capture", self.subject, True, told))

    def _note_by_calls(self, calls: int) -> None:
        """Note that a small graph is not compiled."""
        self.by_calls = True
        with self.record.harmless("capture"):
            if (key := f"by calls {calls}") not in self.noted:
                self.noted.add(key)
                self.record.note("", "capture", Decision("capture", self.subject, False, BY_CALLS(count=calls)))

    def _note_shared(self) -> None:
        """Note that a graph's calls are made one by one, for the inputs of a call."""
        with self.record.harmless("capture"):
            if "shared" not in self.noted:
                self.noted.add("shared")
                self.record.note("", "capture", Decision("capture", self.subject, False, SHARED_BY_CALLS()))

    def _note_parts(self, blocks: int, calls: int) -> None:
        """Note that a graph of equal blocks is cut."""
        with self.record.harmless("capture"):
            if (key := f"parts {blocks} {calls}") not in self.noted:
                self.noted.add(key)
                told = IN_PARTS(blocks=blocks, count=calls)
                self.record.note("", "capture", Decision("capture", self.subject, True, told))

    def _note_alone(self, why: str) -> None:
        """Note why a graph that differs from an earlier one in integers only is compiled by itself."""
        with self.record.harmless("capture"):
            if (key := f"alone {why}") not in self.noted:
                self.noted.add(key)
                self.record.note("", "capture", Decision("capture", self.subject, False, INTEGERS_ARE_FIXED(why=why)))

    def _tell(self, result: Any) -> None:
        """Warn, once, where a call that has ended was compiled in no part."""
        with self.record.harmless("capture"):
            if isinstance(result, GeneratorType | CoroutineType | AsyncGeneratorType):
                self.log.runs_later(self.subject[0], isinstance(result, CoroutineType))
            self.log.empty = self.log.empty or NO_TENSOR_CALLS()
            if not self.by_calls:
                self.log.tell_nothing_compiled()


def _noted(backend: Backend, log: CaptureLog, gm: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """What ``backend`` makes of a graph that ``log`` is told of; interpreting takes the seconds of no stage."""
    if forbids_recompiles():
        raise _Refused
    with log.record.harmless("capture"):
        log.record.keep("", "capture", Captured(gm, 0))
    return compiled_graph(backend, gm, examples, log)


def _nowhere(value: Any) -> None:
    """No place: nothing is noted of the call."""


def _let_go(machine: Machine) -> None:
    """Have the machine leave the world of a call, whose parts lead to each other; generators it made need it still."""
    if not machine.generators:
        vars(machine.world).clear()
        del machine.world


def _is_large(target: Any) -> bool:
    """Whether a callable is a model of many modules, or a method of one."""
    waiting = [target.__self__ if type(target) is MethodType else target]
    seen: dict[int, Any] = {}
    while waiting and len(seen) < FEW:  # without any function of the modules', which may compare and count otherwise
        module = waiting.pop()
        if issubclass(type(module), torch.nn.Module) and id(module) not in seen:
            seen[id(module)] = module
            held = object.__getattribute__(module, "__dict__").get(SUBMODULES)
            waiting.extend(dict.values(held) if issubclass(type(held), dict) else ())
    return len(seen) == FEW


def _place(machine: Machine) -> str:
    """The innermost line in progress that is not torch's, in short."""
    for frame in reversed(machine.frames):
        if not frame.code.co_filename.startswith(_TORCH):
            return f"{frame.code.co_filename}:{frame.line}"
    return ""


def _module(machine: Machine) -> str:
    """The name of the module of the function in progress."""
    return str(machine.frames[-1].function.__globals__.get("__name__", "")) if machine.frames else ""


def _paths(target: Any) -> dict[int, str]:
    """The paths of all modules of a model, or of one that ``target`` is a method of."""
    owner = target.__self__ if type(target) is MethodType else target
    if not issubclass(type(owner), torch.nn.Module):
        return {}
    found, waiting = {id(owner): ""}, [(owner, "")]
    for module, path in waiting:
        held = object.__getattribute__(module, "__dict__").get(SUBMODULES)
        for name, inner in dict.items(held) if issubclass(type(held), dict) else ():
            if issubclass(type(inner), torch.nn.Module) and id(inner) not in found:
                found[id(inner)] = f"{path}.{name}".strip(".")
                waiting.append((inner, found[id(inner)]))
    return found


def _modules(machine: Machine, paths: dict[int, str]) -> dict[str, Any]:
    """The modules whose ``forward`` is in progress, from the outermost one on."""
    found: dict[str, Any] = {}
    for frame in machine.frames:
        module = frame.variables[0] if frame.code.co_name == "forward" and frame.variables else None
        if id(module) in paths:
            found[str(id(module))] = paths[id(module)], type(module)
    return found


def _user_line(machine: Machine) -> str:
    """The innermost line in progress that is not torch's, as tracebacks write it."""
    for frame in reversed(machine.frames):
        file = frame.code.co_filename
        if not file.startswith(_TORCH):
            return f'  File "{file}", line {frame.line}, in {frame.code.co_name}\n'
    return ""
