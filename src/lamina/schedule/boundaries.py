"""Why a plan has two kernels where there might be one: asked of a finished plan, at no cost to compiling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lamina.base.reasons import Reason
from lamina.ir.access import reads, writes
from lamina.ir.loops import LoopProgram, Step
from lamina.ir.plan import KernelCall, Plan
from lamina.schedule import reasons
from lamina.schedule.buffer_facts import BufferFacts
from lamina.schedule.dependence_graph import DependenceGraph
from lamina.schedule.fuse import MOST_CANDIDATES
from lamina.schedule.group import Group
from lamina.schedule.join_groups import Joiner
from lamina.schedule.lifetimes import Lifetimes

__all__ = ["Boundary", "boundaries"]


@dataclass(frozen=True, slots=True)
class Boundary:
    """Two steps of a plan, by name, ``first`` before ``second``, that are not one kernel, and why.

    ``flow`` are buffers that the second reads and the first writes, ``shared`` those that both only read.
    """

    first: str
    second: str
    flow: tuple[str, ...]
    shared: tuple[str, ...]
    reason: Reason


def boundaries(plan: Plan, numerics: str = "fast") -> tuple[Boundary, ...]:
    """Each pair of steps of which one reads what the other writes, or that are kernels and read one buffer.

    ``numerics`` is the option that the plan was made with. What was asked when nests were joined is asked again, of the
    kernels as they are, so that no answer need be kept; of a kernel with several nests each is asked, and the first
    answer given. Takes time quadratic in the steps that touch one buffer.
    """
    flat = [(place, part) for place, step in enumerate(plan.steps) for part in _parts(step)]
    steps = tuple(part for _, part in flat)
    program = LoopProgram(plan.name, plan.inputs, plan.buffers, steps, plan.outputs)
    facts = BufferFacts.of(program)
    graph = DependenceGraph(facts.inputs)
    asked = _Asked(graph, facts, Joiner(graph, facts, Lifetimes(steps, facts, graph), numerics))
    found: dict[tuple[int, int], Reason] = {}
    groups: list[Group] = []
    for number, (place, part) in enumerate(flat):
        group = graph.group_of(number, part)
        for other in groups:
            pair = flat[other.number][0], place
            if pair[0] != place and pair not in found and _meet(other, group):
                found[pair] = asked.why(other, group)
        graph.enter(group)
        groups.append(group)
    return tuple(_described(plan, pair, reason) for pair, reason in sorted(found.items()))


def _parts(step: KernelCall | Step) -> Iterator[Step]:
    if isinstance(step, KernelCall):
        yield from step.nests
    else:
        yield step


def _meet(first: Group, second: Group) -> bool:
    """Whether the second reads what the first writes, or both are nests and read one buffer."""
    both = first.nest is not None and second.nest is not None
    return bool(first.writes & second.reads) or (both and bool(first.reads & second.reads))


def _described(plan: Plan, pair: tuple[int, int], reason: Reason) -> Boundary:
    first, second = (plan.steps[place] for place in pair)
    read, flow = reads(second), writes(first) & reads(second)
    shared = (reads(first) & read) - writes(first) - writes(second)
    return Boundary(first.name, second.name, tuple(sorted(flow)), tuple(sorted(shared)), reason)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The question that fusion asks, for groups that are as the plan has them."""

    graph: DependenceGraph
    facts: BufferFacts
    joiner: Joiner

    def why(self, first: Group, second: Group) -> Reason:
        """Why the second, which is not entered yet, is no part of the first."""
        answer = self.joiner.joined(first, second)
        if isinstance(answer, Reason):
            return answer
        tried = self.graph.sharing(second, self.facts.bytes)[:MOST_CANDIDATES]
        return reasons.MADE_LATER() if first in tried else reasons.TOO_FEW_SHARED_BYTES()
