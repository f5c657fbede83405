"""Nests for a GPU taken apart, so that each reduces over one set of axes: such a nest always becomes a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.base.target import Target
from lamina.ir.loops import Buffer, Check, Equation, Load, LoopProgram, Nest, Scan, Step, Store, defined, operands
from lamina.schedule.gpu_cut_accesses import Accesses
from lamina.schedule.gpu_cut_nests import NewNests
from lamina.schedule.gpu_cutting import NestToCut, axes_of, needed
from lamina.schedule.gpu_split import spread

__all__ = ["reduces_over_several", "with_reductions_apart"]


def reduces_over_several(nest: Nest) -> bool:
    """Whether the nest reduces over several sets of axes, and can be taken apart.

    Not where an error may end it, a scan goes on, or memory that it reads is written.
    """
    stored = {e.buffer for e in nest.body if isinstance(e, Store)}
    if any(isinstance(e, Check | Scan) or (isinstance(e, Load) and e.buffer in stored) for e in nest.body):
        return False
    return len(NestToCut(nest).sets) > 1


def with_reductions_apart(
    program: LoopProgram, apart: Mapping[str, Reason], target: Target
) -> tuple[LoopProgram, list[Decision]]:
    """The program with the nests of these names taken apart, for their reasons, if they reduce over several sets."""
    buffers, decisions, steps = program.buffer_map(), list[Decision](), list[Step]()
    for step in program.steps:
        if isinstance(step, Nest) and step.name in apart and reduces_over_several(step):
            decisions.append(Decision("distribute", (step.name,), True, apart[step.name]))
            parts = tuple(_taken_apart(step, buffers, target))
            made, cuts = spread(replace(program, steps=parts, buffers=tuple(buffers.values())), target)
            buffers, steps = made.buffer_map(), [*steps, *made.steps]
            decisions += cuts
        else:
            steps.append(step)
    return replace(program, steps=tuple(steps), buffers=tuple(buffers.values())), decisions


def _taken_apart(nest: Nest, buffers: dict[str, Buffer], target: Target) -> list[Nest]:
    """A nest for each set of axes that reductions of one phase go over, then one for the stores of each set of axes."""
    facts = NestToCut(nest)
    new = NewNests(facts, Accesses(facts, buffers), target, buffers, [])
    outs = {n: p for p in facts.reduces for n in defined(facts.body[p])}
    groups = _groups(facts)
    goals, ends = [list(group) for group in groups], dict[frozenset[str], list[int]]()
    for goal in facts.goals():
        home = _home(facts, goal, groups, outs)
        if home is None:
            own = ends.setdefault(_axes(facts, goal), [])
            own.append(goal)
        else:
            goals[home].append(goal)
    known = [[n for n, p in outs.items() if p not in group] for group in groups]
    known += [list(outs)] * len(ends)
    wanted = zip([*goals, *ends.values()], known, strict=True)
    bodies = [facts.slice(own, dict.fromkeys(names)) for own, names in wanted]
    read = [needed(body, names) for body, names in zip(bodies, known, strict=True)]
    stores, loads = new.saved(dict.fromkeys(n for names in read for n in names))
    made: list[Nest] = []
    for k, (body, names) in enumerate(zip(bodies, read, strict=True)):
        group = groups[k] if k < len(groups) else ()
        kept = [e for e in stores if isinstance(e, Store) and outs[e.value] in group]
        made.append(new.nest_of(f"apart{k}", nest.axes, [*(loads[n] for n in names), *body, *kept]))
    return made


def _groups(facts: NestToCut) -> list[list[int]]:
    """Reductions over the same axes that need equally many others before them, those that need fewest first."""
    phase: dict[str, int] = {}
    found: dict[tuple[int, frozenset[str]], list[int]] = {}
    for p, eqn in enumerate(facts.body):
        when = max((phase[n] for n in operands(eqn)), default=0)
        if p in facts.reduces:
            found.setdefault((when, frozenset(facts.reduce(p).axes)), []).append(p)
        phase.update(dict.fromkeys(defined(eqn), when + (p in facts.reduces)))
    return [found[key] for key in sorted(found, key=lambda key: key[0])]


def _home(facts: NestToCut, goal: int, groups: list[list[int]], outs: dict[str, int]) -> int | None:
    """The group of reductions whose results are stored as they are, or as what is made of them at the same points."""
    body = facts.slice([goal], outs)
    used = {outs[n] for n in needed(body, outs)}
    for k, group in enumerate(groups):
        over = set(facts.reduce(group[0]).axes)
        varies = {a for e in body for a in (*axes_of(e), *_varying(facts, e))}
        if used and used <= set(group) and not varies & over:
            return k
    return None


def _axes(facts: NestToCut, goal: int) -> frozenset[str]:
    return frozenset((*axes_of(facts.body[goal]), *_varying(facts, facts.body[goal])))


def _varying(facts: NestToCut, eqn: Equation) -> set[str]:
    return {a for n in (*operands(eqn), *defined(eqn)) for a in facts.values[n]}
