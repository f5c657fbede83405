"""Updates of an input are made in the input's own memory.

A functional graph says "the new cache is the old one with a slice replaced" and, last, "copy that into the cache": two
passes over all of it, for a slice. Where nothing reads the old value after the slice is replaced, the slice is
written where it belongs and both passes go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.ir.access import reads, views, writes
from lamina.ir.loops import Buffer, BufferView, LibraryCall, Load, LoopProgram, Nest, Reduce, Scan, Step, Store
from lamina.schedule import reasons
from lamina.schedule.restrict import restricted, whole

__all__ = ["renamed", "update_in_place"]


@dataclass(frozen=True, slots=True)
class _Update:
    """How ``new`` is made of ``old``: the step that copies (or None), the first that writes what differs, and, where
    one step does both, what it becomes when only that is written.
    """

    old: str
    copy: int | None
    first: int
    nest: Nest | None


class _Refused(Exception):
    """Why an input's update stays a copy."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class _Steps:
    """A program's steps at lasting positions (None: gone), its buffers, and which positions read and write each.

    A model has an update for each of its normalisation layers, so one that looked at every step would take a time
    that grows with the square of the model.
    """

    def __init__(self, program: LoopProgram) -> None:
        self.steps: list[Step | None] = [None] * len(program.steps)
        self.buffers = program.buffer_map()
        self.returned = {o.buffer for o in program.outputs if isinstance(o, BufferView)}
        self.readers: dict[str, set[int]] = {}
        self.writers: dict[str, set[int]] = {}
        for position, step in enumerate(program.steps):
            self.put(position, step)

    def put(self, position: int, step: Step | None) -> None:
        """Have ``step``, or none, at a position."""
        for held, now, names in ((self.readers, step, reads), (self.writers, step, writes)):
            before = self.steps[position]
            for name in names(before) if before is not None else ():
                held[name].discard(position)
            for name in names(now) if now is not None else ():
                held.setdefault(name, set()).add(position)
        self.steps[position] = step

    def reading(self, name: str) -> list[int]:
        """Positions of the steps that read a buffer, in order."""
        return sorted(self.readers.get(name, ()))

    def writing(self, name: str) -> list[int]:
        """Positions of the steps that write a buffer, in order."""
        return sorted(self.writers.get(name, ()))

    def program(self, program: LoopProgram) -> LoopProgram:
        """``program`` with these steps and buffers; itself where nothing changed."""
        steps = tuple(step for step in self.steps if step is not None)
        if steps == program.steps:
            return program
        return replace(program, steps=steps, buffers=tuple(b for b in program.buffers if b.name in self.buffers))


def update_in_place(program: LoopProgram, numerics: str) -> tuple[LoopProgram, tuple[Decision, ...]]:
    """``program`` with updates of inputs in place where that is sound, and what was decided about each."""
    decisions: list[Decision] = []
    steps = _Steps(program)
    for position in range(len(program.steps)):
        step = steps.steps[position]
        moved = _whole_copy(step, steps.buffers) if step is not None else None
        if moved is None or steps.buffers[moved[1]].kind != "input":
            continue
        source, target = moved
        try:
            _Rewrite(steps, numerics, position, source, target).run()
        except _Refused as refused:
            decisions.append(Decision("in place", (source, target), False, refused.reason))
        else:
            decisions.append(Decision("in place", (source, target), True, reasons.UPDATED_IN_PLACE()))
    return steps.program(program), tuple(decisions)


def _whole_copy(step: Step, buffers: dict[str, Buffer]) -> tuple[str, str] | None:
    """(source, target) of a nest that copies all of a buffer into one of its size and type and does nothing else."""
    if not isinstance(step, Nest) or len(step.body) != 2:
        return None
    load, store = step.body
    if not isinstance(load, Load) or not isinstance(store, Store) or store.value != load.out or load.mask is not None:
        return None
    source, target = buffers[load.buffer], buffers[store.buffer]
    if source.shape != target.shape or source.dtype != target.dtype or load.index != store.index:
        return None
    if store.mode != "set" or store.mask is not None or not whole(step, store, target):
        return None
    return source.name, target.name


