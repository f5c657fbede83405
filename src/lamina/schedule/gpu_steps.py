"""Reductions over different axes at once, in steps: first over what all of them have in common, in one pass for all."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lamina.base.dtypes import DTYPES
from lamina.ir.index import as_expr
from lamina.ir.loops import Check, Compute, Equation, Load, Nest, Reduce, Store, defined, operands
from lamina.ir.ops import JOINS
from lamina.schedule import work_reasons
from lamina.schedule.accesses import gathers
from lamina.schedule.gpu_cut_accesses import Accesses
from lamina.schedule.gpu_cut_nests import NewNests
from lamina.schedule.gpu_cutting import COLUMN_POINTS, HALVES, MANY, WIDEST, NestToCut, axes_of, needed

__all__ = ["Steps"]


@dataclass(frozen=True, slots=True)
class Steps:
    """Cuts a nest in steps where its sets of reduced axes overlap."""

    facts: NestToCut
    accesses: Accesses
    new: NewNests

    def shared(self, inner: frozenset[str]) -> list[Nest] | None:
        """Reductions over what all sets of axes have in common, then each set's own from those: a group norm's backward
        adds up over a group's channels and pixels and over images and pixels, so pixels come first, in one pass.

        Nothing where a program can hold a row, or where results are no plain joins of others.
        """
        first = self.facts.first()
        sets = list(dict.fromkeys(frozenset(self.facts.reduce(p).axes) for p in first))
        common = frozenset[str].intersection(*sets)
        if len(sets) < 2 or self.facts.size(common) < COLUMN_POINTS or not self.joinable(first):
            return None
        fast = self.accesses.fast()
        scattered = fast in inner - common and self.accesses.short(fast) and self.facts.size(self.facts.axes) >= MANY
        if self.facts.volume(inner) <= WIDEST and not scattered:
            return None
        self.new.decide("in steps", work_reasons.IN_STEPS())
        return self.in_steps(first, sets, common)

    def rows_first(self, inner: frozenset[str]) -> list[Nest] | None:
        """Reductions over whole rows and more, over each row in the nest that reduces and uses the row, and then over
        the rows: the sum of a loss that is made of two softmaxes, or the mean of norms. Nothing where what comes of
        them is needed in rows, where rows are short, or columns are added up.
        """
        others = [p for p in self.facts.reduces if frozenset(self.facts.reduce(p).axes) != inner]
        wider = [p for p in others if inner < set(self.facts.reduce(p).axes)]
        of_rows = [p for p in others if not self.facts.values[self.facts.reduce(p).value] & inner]
        crossed = self.accesses.contiguous([a for a in self.facts.axes if a not in inner]) is not None
        if (
            len(wider) + len(of_rows) < len(others)
            or not self.joinable(wider)
            or self.facts.size(inner) < COLUMN_POINTS
        ):
            return None
        late, outs = self.facts.depending(set(others)), {n: p for p in others for n in defined(self.facts.body[p])}
        goals = [p for p in self.facts.goals() if p in late]
        if late.intersection(self.facts.reduces) or not self.beyond(self.facts.slice(goals, outs), inner):
            return None
        inputs = [self.facts.use_def.positions[self.facts.reduce(p).value] for p in others]
        made = self.facts.slice(inputs, {})
        if (not wider or any(map(gathers, made))) if self.facts.volume(inner) > WIDEST else crossed:
            return None  # little is left of long rows; tiles of rows and columns read both layouts
        ends, loads = self.new.saved(dict.fromkeys(self.facts.reduce(p).value for p in of_rows))
        joins: list[Equation] = [*loads.values(), *(self.facts.body[p] for p in of_rows)]
        for p in wider:
            eqn = self.facts.reduce(p)
            load, step = self.step(eqn, (eqn.value,), inner)
            ends += step
            joins += self.joined_step(eqn, load, (), inner)
        early = [p for p in self.facts.goals() if p not in late]
        self.new.decide("rows first", work_reasons.IN_STEPS())
        axes = self.facts.nest.axes
        rows = self.new.nest_of("steps", axes, [*self.facts.slice([*inputs, *early], {}), *ends])
        return [rows, self.new.nest_of("join", axes, [*joins, *self.facts.slice(goals, outs)])]

    def joinable(self, reduces: list[int]) -> bool:
        """Whether results over some axes are exactly joins of results over fewer of them."""
        found = [self.facts.reduce(p) for p in reduces]
        return all(e.op in JOINS and e.dtype not in HALVES and self.facts.values[e.value] >= set(e.axes) for e in found)

    def in_steps(self, first: list[int], sets: list[frozenset[str]], common: frozenset[str]) -> list[Nest]:
        late, outs = self.facts.depending(set(first)), {n: p for p in first for n in defined(self.facts.body[p])}
        early = [p for p in self.facts.goals() if p not in late]
        steps: dict[tuple[str, tuple[str, ...]], Load] = {}
        ends: list[Equation] = []
        joins: dict[int, list[Equation]] = {}
        for p in first:
            eqn = self.facts.reduce(p)
            moving, fixed = self.factors(eqn, common)
            key = eqn.op, moving
            if key not in steps:
                steps[key], made = self.step(eqn, moving, common)
                ends += made
            joins[p] = self.joined_step(eqn, steps[key], fixed, common)
        inputs = [self.facts.use_def.positions[n] for _, names in steps for n in names]
        nests = [self.new.nest_of("steps", self.facts.nest.axes, [*self.facts.slice([*inputs, *early], {}), *ends])]
        goals = [p for p in self.facts.goals() if p in late]
        small: dict[frozenset[str], list[int]] = {s: [] for s in sets}
        for goal in list(goals):
            for own_set in sets:
                known = {n: p for n, p in outs.items() if frozenset(self.facts.reduce(p).axes) == own_set}
                if self.beyond(self.facts.slice([goal], known), common):
                    small[own_set].append(goal)
                    goals.remove(goal)
                    break
        remaining = self.facts.slice(goals, outs)
        stores, loads = self.new.saved(needed(remaining, outs))
        for k, own_set in enumerate(sets):
            own = [p for p in first if frozenset(self.facts.reduce(p).axes) == own_set]
            names = {n for p in own for n in defined(self.facts.body[p])}
            kept = [e for e in stores if isinstance(e, Store) and e.value in names]
            joined = [e for p in own for e in joins[p]]
            whole = dict.fromkeys([*joined, *self.facts.slice(small[own_set], outs), *kept])
            nests.append(self.new.nest_of(f"join{k}", self.facts.nest.axes, list(whole)))
        if remaining:
            rest = self.new.nest_of("rest", self.facts.nest.axes, [*loads.values(), *remaining])
            nests.append(self.new.backwards(rest))
        return nests

    def factors(self, eqn: Reduce, common: frozenset[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The factors of what is summed that vary over ``common``, and those that do not and wait until it is summed:
        weights of channels, in sums over their pixels.
        """
        if eqn.op != "sum" or not DTYPES[eqn.dtype].is_float:
            return (eqn.value,), ()

        def split(name: str) -> tuple[list[str], list[str]]:
            if not self.facts.values[name] & common:
                return [], [name]
            made = self.facts.use_def.definition(name)
            if isinstance(made, Compute) and made.op == "mul" and made.dtype == eqn.dtype:
                (left, apart), (right, beside) = (split(n) for n in made.ins)
                if apart or beside:
                    return [*left, *right], [*apart, *beside]
            return [name], []

        moving, fixed = split(eqn.value)
        return tuple(sorted(moving)), tuple(sorted(fixed))

    def step(self, eqn: Reduce, moving: tuple[str, ...], common: frozenset[str]) -> tuple[Load, list[Equation]]:
        """The reduction of a product over ``common``, stored, and how it is read."""
        (out,), kept = eqn.outs, frozenset[str]().union(*(self.facts.values[n] for n in moving)) - common
        body: list[Equation] = []
        value = moving[0]
        for k, other in enumerate(moving[1:]):
            body.append(Compute(f"{out}_product{k}", "mul", (value, other), eqn.dtype, eqn.origin))
            value = f"{out}_product{k}"
        axes = [a for a in self.facts.nest.axes if a.name in kept]
        buffer, index = self.new.temporary(f"{out}_steps", eqn.dtype, axes), tuple(as_expr(a) for a in axes)
        over = tuple(a for a in eqn.axes if a in common)
        body.append(Reduce((f"{out}_step",), eqn.op, value, over, eqn.dtype, eqn.origin))
        body.append(Store(buffer.name, index, f"{out}_step", origin=eqn.origin))
        return Load(f"{out}_step", buffer.name, index, eqn.dtype, origin=eqn.origin), body

    def joined_step(self, eqn: Reduce, load: Load, fixed: tuple[str, ...], common: frozenset[str]) -> list[Equation]:
        """The whole reduction from the one over ``common``."""
        (out,) = eqn.outs
        body: list[Equation] = [*self.facts.slice([self.facts.use_def.positions[n] for n in fixed], {}), load]
        value = load.out
        for k, name in enumerate(fixed):
            body.append(Compute(f"{out}_scaled{k}", "mul", (value, name), eqn.dtype, eqn.origin))
            value = f"{out}_scaled{k}"
        left = tuple(a for a in eqn.axes if a not in common)
        last = Compute(out, "identity", (value,), eqn.dtype, eqn.origin)
        return [*body, replace(eqn, value=value, axes=left) if left else last]

    def beyond(self, body: list[Equation], gone: frozenset[str]) -> bool:
        """Whether the equations stay without these axes, and without a reduction."""
        for eqn in body:
            if isinstance(eqn, Reduce) or any(self.facts.values[n] & gone for n in operands(eqn)):
                return False
            if not isinstance(eqn, Store | Check) and any(self.facts.values[n] & gone for n in defined(eqn)):
                return False
            if axes_of(eqn) & gone:
                return False
        return True
