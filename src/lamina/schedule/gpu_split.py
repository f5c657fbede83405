"""Nests that would leave most of a GPU idle, cut into nests that do not.

A reduction over many points with few results is computed in two steps: programs reduce a part each and store it, then
a small nest joins the parts, always in the same order. A nest that reduces rows and columns at once, with rows too
wide for registers, becomes a nest for the rows and one for the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.base.target import Target
from lamina.ir.index import Axis, Div, Mod, as_expr
from lamina.ir.loops import (
    Buffer,
    Equation,
    Load,
    LoopProgram,
    Nest,
    Scan,
    Step,
    Store,
    defined,
    operands,
)
from lamina.schedule import work_reasons
from lamina.schedule.axis_to_cut import AxisToCut
from lamina.schedule.gpu_cut_accesses import Accesses
from lamina.schedule.gpu_cut_choice import CutChoice
from lamina.schedule.gpu_cut_nests import NewNests
from lamina.schedule.gpu_cutting import WIDEST, NestToCut, needed
from lamina.schedule.gpu_partials import Cut, Partials
from lamina.schedule.gpu_passes import Passes
from lamina.schedule.gpu_scans import from_the_start, scan_in_parts
from lamina.schedule.gpu_steps import Steps
from lamina.schedule.gpu_updates import updates_apart
from lamina.schedule.joined_axes import with_joined_axes
from lamina.schedule.memo import Memo
from lamina.schedule.predicated_loads import predicate_loads
from lamina.schedule.window_coarsening import coarsen_windows

__all__ = ["spread"]


def spread(program: LoopProgram, target: Target, memo: Memo | None = None) -> tuple[LoopProgram, list[Decision]]:
    """The program with its long reductions cut for the target; the same object where nothing changes.

    What is loaded for a few rows only is loaded under their condition (``predicate_loads``).
    """
    buffers, memo = program.buffer_map(), memo or Memo()
    decisions: list[Decision] = []
    steps: list[Step] = []
    for whole in program.steps:
        if not isinstance(whole, Nest):
            steps.append(whole)
            continue
        found = _spread(whole, buffers, target, memo)
        buffers |= found.buffers
        decisions += found.decisions
        steps += found.steps
    if not decisions and [*map(id, steps)] == [*map(id, program.steps)]:
        return program, []
    return replace(program, steps=tuple(steps), buffers=tuple(buffers.values())), decisions


@dataclass(frozen=True, slots=True)
class _Spread:
    """What became of a nest: the steps in its place, their new buffers by name, and why."""

    steps: list[Step]
    buffers: dict[str, Buffer]
    decisions: list[Decision]


def _spread(whole: Nest, buffers: Mapping[str, Buffer], target: Target, memo: Memo) -> _Spread:
    def made() -> _Spread:
        held, found = dict(buffers), _Spread([], {}, [])
        for own in updates_apart(coarsen_windows(predicate_loads(whole), held), found.decisions):
            apart = from_the_start(own, held, found.decisions)
            parts = scan_in_parts(apart, held, target, found.decisions)
            found.steps.extend(parts if len(parts) > 1 else _Cutter(apart, held, target, found.decisions).run())
        found.buffers.update((name, held[name]) for name in held if name not in buffers)
        return found

    return memo.of("spread", (whole,), made)  # new buffers are called after the nest: no other plan's have these names


class _Cutter:
    """Cuts one nest, by the parts of it that each know how."""

    def __init__(self, nest: Nest, buffers: dict[str, Buffer], target: Target, decisions: list[Decision]) -> None:
        self._buffers, self._target, self._decisions = buffers, target, decisions
        self._facts = facts = NestToCut(nest)
        self._accesses = accesses = Accesses(facts, buffers)
        self._new = NewNests(facts, accesses, target, buffers, decisions)
        self._steps = Steps(facts, accesses, self._new)
        self._sides = Partials(facts, accesses, self._new)
        self._passes = Passes(facts, accesses, self._new, buffers)
        self._choice = CutChoice(facts, accesses, AxisToCut(facts, accesses), target, buffers)

    def run(self) -> list[Step]:
        """The nests that do the work of this one."""
        if not self._facts.reduces or any(a.extent == 0 for a in self._facts.nest.axes):
            return [self._facts.nest]
        if any(isinstance(e, Scan) for e in self._facts.body):
            return [self._facts.nest]
        joined = with_joined_axes(self._facts.nest, self._buffers)
        if joined is not self._facts.nest:
            steps = _Cutter(joined, self._buffers, self._target, self._decisions).run()
            return [self._facts.nest] if steps == [joined] else steps
        if len(self._facts.sets) > 1:
            inner = self._accesses.inner()
            if (shared := self._steps.shared(inner)) is not None:
                return self._again(shared)
            if (rows := self._steps.rows_first(inner)) is not None:
                return self._again(rows)
            if self._facts.volume(inner) > WIDEST:
                return self._again(self._unmixed(inner, work_reasons.ROWS_TOO_WIDE()))
            if self._needed_across(inner):
                return self._again(self._unmixed(inner, work_reasons.NEEDED_ACROSS()))
            others = [p for p in self._facts.reduces if frozenset(self._facts.reduce(p).axes) != inner]
            late = self._facts.depending(set(others))  # a sum around a row's maximum needs that of the whole row
            return self._parts([p for p in others if p not in late], inner)
        return self._parts(self._facts.first(), frozenset())

    def _again(self, nests: list[Nest]) -> list[Step]:
        """The nests, cut further where that helps."""
        return [s for n in nests for s in _Cutter(n, self._buffers, self._target, self._decisions).run()]

    def _needed_across(self, inner: frozenset[str]) -> bool:
        """Whether reductions along memory go over results of those over ``inner``, which go across it: a program would
        go along memory again and again, and reduce anew in each of its tiles.
        """
        fast = self._accesses.fast()
        late = self._facts.depending({p for p in self._facts.reduces if frozenset(self._facts.reduce(p).axes) == inner})
        others = [frozenset(self._facts.reduce(p).axes) for p in self._facts.reduces if p in late]
        return fast not in inner and any(fast in over and over != inner for over in others)

    def _unmixed(self, inner: frozenset[str], why: Reason) -> list[Nest]:
        """A nest for the reductions over ``inner`` and one for the others, which reads the results of the first."""
        own = {p for p in self._facts.reduces if frozenset(self._facts.reduce(p).axes) == inner}
        others = set(self._facts.reduces) - own
        late = self._facts.depending(others)
        outs = [n for p in sorted(own) if p not in late for n in defined(self._facts.body[p])]
        second_goals = [p for p in self._facts.goals() if p in late]
        early = [p for p in self._facts.goals() if p not in late]
        second = self._passes.rereading(second_goals, dict.fromkeys(outs), early)
        kept = {n: back for n, back in self._passes.left_in_memory(early).items() if _is_linear(back)}
        wanted = needed(second, outs)
        stores, saved = self._new.saved([n for n in wanted if n not in kept])
        loads = dict.fromkeys([e for n in wanted for e in (kept[n] if n in kept else [saved[n]])])
        first_goals = [*early, *(self._facts.use_def.positions[n] for n in saved)]
        first = self._facts.slice(first_goals, {})
        self._new.decide("rows and columns apart", why)
        return [
            self._new.nest_of("rows", self._facts.nest.axes, [*first, *stores]),
            self._new.nest_of("columns", self._facts.nest.axes, [*loads, *second]),
        ]

    def _parts(self, reduces: list[int], inner: frozenset[str]) -> list[Step]:
        """The nests with ``reduces`` computed in parts, where programs are too few otherwise."""
        if not reduces:
            return [self._facts.nest]
        over = frozenset(self._facts.reduce(reduces[0]).axes)
        cut = self._choice.cut(over, inner, reduces)
        if cut is None:
            return [self._facts.nest]
        held = self._passes.holding(reduces)
        cutter = self if held is None else _Cutter(held, self._buffers, self._target, self._decisions)
        return cutter.in_parts(cut, reduces)

    def in_parts(self, cut: Cut, reduces: list[int]) -> list[Step]:
        """The nests with ``reduces`` computed in the parts of ``cut``."""
        over = frozenset(self._facts.reduce(reduces[0]).axes)
        part = Axis(f"{cut.axis.name}_part", as_expr(cut.parts))
        rest = Axis(f"{cut.axis.name}_rest", cut.length)
        late = self._facts.depending(set(reduces))
        late |= self._passes.waiting_checks(reduces, late)
        early = [p for p in self._facts.goals() if p not in late]
        outs = {n: p for p in reduces for n in defined(self._facts.body[p])}
        stores, loads = self._sides.partials(reduces, part, cut)
        first = self._sides.partial_body([*reduces, *early], set(reduces), cut, part, rest)
        pair = (rest, part) if cut.dealt else (part, rest)
        axes = [x for a in self._facts.nest.axes for x in (pair if a == cut.axis else (a,))]
        nests = [self._new.nest_of("parts", axes, [*first, *stores])]
        joined = [e for p in reduces for e in self._sides.join(self._facts.reduce(p), loads[p], part, cut)]
        remaining = self._passes.rereading([p for p in self._facts.goals() if p in late], outs, early)
        programs = cut.parts * self._facts.size([a.name for a in cut.beside])
        runs = self._accesses.fast() in [a.name for a in cut.beside]
        why = "; the points of short contiguous runs apart, for wide accesses" if runs else ""
        why = "; neighbours of short contiguous runs apart, for wide accesses" if cut.dealt else why
        self._new.decide("in parts", work_reasons.IN_PARTS(programs=programs, how=why))
        kept = set(self._facts.axes) - over
        if all(self._facts.values[n] <= kept for e in remaining for n in (*defined(e), *operands(e))) and all(
            e.axes() <= kept for eqn in remaining if isinstance(eqn, Load | Store) for e in eqn.index
        ):
            nests.append(self._new.nest_of("join", [part, *self._facts.nest.axes], [*joined, *remaining]))
            return self._again(nests) if cut.dealt else [nests[0], *self._again(nests[1:])]
        wanted = needed(remaining, outs)
        saves, back = self._new.saved(wanted)
        nests.append(self._new.nest_of("join", [part, *self._facts.nest.axes], [*joined, *saves]))
        last = self._new.backwards(self._new.nest_of("rest", self._facts.nest.axes, [*back.values(), *remaining]))
        return self._again([*nests, last]) if cut.dealt else [nests[0], *self._again([*nests[1:], last])]


def _is_linear(body: Sequence[Equation]) -> bool:
    """Whether nothing is read at places that are quotients or remainders."""
    found = (e for eqn in body if isinstance(eqn, Load) for e in eqn.index)
    return not any(isinstance(atom, Div | Mod) for e in found for atom in e.atoms())
