"""The dependences of steps while they are grouped: which groups touch a buffer, and which must run before which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from lamina.errors import InvalidIR
from lamina.ir.library import has_effect
from lamina.ir.loops import LibraryCall, Step
from lamina.schedule.accesses import loaded, stored
from lamina.schedule.errors import may_raise
from lamina.schedule.group import Group, StepFacts

__all__ = ["DependenceGraph"]


class DependenceGraph:
    """Groups by number, each with the groups it depends on; steps are entered in program order."""

    def __init__(self, inputs: frozenset[str] = frozenset()) -> None:
        """``inputs`` are written to after all that may raise before them."""
        self._inputs = inputs
        self._raising: set[int] = set()
        self._groups: dict[int, Group] = {}
        self._writers: dict[str, list[int]] = defaultdict(list)
        self._readers: dict[str, list[int]] = defaultdict(list)
        self._last_effect: int | None = None
        """The last call entered that has an effect besides its results: such calls keep their order."""

    def group_of(self, number: int, step: Step) -> Group:
        """The step ``number`` as a group that depends on those entered; it is not entered itself."""
        reads, writes = set(loaded(step)), set(stored(step))
        if isinstance(step, LibraryCall):
            made = Group(number, None, step, reads, writes)
            if has_effect(step.op) and self._last_effect is not None:
                made.deps.add(self._last_effect)
        else:
            made = Group(number, step, None, reads, writes, StepFacts.of(step))
        made.raises, made.updates = may_raise(step), not self._inputs.isdisjoint(writes)
        if made.updates:
            made.deps |= self._raising
        for b in reads:
            made.deps.update(self._writers.get(b, ()))
        for b in writes:
            made.deps.update(self._writers.get(b, ()))
            made.deps.update(self._readers.get(b, ()))
        for k in made.deps:
            made.ancestors |= self._groups[k].ancestors | (1 << k)
        return made

    def enter(self, group: Group) -> None:
        """Make the group known to those that are made or asked about later."""
        self._groups[group.number] = group
        if group.raises:
            self._raising.add(group.number)
        if group.call is not None and has_effect(group.call.op):
            self._last_effect = group.number
        for names, users in ((group.reads, self._readers), (group.writes, self._writers)):
            for b in names:
                if group.number not in users[b]:
                    users[b].append(group.number)

    def replace(self, first: Group, second: Group, made: Group) -> None:
        """Enter ``made``, which has ``first``'s number, in the place of ``first`` and ``second``."""
        for old in (first, second):
            for names, users in ((old.reads, self._readers), (old.writes, self._writers)):
                for b in names:
                    if old.number in users[b]:
                        users[b].remove(old.number)
            self._groups.pop(old.number, None)
            self._raising.discard(old.number)
        self.enter(made)
        bit, gone = 1 << made.number, 1 << second.number
        for other in self._groups.values():
            if second.number in other.deps:
                other.deps.discard(second.number)
                other.deps.add(made.number)
            if other.number != made.number and other.ancestors & (bit | gone):
                other.ancestors |= made.ancestors | bit

    def readers(self, name: str) -> list[Group]:
        """The groups entered that read a buffer."""
        return [self._groups[k] for k in self._readers[name]]

    def has_several_writers(self, name: str) -> bool:
        """Whether more than one group entered writes a buffer."""
        return len(self._writers[name]) > 1

    def between(self, first: Group, second: Group) -> Group | None:
        """A group that must run after ``first`` and before ``second``, a library call if one must; else nothing."""
        found = None
        for k in second.deps:
            if k != first.number and self._groups[k].ancestors >> first.number & 1:
                found = self._groups[k]
                if found.call is not None:
                    break
        return found

    def sharing(self, group: Group, sizes: Mapping[str, int]) -> list[Group]:
        """Groups of nests that share bytes with ``group``, most first; what one writes for it counts twice."""
        shared: dict[int, int] = defaultdict(int)
        for b in group.reads:
            for k in self._writers.get(b, ()):
                shared[k] += 2 * sizes[b]
            for k in self._readers.get(b, ()):
                shared[k] += sizes[b]
        ranked = sorted(shared, key=lambda k: (-shared[k], -k))
        return [self._groups[k] for k in ranked if self._groups[k].nest is not None]

    def ordered(self, where: str) -> list[Step]:
        """The groups' steps in an order that respects dependences, near program order. ``where`` names the program."""
        result: list[Step] = []
        done: set[int] = set()
        left = sorted(self._groups)
        while left:
            waiting: list[int] = []
            for k in left:
                group = self._groups[k]
                if group.deps <= done:
                    found = group.nest if group.nest is not None else group.call
                    assert found is not None
                    result.append(found)
                    done.add(k)
                else:
                    waiting.append(k)
            if len(waiting) == len(left):
                raise InvalidIR("fusion made a cycle of steps", where=where)
            left = waiting
        return result
