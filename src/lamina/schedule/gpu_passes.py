"""What the passes of a cut nest leave to each other: stores that a later one reads instead of computing again, values
that are gathered once, and checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lamina.base.dtypes import DTYPES
from lamina.ir.loops import Buffer, Check, Compute, Equation, Load, Nest, Store, defined
from lamina.schedule import work_reasons
from lamina.schedule.accesses import gathers
from lamina.schedule.gpu_cut_accesses import Accesses
from lamina.schedule.gpu_cut_nests import NewNests
from lamina.schedule.gpu_cutting import HALVES, NestToCut, axes_of, needed

__all__ = ["Passes"]

_HELD_GAIN = 0.9
"""Share of the bytes that a second pass moves up to which it is worth storing what it would gather again."""


@dataclass(frozen=True, slots=True)
class Passes:
    """A nest whose later passes need what earlier ones had."""

    facts: NestToCut
    accesses: Accesses
    new: NewNests
    buffers: Mapping[str, Buffer]

    def waiting_checks(self, reduces: list[int], late: set[int]) -> set[int]:
        """Checks of what only the pass after ``reduces`` reads: made there, unless an input is written before."""
        stores = [p for p in self.facts.goals() if p not in late and isinstance(self.facts.body[p], Store)]
        written = (e.buffer for p in stores if isinstance(e := self.facts.body[p], Store))
        if any(self.buffers[name].kind == "input" for name in written):
            return set()

        def read(goals: list[int]) -> set[Equation]:
            return {e for e in self.facts.slice(goals, {}) if isinstance(e, Load)}

        first, then = read([*reduces, *stores]), read([p for p in self.facts.goals() if p in late])
        checks = [p for p in self.facts.goals() if p not in late and isinstance(self.facts.body[p], Check)]
        return {p for p in checks if not read([p]) <= first and read([p]) <= then}

    def holding(self, reduces: list[int]) -> Nest | None:
        """The nest with a store of what it gathers, or has made of that, where reading it back in the pass after
        ``reduces`` moves less than gathering it again.
        """
        late = self.facts.depending(set(reduces))
        known = {n for p in reduces for n in defined(self.facts.body[p])}
        goals = [p for p in self.facts.goals() if p in late]
        again = self.facts.slice(goals, dict.fromkeys(known))
        if not any(gathers(e) for e in again):
            return None
        first = self.facts.slice(reduces, {})
        values = [n for e in first if e in again and isinstance(e, Compute | Load) for n in defined(e)]
        best, least = None, _HELD_GAIN * self.accesses.moved(again)
        for name in values:
            held = 2 * self.facts.size(self.facts.values[name]) * DTYPES[self.facts.dtype(name)].size
            left = held + self.accesses.moved(self.facts.slice(goals, {**dict.fromkeys(known), name: None}))
            if left < least and self.facts.dtype(name) not in HALVES:
                best, least = name, left
        if best is None:
            return None
        stores, _ = self.new.saved([best])
        self.new.decide("gathered once", work_reasons.GATHERED_ONCE(buffer=best))
        return replace(self.facts.nest, body=(*self.facts.body, *stores))

    def rereading(self, goals: list[int], known: Mapping[str, object], early: list[int]) -> list[Equation]:
        """What the goals need beyond known values, from memory where the stores ``early`` have left it there already
        and reading that is less than reading what it was made of.
        """
        plain = self.facts.slice(goals, known)
        back = self.left_in_memory(early)
        short = self.facts.slice(goals, {**known, **back})
        loads = [e for n in needed(short, back) for e in back[n]]
        short = [*dict.fromkeys(loads), *short]
        return short if self.accesses.moved(short) < self.accesses.moved(plain) else plain

    def left_in_memory(self, goals: list[int]) -> dict[str, list[Equation]]:
        """Values that these stores leave whole in a buffer, with how they are read from it: rounded, where the store
        rounds them, as they would be between two operations.
        """
        found: dict[str, list[Equation]] = {}
        for p in goals:
            eqn = self.facts.body[p]
            if not isinstance(eqn, Store) or eqn.mode != "set" or eqn.mask is not None:
                continue
            if axes_of(eqn) != self.facts.values[eqn.value] or sum(e == eqn.buffer for e in self.facts.stored()) > 1:
                continue
            made = self.facts.use_def.definition(eqn.value)
            load = Load(eqn.value, eqn.buffer, eqn.index, self.facts.dtype(eqn.value), origin=eqn.origin)
            found[eqn.value] = [load]
            if isinstance(made, Compute) and made.op == "cast" and made.dtype in HALVES:
                wide = self.facts.dtype(made.ins[0])
                if wide == "float32":
                    found[made.ins[0]] = [load, Compute(made.ins[0], "cast", (eqn.value,), wide, eqn.origin)]
        return found
