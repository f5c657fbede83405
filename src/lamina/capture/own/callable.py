"""A callable whose calls are interpreted once for all those that read the same, its computations in compiled graphs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType, MappingProxyType
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.base.decision import Decision
from lamina.capture.breaks import own_break_reason
from lamina.capture.dynamo import Captured, compiled_graph
from lamina.capture.log import CaptureLog
from lamina.capture.module import is_transparent, original_of, transparent
from lamina.capture.own.capturing import CapturingWorld
from lamina.capture.own.frame import MISSING
from lamina.capture.own.guards.library import Library
from lamina.capture.own.machine import Machine
from lamina.capture.own.recorder import Backend, Recorder, Regions
from lamina.capture.own.reuse.driver import state_of_torch
from lamina.capture.own.reuse.trace import Trace
from lamina.capture.own.reuse.tracing import TracingWorld
from lamina.capture.own.reuse.versions import Versions
from lamina.capture.own.sharing.families import Families
from lamina.capture.own.torch_private import in_ordinary_state, recording, seen_by_dynamo
from lamina.capture.reasons import BY_DYNAMO, INTEGERS_ARE_INPUTS, NO_TENSOR_CALLS, OTHER_STATE
from lamina.errors import GraphBroken
from lamina.record import Record

__all__ = ["interpreted_callable", "interprets"]

_TORCH = os.path.dirname(torch.__file__) + os.sep


def _no_machine() -> None:
    """No guard machine: facts are asked in Python."""


def interpreted_callable(
    target: Any,
    *,
    backend_callable: Backend,
    record: Record,
    fullgraph: bool = False,
    machine: Callable[[], Library | None] = _no_machine,
    attributes: Mapping[str, object] = MappingProxyType({}),
    sizes_fixed: bool = False,
) -> Any:
    """``target``, a function, method or module, with the graphs of its torch calls compiled by ``backend_callable``.

    A call is interpreted, and what it reads is noted; a later one for which all of that is the same runs the same
    graphs and writes. What comes back has the ``attributes``. With ``fullgraph`` a call raises ``GraphBroken`` where it
    would end its graph before it returns; what it has done to the program's objects until then stays done. ``machine``
    gives the guard machine that asks facts, if there is one. With ``sizes_fixed`` each graph is compiled for its own
    integers.
    """
    entry_of = partial(
        _Entry,
        backend=backend_callable,
        record=record,
        fullgraph=fullgraph,
        machine=machine,
        sizes_fixed=sizes_fixed,
    )
    if isinstance(target, torch.nn.Module):
        module = original_of(target) if is_transparent(target) else target
        return transparent(module, lambda original: _call_of(entry_of(original)), attributes)
    compiled = _call_of(entry_of(target))
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        if hasattr(target, name):
            setattr(compiled, name, getattr(target, name))
    compiled.__dict__.update(attributes, __wrapped__=target)
    return compiled


def interprets(target: Any, dynamic: bool | None, record: Record) -> bool:
    """Whether this front end does what is asked for; why not is noted in ``record``."""
    if isinstance(target, type):
        why = "a class is compiled"
    elif isinstance(target, torch.jit.ScriptModule):
        why = "it is a TorchScript module"
    elif dynamic:
        why = "dynamic asks for graphs of all sizes"
    else:
        return True
    name = str(getattr(target, "__name__", type(target).__name__))
    record.note("", "capture", Decision("capture", (name,), False, BY_DYNAMO(why=why)))
    return False


def _call_of(entry: _Entry) -> Any:
    """A function that makes the calls of ``entry``: what it does costs each of them."""
    versions, called = entry.versions, entry.called

    def compiled(*args: Any, **kwargs: Any) -> Any:
        found = versions.first(args, kwargs)
        return called(args, kwargs) if found is MISSING else found

    return seen_by_dynamo(compiled, entry.target)


class _Entry:
    """Calls of one target."""

    def __init__(
        self,
        target: Any,
        backend: Backend,
        record: Record,
        fullgraph: bool,
        machine: Callable[[], Library | None],
        sizes_fixed: bool,
    ) -> None:
        self.target, self.record, self.fullgraph = target, record, fullgraph
        self.log = CaptureLog(record)
        self.regions = Regions(
            partial(_noted, backend, self.log), families=None if sizes_fixed else Families(self._note_inputs)
        )
        self.noted: set[str] = set()
        name = getattr(target, "__name__", type(target).__name__)
        self.subject = (str(name),)
        self.versions = Versions(self.subject, record, machine)

    def called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call gives for which the first driver is not, as far as the guard machine can tell."""
        found = self.versions.quick(args, kwargs)
        if found is not MISSING:
            return found
        if not in_ordinary_state():
            self._note("state", Decision("capture", self.subject, False, OTHER_STATE()))
            return self.target(*args, **kwargs)
        found = self.versions.run(args, kwargs)
        return self._interpreted(args, kwargs) if found is MISSING else found

    def _interpreted(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        graphs = self.log.graphs
        recorder = Recorder(self.regions, lambda: _user_line(machine), lambda: machine.watch(), self.fullgraph)
        varying = self.versions.varying
        trace = Trace(lambda: _place(machine), state_of_torch(), varying) if self.versions.wanted else None
        recorder.trace = trace
        capturing = CapturingWorld(recorder)
        machine = Machine(capturing if trace is None else TracingWorld(capturing, trace))
        recorder.told = lambda what, cause: self._note_break(what, cause, _place(machine))
        capturing.interpret = lambda function, *given, **named: machine.run(function, given, named)
        if trace is not None:
            args, kwargs = trace.begin(self.target, args, kwargs)
        raised: BaseException | None = None
        with recording(recorder):
            try:
                result = machine.run(self.target, args, kwargs)
            except BaseException as error:
                result, raised = None, error
            recorder.flush()  # what this raises eager raises before
        try:
            self._refuse(recorder)
            if raised is not None:
                raise raised
        finally:
            del raised  # whose traceback leads to this frame
            _let_go(machine)
        self._tell(result)
        if trace is not None:
            with self.record.harmless("capture"):
                self.versions.add(trace, result, self.log.graphs > graphs)
        return result

    def _refuse(self, recorder: Recorder) -> None:
        """Raise what ``fullgraph`` asks for, if something has ended the graph."""
        if recorder.broken:
            what, recorder.broken = recorder.broken, ""
            raise GraphBroken(
                f"fullgraph asks for one graph, which {what} ends in {self.subject[0]}",
                remedy="move it out of the compiled function, or compile without fullgraph",
            )

    def _note_break(self, what: str, cause: str, place: str) -> None:
        """Note, once for each line, what ends a graph there."""
        with self.record.harmless("capture"):
            if (key := f"{what} {place}") not in self.noted:
                subject = (place or self.subject[0],)
                facts = (("function", self.subject[0]), *(() if place else self.log.called_at()))
                reason = own_break_reason(what, cause)
                self.log.missed.append(reason)
                self._note(key, Decision("break", subject, False, reason, facts))

    def _tell(self, result: Any) -> None:
        """Warn, once, where a call that has ended was compiled in no part; what runs later may be yet."""
        if not isinstance(result, GeneratorType | CoroutineType | AsyncGeneratorType):
            with self.record.harmless("capture"):
                self.log.empty = self.log.empty or NO_TENSOR_CALLS()
                self.log.tell_nothing_compiled()

    def _note_inputs(self, count: int, numbers: str) -> None:
        """Note which integers are inputs of a graph."""
        with self.record.harmless("capture"):
            told = INTEGERS_ARE_INPUTS(count=count, numbers=numbers)
            self._note(f"inputs {numbers}", Decision("capture", self.subject, True, told))

    def _note(self, name: str, decision: Decision) -> None:
        if name not in self.noted:
            self.noted.add(name)
            self.record.note("", decision.kind, decision)


def _noted(backend: Backend, log: CaptureLog, gm: GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """What ``backend`` makes of a graph that ``log`` is told of; interpreting takes the seconds of no stage."""
    with log.record.harmless("capture"):
        log.record.keep("", "capture", Captured(gm, 0))
    return compiled_graph(backend, gm, examples, log)


def _let_go(machine: Machine) -> None:
    """Have the machine leave the world of a call, whose parts lead to each other; generators it made need it still."""
    if not machine.generators:
        vars(machine.world).clear()
        del machine.world


def _place(machine: Machine) -> str:
    """The innermost line in progress that is not torch's, in short."""
    for frame in reversed(machine.frames):
        if not frame.code.co_filename.startswith(_TORCH):
            return f"{frame.code.co_filename}:{frame.line}"
    return ""


def _user_line(machine: Machine) -> str:
    """The innermost line in progress that is not torch's, as tracebacks write it."""
    for frame in reversed(machine.frames):
        file = frame.code.co_filename
        if not file.startswith(_TORCH):
            return f'  File "{file}", line {frame.line}, in {frame.code.co_name}\n'
    return ""
