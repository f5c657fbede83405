"""Fusion: a loop program's nests are joined into fewer, larger ones; every yes and no is a decision with its reason.

Nests are taken in program order. One that only computes cheap things from few operands is copied into its readers;
otherwise a nest joins the earlier group with which it shares the most bytes, if the two iteration spaces can be
aligned, no third step must run between them, and the result is still one kernel. On GPUs, readers whose loops fit no
better compute what they read again where that takes less time, and nests are grouped once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.ir.loops import LoopProgram, Nest, Step
from lamina.ir.loops_print import print_program
from lamina.schedule import reasons
from lamina.schedule.accesses import loaded, stored
from lamina.schedule.buffer_facts import BufferFacts
from lamina.schedule.dead_code import live_steps
from lamina.schedule.dependence_graph import DependenceGraph
from lamina.schedule.errors import checked_first
from lamina.schedule.group import Group
from lamina.schedule.hoisting import hoist_values
from lamina.schedule.in_place import update_in_place
from lamina.schedule.inline_producers import inline_producers
from lamina.schedule.join_groups import Joiner
from lamina.schedule.lifetimes import Lifetimes
from lamina.schedule.masked_update import overwrite_results
from lamina.schedule.recompute import recompute
from lamina.schedule.short_columns import short_columns
from lamina.schedule.split import split_concats
from lamina.schedule.window_coarsening import undivided

__all__ = ["Fused", "fuse"]

_MOST_CANDIDATES = 8
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


def fuse(program: LoopProgram, numerics: str = "fast") -> Fused:
    """Join nests of ``program``; the meaning stays the same."""
    updated, in_place = update_in_place(program, numerics)
    updated, overwritten = overwrite_results(updated, numerics)
    updated = split_concats(updated)
    buffers = BufferFacts.of(updated)
    steps, inlined = inline_producers(live_steps(updated.steps, buffers.fixed), buffers, numerics)
    steps = [_for_vectors(step, buffers) for step in steps]
    steps, grouped = _grouped(steps, buffers, numerics, updated.name)
    made, recomputed = recompute(steps, buffers, numerics)
    if any(decision.taken for decision in recomputed):
        steps, regrouped = _grouped(live_steps(made, buffers.fixed), buffers, numerics, updated.name)
        recomputed = (*recomputed, *regrouped)
    steps, held, ahead = hoist_values(steps, buffers.buffers)
    steps, between, columns = short_columns(steps, {**buffers.buffers, **{b.name: b for b in held}}, numerics)
    steps = checked_first(steps, buffers.inputs)
    used = buffers.fixed.union(*(loaded(s) for s in steps), *(stored(s) for s in steps))
    kept = tuple(b for b in (*updated.buffers, *held, *between) if b.name in used)
    result = replace(updated, steps=tuple(steps), buffers=kept)
    return Fused(result, _once((*in_place, *overwritten, *inlined, *grouped, *recomputed, *ahead, *columns)))


def _once(decisions: Iterable[Decision]) -> tuple[Decision, ...]:
    """Each answer once: groups that grew, and nests that are grouped again, are asked the same again."""
    return tuple({(d.kind, d.subject, d.reason): d for d in decisions}.values())


def _grouped(
    steps: Sequence[Step], buffers: BufferFacts, numerics: str, where: str
) -> tuple[list[Step], tuple[Decision, ...]]:
    """``steps`` with nests joined; ``where`` names the program."""
    grouping = _Grouping(steps, buffers, numerics)
    for number, step in enumerate(steps):
        grouping.add(number, step)
    return live_steps(grouping.graph.ordered(where), buffers.fixed), tuple(grouping.decisions)


def _for_vectors(step: Step, buffers: BufferFacts) -> Step:
    """A nest for a CPU with neighbours that read one element in one point."""
    if not isinstance(step, Nest) or any(map(buffers.on_gpu, stored(step))):
        return step
    return undivided(step, buffers.buffers)


class _Grouping:
    """Puts ``steps`` into groups, one after the other: a nest joins the best earlier group that it fits."""

    def __init__(self, steps: Sequence[Step], buffers: BufferFacts, numerics: str) -> None:
        self.graph = DependenceGraph(buffers.inputs)
        self.decisions: list[Decision] = []
        self._buffers = buffers
        self._joiner = Joiner(self.graph, buffers, Lifetimes(steps, buffers, self.graph), numerics)

    def add(self, number: int, step: Step) -> None:
        """Enter the step at place ``number``; a nest joins earlier groups again and again until none fits."""
        group = self.graph.group_of(number, step)
        refused: set[int] = set()
        while group.nest is not None and (made := self._joined(group, refused)) is not None:
            group = made
        self.graph.enter(group)

    def _joined(self, group: Group, refused: set[int]) -> Group | None:
        """The group with the best earlier one that is not ``refused`` yet; ``None`` where it fits none."""
        for other in self.graph.sharing(group, self._buffers.bytes)[:_MOST_CANDIDATES]:
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
