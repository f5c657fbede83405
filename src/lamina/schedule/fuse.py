"""Fusion: a loop program's nests are joined into fewer, larger ones; every yes and no is a decision with its reason.

Nests are taken in program order. One that only computes cheap things from few operands is copied into its readers;
otherwise a nest joins the earlier group with which it shares the most bytes, if the two iteration spaces can be
aligned, no third step must run between them, and the result is still one kernel. On GPUs, readers whose loops fit no
better compute what they read again where that takes less time, and nests are grouped once more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.ir.loops import Buffer, LoopProgram, Nest, Step
from lamina.ir.loops_print import print_program
from lamina.schedule import reasons
from lamina.schedule.accesses import loaded, stored
from lamina.schedule.buffer_facts import BufferFacts
from lamina.schedule.dead_code import live_steps
from lamina.schedule.dependence_graph import DependenceGraph
from lamina.schedule.distribute import distribute
from lamina.schedule.errors import checked_first
from lamina.schedule.group import Group
from lamina.schedule.hoisting import hoist_values
from lamina.schedule.in_place import update_in_place
from lamina.schedule.inline_producers import inline_producers
from lamina.schedule.join_groups import Joiner
from lamina.schedule.lifetimes import Lifetimes
from lamina.schedule.masked_update import overwrite_results
from lamina.schedule.narrow import narrow_temporaries
from lamina.schedule.parts_of_rows import written_out
from lamina.schedule.preserved import verify_same_stores
from lamina.schedule.recompute import recompute
from lamina.schedule.short_columns import short_columns
from lamina.schedule.split import split_concats
from lamina.schedule.window_coarsening import undivided

__all__ = ["MOST_CANDIDATES", "STEPS", "Fused", "Fusion", "fuse"]

MOST_CANDIDATES = 8
"""Earlier groups that are tried for a nest, those with the most shared bytes."""


@dataclass(frozen=True, slots=True)
class Fused:
    """A program whose nests are the kernels to be, and what was decided on the way."""

    program: LoopProgram
    decisions: tuple[Decision, ...]

    def __str__(self) -> str:
        return print_program(self.program)

    def files(self) -> dict[str, str]:
        """The program as Python."""
        return {".py": print_program(self.program)}


def fuse(
    program: LoopProgram, numerics: str = "fast", told: Callable[[str, LoopProgram], None] = lambda name, program: None
) -> Fused:
    """Join nests of ``program``; the meaning stays the same. ``told`` hears of the program after each of ``STEPS``."""
    fusion = Fusion(program, numerics)
    for name, step in STEPS:
        step(fusion)
        told(name, fusion.program)
    in_place = {str(name) for d in fusion.decisions if d.kind == "in place" and d.taken for name in d.subject}
    verify_same_stores(program, fusion.program, in_place)
    return Fused(fusion.program, _once(fusion.decisions))


class Fusion:
    """A program that is being fused: between any two ``STEPS`` it means what it did at first.

    Of nests at most ``joins`` are joined to others in each grouping.
    """

    def __init__(self, program: LoopProgram, numerics: str, joins: int = sys.maxsize) -> None:
        self.program, self.numerics, self.joins = program, numerics, joins
        self.decisions: list[Decision] = []
        self._facts: BufferFacts | None = None
        self._recomputes = False

    @property
    def facts(self) -> BufferFacts:
        """What fusion asks of buffers, as they are before the first nest is copied into another."""
        if self._facts is None:
            self._facts = BufferFacts.of(self.program)
        return self._facts

    def take(self, steps: Sequence[Step], decisions: Iterable[Decision] = (), made: Sequence[Buffer] = ()) -> None:
        """The program goes on with these steps, and with buffers that were ``made`` for them."""
        self.program = replace(self.program, steps=tuple(steps), buffers=(*self.program.buffers, *made))
        self.decisions += decisions

    def updates(self) -> None:
        """Copies of a buffer that are changed in parts are changed where they are."""
        self.program, decisions = update_in_place(self.program, self.numerics)
        self.decisions += decisions

    def overwritten(self) -> None:
        """A masked result is written over what it is chosen from."""
        self.program, decisions = overwrite_results(self.program, self.numerics)
        self.decisions += decisions

    def split(self) -> None:
        """Readers of concatenations read their parts."""
        self.program = split_concats(self.program)

    def inlined(self) -> None:
        """Cheap producers are copied into their readers."""
        steps = live_steps(self.program.steps, self.facts.fixed)
        self.take(*inline_producers(steps, self.facts, self.numerics))

    def undivided(self) -> None:
        """Neighbours that read one element are one point, for vectors."""
        self.take([_for_vectors(step, self.facts) for step in self.program.steps])

    def grouped(self) -> None:
        """Nests join earlier ones."""
        grouping = _Grouping(self.program.steps, self.facts, self.numerics, self.joins)
        for number, step in enumerate(self.program.steps):
            grouping.add(number, step)
        steps = live_steps(grouping.graph.ordered(self.program.name), self.facts.fixed)
        self.take(steps, grouping.decisions)

    def recomputed(self) -> None:
        """Readers whose loops fit no better compute what they read, on a GPU."""
        made, decisions = recompute(self.program.steps, self.facts, self.numerics)
        self._recomputes = any(decision.taken for decision in decisions)
        self.take(live_steps(made, self.facts.fixed) if self._recomputes else self.program.steps, decisions)

    def regrouped(self) -> None:
        """Nests join earlier ones once more, where readers compute what they read."""
        if self._recomputes:
            self.grouped()

    def hoisted(self) -> None:
        """Values that vary over few axes are stored without the others, or computed ahead."""
        narrowed, changed, why = narrow_temporaries(self.program.steps, self.program.buffer_map())
        self.program = replace(self.program, buffers=tuple(changed.get(b.name, b) for b in self.program.buffers))
        self.take(narrowed, why)
        steps, made, decisions = hoist_values(self.program.steps, self.program.buffer_map())
        self.take(steps, decisions, made)

    def distributed(self) -> None:
        """Nests for CPUs that reduce are parted where that gains; operands in another order are copied first."""
        steps, made, decisions = distribute(self.program.steps, self.program.buffer_map())
        self.take(steps, decisions, made)

    def columns(self) -> None:
        """Sums with few columns are taken beside a longer axis first."""
        steps, made, decisions = short_columns(self.program.steps, self.program.buffer_map(), self.numerics)
        self.take(steps, decisions, made)

    def checked(self) -> None:
        """Whatever may raise does so before an input is written to; buffers that nothing uses are gone."""
        steps = checked_first(self.program.steps, self.facts.inputs)
        used = self.facts.fixed.union(*(loaded(s) for s in steps), *(stored(s) for s in steps))
        kept = tuple(b for b in self.program.buffers if b.name in used)
        self.program = replace(self.program, steps=tuple(steps), buffers=kept)


STEPS: tuple[tuple[str, Callable[[Fusion], None]], ...] = (
    ("update in place", Fusion.updates),
    ("masked update", Fusion.overwritten),
    ("split concatenations", Fusion.split),
    ("inline", Fusion.inlined),
    ("windows", Fusion.undivided),
    ("group", Fusion.grouped),
    ("recompute", Fusion.recomputed),
    ("group again", Fusion.regrouped),
    ("hoist", Fusion.hoisted),
    ("distribute", Fusion.distributed),
    ("short columns", Fusion.columns),
    ("checks first", Fusion.checked),
)
"""All of fusion, in order, by name."""


def _once(decisions: Iterable[Decision]) -> tuple[Decision, ...]:
    """Each answer once: groups that grew, and nests that are grouped again, are asked the same again."""
    return tuple({(d.kind, d.subject, d.reason): d for d in decisions}.values())


def _for_vectors(step: Step, buffers: BufferFacts) -> Step:
    """A nest for a CPU with neighbours that read one element in one point."""
    if not isinstance(step, Nest) or any(map(buffers.on_gpu, stored(step))):
        return step
    return written_out(undivided(step, buffers.buffers))


class _Grouping:
    """Puts ``steps`` into groups, one after the other: a nest joins the best earlier group that it fits.

    ``joins`` is how many more are made at most.
    """

    def __init__(self, steps: Sequence[Step], buffers: BufferFacts, numerics: str, joins: int) -> None:
        self.joins = joins
        self.graph = DependenceGraph(buffers.inputs)
        self.decisions: list[Decision] = []
        self._buffers = buffers
        self._joiner = Joiner(self.graph, buffers, Lifetimes(steps, buffers, self.graph), numerics)

    def add(self, number: int, step: Step) -> None:
        """Enter the step at place ``number``; a nest joins earlier groups again and again until none fits."""
        group = self.graph.group_of(number, step)
        refused: set[int] = set()
        while self.joins and group.nest is not None and (made := self._joined(group, refused)) is not None:
            group = made
            self.joins -= 1
        self.graph.enter(group)

    def _joined(self, group: Group, refused: set[int]) -> Group | None:
        """The group with the best earlier one that is not ``refused`` yet; ``None`` where it fits none."""
        for other in self.graph.sharing(group, self._buffers.bytes)[:MOST_CANDIDATES]:
            if other.number in refused or other.number == group.number:
                continue
            first, second = (group, other) if other.ancestors >> group.number & 1 else (other, group)
            result = self._joiner.joined(first, second)
            if isinstance(result, Group):
                shared = sum(self._buffers.bytes[b] for b in (first.reads | first.writes) & second.reads)
                self._decide(first, second, True, reasons.SHARES_MEMORY(), shared)
                self.graph.replace(first, second, result)
                return result
            refused.add(other.number)
            if first.writes & second.reads or result.code == reasons.WAITS_FOR_CALLS.number:
                self._decide(first, second, False, result)
        return None

    def _decide(self, first: Group, second: Group, taken: bool, reason: Reason, shared: int = 0) -> None:
        facts = (("bytes", shared),) if shared else ()
        self.decisions.append(Decision("fuse", (first.name, second.name), taken, reason, facts))