class _Rewrite:
    """One input's update; the step at ``last`` copies ``source`` into the input ``target``."""

    def __init__(self, steps: _Steps, numerics: str, last: int, source: str, target: str) -> None:
        self.steps, self.numerics, self.last = steps, numerics, last
        self.source, self.target = source, target

    def run(self) -> None:
        """Take the copy out of the steps. Raises ``_Refused``, and then has changed nothing."""
        if self.steps.writing(self.target) != [self.last]:
            raise _Refused(reasons.WRITTEN_TWICE())
        updates: dict[str, _Update] = {}
        name = self.source
        while name != self.target:
            self._require_plain(name)
            updates[name] = self._update(name)
            name = updates[name].old
        gone = {self.last} | {u.copy for u in updates.values() if u.copy is not None}
        for new, update in updates.items():
            self._require_unread(update, new, gone)
        for position in gone:
            self.steps.put(position, None)
        for update in updates.values():
            if update.nest is not None and update.first not in gone:
                self.steps.put(update.first, update.nest)
        for position in {k for new in updates for k in (*self.steps.reading(new), *self.steps.writing(new))}:
            self.steps.put(position, renamed(self._step(position), updates.keys(), self.target))
        for new in updates:
            del self.steps.buffers[new]

    def _step(self, position: int) -> Step:
        step = self.steps.steps[position]
        assert step is not None, "a step that is gone reads and writes nothing"
        return step

    def _require_plain(self, name: str) -> None:
        """``name`` may live in the input's memory."""
        buffer, target = self.steps.buffers[name], self.steps.buffers[self.target]
        if buffer.kind != "temp" or name in self.steps.returned:
            raise _Refused(reasons.NEW_VALUE_RETURNED())
        if buffer.shape != target.shape or buffer.dtype != target.dtype:
            raise _Refused(reasons.OTHER_FORM())
        if any(isinstance(self._step(k), LibraryCall) for k in self.steps.writing(name)):
            raise _Refused(reasons.CALL_MAKES_VALUE())
        read = any(isinstance(self._step(k), LibraryCall) for k in self.steps.reading(name))
        if read and buffer.strides != target.strides:
            raise _Refused(reasons.CALL_READS_VALUE())

    def _update(self, name: str) -> _Update:
        writers = self.steps.writing(name)
        first = self._step(writers[0])
        copied = _whole_copy(first, self.steps.buffers)
        if copied is not None and len(writers) > 1:
            if any(copied[0] in reads(self._step(k)) for k in writers[1:]):
                raise _Refused(reasons.DEPENDS_BESIDE())
            return _Update(copied[0], writers[0], writers[1], None)
        if len(writers) > 1 or not isinstance(first, Nest):
            raise _Refused(reasons.NOT_A_PART())
        if any(isinstance(e, Reduce | Scan) for e in first.body):
            raise _Refused(reasons.FROM_REDUCTION())
        found = restricted(first, name, self.steps.buffers[name], self.numerics)
        if found is None:
            raise _Refused(reasons.NOT_A_PART())
        old, nest = found
        stored = {e.index for e in nest.body if isinstance(e, Store) and e.buffer == name}
        if any(isinstance(e, Load) and e.buffer == old and {e.index} != stored for e in nest.body):
            raise _Refused(reasons.DEPENDS_BESIDE())
        return _Update(old, None, writers[0], nest)

    def _require_unread(self, update: _Update, new: str, gone: set[int]) -> None:
        """Nothing reads the old value once the new one begins to be written."""
        if any(k > update.first and k not in gone for k in self.steps.reading(update.old)):
            raise _Refused(reasons.OLD_READ_LATER())
        old = self.steps.writing(update.old) if update.old != self.target else []
        if any(k > update.first and k not in gone for k in old):
            raise _Refused(reasons.OLD_WRITTEN_LATER())
        if any(k < update.first and k != update.copy for k in self.steps.reading(new)):
            raise _Refused(reasons.NEW_READ_EARLY())


def renamed(step: Step, old: Iterable[str], new: str) -> Step:
    """``step`` with the buffers ``old`` called ``new``."""
    names = set(old)
    if isinstance(step, Nest):
        if not names & (reads(step) | writes(step)):
            return step
        body = [replace(e, buffer=new) if isinstance(e, Load | Store) and e.buffer in names else e for e in step.body]
        return Nest(step.name, step.axes, tuple(body))
    if not any(view.buffer in names for view in views(step)):
        return step
    args = tuple(_viewed(a, names, new) for a in step.args)
    return replace(step, args=args, kwargs=tuple((k, _viewed(v, names, new)) for k, v in step.kwargs))


def _viewed(value: Any, names: set[str], new: str) -> Any:
    if isinstance(value, BufferView):
        return replace(value, buffer=new) if value.buffer in names else value
    if isinstance(value, Sequence) and not isinstance(value, str):
        return type(value)([_viewed(v, names, new) for v in value])  # type: ignore[call-arg]
    return value
