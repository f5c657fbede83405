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
from lamina.ir.access import reads, views, writes
from lamina.ir.loops import Buffer, BufferView, LibraryCall, Load, LoopProgram, Nest, Reduce, Scan, Step, Store
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


def update_in_place(program: LoopProgram, numerics: str) -> tuple[LoopProgram, tuple[Decision, ...]]:
    """``program`` with updates of inputs in place where that is sound, and what was decided about each."""
    decisions: list[Decision] = []
    for step in program.steps:
        moved = _whole_copy(step, program.buffer_map())
        if moved is None or program.buffer_map()[moved[1]].kind != "input":
            continue
        source, target = moved
        try:
            program = _Rewrite(program, numerics, step, source, target).run()
        except _Refused as why:
            decisions.append(Decision("in place", (source, target), False, str(why)))
        else:
            decisions.append(Decision("in place", (source, target), True, "nothing reads the old value afterwards"))
    return program, tuple(decisions)


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
    """One input's update; ``last`` is the step that copies ``source`` into the input ``target``."""

    def __init__(self, program: LoopProgram, numerics: str, last: Step, source: str, target: str) -> None:
        self.program, self.numerics, self.last = program, numerics, last
        self.source, self.target = source, target
        self.steps = list(program.steps)
        self.buffers = program.buffer_map()

    def run(self) -> LoopProgram:
        """The program without the copy. Raises ``_Refused``."""
        if [s for s in self.steps if self.target in writes(s)] != [self.last]:
            raise _Refused("the input is written more than once")
        updates: dict[str, _Update] = {}
        name = self.source
        while name != self.target:
            self._require_plain(name)
            updates[name] = self._update(name)
            name = updates[name].old
        gone = {self.steps.index(self.last)} | {u.copy for u in updates.values() if u.copy is not None}
        for new, update in updates.items():
            self._require_unread(update, new, gone)
        made = {u.first: u.nest for u in updates.values() if u.nest is not None}
        steps = [made.get(k) or s for k, s in enumerate(self.steps) if k not in gone]
        moved = tuple(renamed(s, updates.keys(), self.target) for s in steps)
        buffers = tuple(b for b in self.program.buffers if b.name not in updates)
        return replace(self.program, steps=moved, buffers=buffers)

    def _require_plain(self, name: str) -> None:
        """``name`` may live in the input's memory."""
        buffer, target = self.buffers[name], self.buffers[self.target]
        if buffer.kind != "temp" or any(isinstance(o, BufferView) and o.buffer == name for o in self.program.outputs):
            raise _Refused("the new value is returned, or is that of another input")
        if buffer.shape != target.shape or buffer.dtype != target.dtype:
            raise _Refused("the new value has another shape or type on the way")
        calls = [s for s in self.steps if isinstance(s, LibraryCall) and name in reads(s) | writes(s)]
        if any(name in writes(call) for call in calls):
            raise _Refused("a library call makes the new value")
        if calls and buffer.strides != target.strides:
            raise _Refused("a library call reads the new value in another layout")

    def _update(self, name: str) -> _Update:
        writers = [k for k, s in enumerate(self.steps) if name in writes(s)]
        first = self.steps[writers[0]]
        copied = _whole_copy(first, self.buffers)
        if copied is not None and len(writers) > 1:
            if any(copied[0] in reads(self.steps[k]) for k in writers[1:]):
                raise _Refused("what is written depends on the old value beside it")
            return _Update(copied[0], writers[0], writers[1], None)
        if len(writers) > 1 or not isinstance(first, Nest):
            raise _Refused("the new value is not the old one with a part replaced")
        if any(isinstance(e, Reduce | Scan) for e in first.body):
            raise _Refused("the new value comes from a reduction")
        found = restricted(first, name, self.buffers[name], self.numerics)
        if found is None:
            raise _Refused("the new value is not the old one with a part replaced")
        old, nest = found
        stored = {e.index for e in nest.body if isinstance(e, Store) and e.buffer == name}
        if any(isinstance(e, Load) and e.buffer == old and {e.index} != stored for e in nest.body):
            raise _Refused("what is written depends on the old value beside it")
        return _Update(old, None, writers[0], nest)

    def _require_unread(self, update: _Update, new: str, gone: set[int]) -> None:
        """Nothing reads the old value once the new one begins to be written."""
        for k, step in enumerate(self.steps):
            if k > update.first and k not in gone and update.old in reads(step):
                raise _Refused("the old value is read after the update")
            if k > update.first and k not in gone and update.old != self.target and update.old in writes(step):
                raise _Refused("the old value is written after the update")
            if k < update.first and k != update.copy and new in reads(step):
                raise _Refused("the new value is read before it is complete")


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
