"""What one compilation did: each stage's value, seconds and decisions, in order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from weakref import ref

from lamina.base.decision import Decision
from lamina.base.files import files, text_of
from lamina.base.logs import log_stage
from lamina.base.paths import path_of
from lamina.base.plurals import counted
from lamina.base.recovery import NOT_RECORDED, brief
from lamina.base.signals import raised_by_handler

__all__ = ["Record", "Stage", "held_records", "is_held", "keep", "put_in_place", "records"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of one region: its value, how long it took (seconds), what it decided and when it ended.

    ``ended`` is on the clock of ``time.perf_counter``.
    """

    region: str
    name: str
    value: object = field(repr=False)
    seconds: float
    decisions: tuple[Decision, ...] = ()
    ended: float = field(default_factory=lambda: time.perf_counter(), compare=False, repr=False)

    def __str__(self) -> str:
        """What ``dump`` writes of the value, all of its files in one text."""
        return "" if self.value is None else text_of(self.value)


@dataclass(slots=True, repr=False, eq=False, weakref_slot=True)
class Record:
    """The log of one compiled callable. Stages append to it; explain, dump and tests read it."""

    compares_stages: ClassVar[bool] = False
    """Whether it looks at the graphs that pass by: then it needs them made for it, and no other's are shared."""
    name: str = "lamina"
    stages: list[Stage] = field(default_factory=list)
    folder: Path | None = None
    """Where the stages are written whenever a graph is compiled."""
    incomplete: bool = False
    """Whether something could not be recorded, which a decision of the kind "record" tells of."""

    def __repr__(self) -> str:
        """Each stage in a line, without its value but with the summary that it may have."""
        lines = [f"Record of {self.name}: {counted(len(self.stages), 'stage')}"]
        for s in self.stages:
            summary = getattr(s.value, "summary", None) or counted(len(s.decisions), "decision")
            lines.append(f"  {s.region:24} {s.name:16} {s.seconds:7.3f} s  {summary}")
        return "\n".join(lines)

    def step(self, region: str, name: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call ``function``, time it and keep its value.

        A result that has a ``decisions`` attribute contributes those decisions to the stage.
        """
        start = time.perf_counter()
        value = function(*args, **kwargs)
        self._put(region, name, value, time.perf_counter() - start, lambda: getattr(value, "decisions", ()))
        return value

    def add(
        self, region: str, name: str, seconds: float, value: object = None, decisions: Iterable[Decision] = ()
    ) -> None:
        """Note a stage that was timed by its caller (capture, AOTAutograd, the C++ compiler)."""
        self._put(region, name, value, seconds, lambda: decisions)

    def keep(self, region: str, name: str, value: object) -> None:
        """Note a value that took no time, with its decisions if it has any."""
        self._put(region, name, value, 0.0, lambda: getattr(value, "decisions", ()))

    def note(self, region: str, name: str, *decisions: Decision) -> None:
        """Note decisions of the stage ``name`` that were taken beside its value."""
        self._put(region, name, None, 0.0, lambda: decisions)

    def told(self, region: str, name: str, decided: Callable[..., Iterable[Decision]], *args: Any) -> None:
        """Note the decisions, if any, that ``decided(*args)`` gives, which are worked out for the record alone."""
        with self.harmless(name):
            if decisions := tuple(decided(*args)):
                self.note(region, name, *decisions)

    @contextmanager
    def harmless(self, name: str, besides: type[Exception] = Warning) -> Iterator[None]:
        """Within, an exception of what is recorded of the stage ``name`` ends there, and is noted once in a record.

        Nothing that is compiled, and no result, may depend on what is done within. Raised are warnings that the user
        made errors, exceptions of the class ``besides``, and what a handler of a signal raises.
        """
        try:
            yield
        except (Warning, besides):
            raise
        except Exception as error:
            if raised_by_handler(error):
                raise
            self._lost(name, error)

    def _put(
        self, region: str, name: str, value: object, seconds: float, decided: Callable[[], Iterable[Decision]]
    ) -> None:
        with self.harmless(name):
            stage = Stage(region, name, value, seconds, tuple(decided()))
            self.stages.append(stage)
            log_stage(self.name, stage)

    def _lost(self, name: str, error: Exception) -> None:
        """Note, once, that something was not recorded."""
        if not self.incomplete:
            self.incomplete = True
            with suppress(Exception):
                reason = NOT_RECORDED(name=name, error=brief(error))
                self.stages.append(Stage("", "record", None, 0.0, (Decision("record", (name,), False, reason),)))
                logging.getLogger("lamina").warning("%s: %s", self.name, reason)

    def noting(self, region: str, name: str) -> Callable[[Decision], None]:
        """A function that notes a decision of that stage."""
        return partial(self.note, region, name)

    def passed(self, graph: str, place: str, rewrite: str, gm: object) -> None:
        """Called with the graph that is rewritten at a place, at first without a ``rewrite``, then after each of them.

        Later ones may change it. Nothing is noted here; a record that compares stages keeps copies.
        """

    def fused(self, region: str, step: str, program: object) -> None:
        """Called with the program of a region as each step of fusion left it. Nothing is noted here."""

    def launch_times(self, region: str) -> dict[str, list[float]] | None:
        """Where the seconds of launches go, by kernel, when the region runs the first times; None: nowhere."""

    def graph_entry(self, graph: str, run: Callable[..., Any]) -> Callable[..., Any]:
        """What the program calls for a captured graph: ``run``, or what a record that compares stages puts around."""
        return run

    def region_entry(
        self, region: str, gm: object, run: Callable[..., Any], steps: Callable[[], object]
    ) -> Callable[..., Any]:
        """What is called for a region: ``run``, or what a record that compares stages puts around it.

        ``gm`` is its graph, and ``steps`` gives what runs its kernels one by one, once they are loaded.
        """
        return run

    def ended(self, is_wanted: Callable[[object], bool]) -> float | None:
        """When the last stage ended, if its value is the one that is wanted."""
        last = self.stages[-1] if self.stages else None
        return last.ended if last is not None and is_wanted(last.value) else None

    def booked(self) -> float:
        """Seconds of all stages together."""
        return sum(stage.seconds for stage in self.stages)

    def seconds(self) -> dict[str, float]:
        """Seconds by stage name, summed over regions, in order of first appearance."""
        total: dict[str, float] = {}
        for stage in self.stages:
            total[stage.name] = total.get(stage.name, 0.0) + stage.seconds
        return total

    def decisions(self, kind: str | None = None) -> list[Decision]:
        """Every decision taken, in order; only those of one kind when ``kind`` is given."""
        return [d for s in self.stages for d in s.decisions if kind is None or d.kind == kind]

    def dump(self, folder: str | Path) -> None:
        """Write what the stages made into ``folder`` (created if missing): a numbered folder for each region.

        In it are the values of its stages, numbered as well, as files that can be run, compiled or read back, and
        ``decisions.txt``. Graphs, loop programs, plans and host programs are Python, kernels C++ or Triton. A stage
        whose value cannot be written leaves a text that says why. Raises ``BadArgument`` for what is no path, and
        ``OSError`` where the folder cannot be written.
        """
        folder = path_of(folder, "the folder to dump to")
        regions: dict[str, list[Stage]] = {}
        for stage in self.stages:
            regions.setdefault(stage.region or "capture", []).append(stage)
        for number, (region, stages) in enumerate(regions.items()):
            _dump_region(folder / f"{number:03d}_{region}", stages)


_kept: list[ref[Record]] = []
"""The records of compiled callables, in the order in which they were compiled; dead ones go at the next one."""


_holders: list[list[Record]] = []
"""Those who hold all records while they run, see ``held_records``."""


@contextmanager
def held_records() -> Iterator[list[Record]]:
    """A list that takes the records of all callables that are compiled within, and keeps them."""
    held: list[Record] = []
    _holders.append(held)
    try:
        yield held
    finally:
        _holders[:] = [other for other in _holders if other is not held]


def keep(record: Record) -> Record:
    """``record``, to be found by ``records`` from now on."""
    for holder in _holders:
        holder.append(record)
    _kept[:] = [*(known for known in _kept if known() is not None), ref(record)]
    return record


def is_held(record: Record) -> bool:
    """Whether somebody who holds all records has this one, to see how its callable is compiled."""
    return any(record is one for holder in _holders for one in holder)


def put_in_place(old: Record, new: Record) -> Record:
    """``new``, which ``records`` and who holds all records find from now on in the place of ``old``."""
    for holder in _holders:
        holder[:] = [new if record is old else record for record in holder]
    _kept[:] = [ref(new) if known() is old else known for known in _kept]
    return new


def records() -> list[Record]:
    """The records of all compiled callables of this process that are alive, oldest first.

    Those of ``torch.compile(..., backend="lamina")`` are among them, from the first call on: one for each function,
    which is kept as long as the function's code is, or until ``torch.compiler.reset()``.
    """
    return [record for known in _kept if (record := known()) is not None]


def _dump_region(folder: Path, stages: Sequence[Stage]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    made = [stage for stage in stages if stage.value is not None]
    for number, stage in enumerate(made):
        try:
            texts = files(stage.value)
        except Exception as error:  # a value that cannot be printed is no reason to lose the others
            texts = {".txt": f"it could not be written: {type(error).__name__}: {error}\n"}
        for end, text in texts.items():
            path = folder / f"{number:02d}_{stage.name.replace(' ', '_')}{end}"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    lines = [f"{stage.name}: {_decided(d)}\n" for stage in stages for d in stage.decisions]
    (folder / "decisions.txt").write_text("".join(lines), encoding="utf-8")


def _decided(decision: Decision) -> str:
    facts = "".join(f" {name}={value}" for name, value in decision.facts)
    answer = "yes" if decision.taken else "no"
    subject = ", ".join(map(str, decision.subject))
    return f"{decision.code} {decision.kind} {subject}: {answer}, {decision.reason}{facts}"
