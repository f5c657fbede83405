"""Split reductions: the equations that compute a partial result, and those that join all partials in order."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lamina.ir.index import Axis, Expr, as_expr, prod
from lamina.ir.loops import Check, Compute, Constant, Equation, Index, Load, Reduce, Store
from lamina.ir.ops import neutral
from lamina.schedule.gpu_cut_accesses import Accesses
from lamina.schedule.gpu_cut_nests import NewNests
from lamina.schedule.gpu_cutting import NestToCut, axes_of
from lamina.schedule.simplify import rename

__all__ = ["Cut", "Partials"]


@dataclass(frozen=True, slots=True)
class Cut:
    """A reduced axis in ``parts`` equal parts of ``length`` points; ``whole``: its points are the parts.

    The points of the reduced axes ``beside`` are parts of their own as well. ``dealt``: parts are no pieces of the
    axis, but take its points in turn.
    """

    axis: Axis
    parts: int
    length: Expr
    beside: tuple[Axis, ...] = ()
    dealt: bool = False

    @property
    def whole(self) -> bool:
        return self.length == 1

    def place(self, part: Axis, rest: Axis) -> Expr:
        """The point of the axis that is ``rest`` of ``part``."""
        if self.dealt:
            return as_expr(rest) * self.parts + as_expr(part)
        return as_expr(part) * self.length + (as_expr(0) if self.whole else as_expr(rest))

    @property
    def exact(self) -> bool:
        return (self.axis.extent - self.length * self.parts) == 0


@dataclass(frozen=True, slots=True)
class Partials:
    """Writes the two sides of a cut."""

    facts: NestToCut
    accesses: Accesses
    new: NewNests

    def partial_body(self, goals: list[int], reduces: set[int], cut: Cut, part: Axis, rest: Axis) -> list[Equation]:
        """The equations of a part: the axis replaced, and points beyond the axis left out."""
        place = cut.place(part, rest)
        guard = None if cut.exact else "inside_part"
        body: list[Equation] = []
        if guard is not None:
            origin = self.facts.body[min(goals)].origin
            body += [
                Index("place_part", place, "int64", origin),
                Index("extent_part", cut.axis.extent, "int64", origin),
                Compute(guard, "lt", ("place_part", "extent_part"), "bool", origin),
            ]
        for eqn in self.facts.slice(goals, {}):
            at = self.facts.body.index(eqn)
            new = rename(eqn, {}, {cut.axis: place})
            if guard is not None and isinstance(new, Load | Store) and cut.axis.name in axes_of(eqn):
                new = self.guarded(new, guard, body)
            if isinstance(new, Check) and guard is not None:
                extra = f"{new.cond}_inside"
                body += [Compute(f"{extra}_not", "not", (guard,), "bool", new.origin)]
                body += [Compute(extra, "or", (f"{extra}_not", new.cond), "bool", new.origin)]
                new = replace(new, cond=extra)
            if isinstance(new, Reduce) and new.op == "welford" and cut.axis.name in new.axes and guard is not None:
                body += self.moments_of_part(eqn, cut, part, rest, guard)
                continue
            if isinstance(new, Reduce) and cut.axis.name in new.axes:
                gone = {a.name for a in cut.beside}
                swapped = (() if cut.whole else (rest.name,)) if cut.axis.name in new.axes else ()
                axes = tuple(x for a in new.axes if a not in gone for x in (swapped if a == cut.axis.name else (a,)))
                value, held = new.value, self.facts.dtype(new.value)
                if guard is not None:
                    value = f"{new.outs[0]}_in"
                    body.append(Constant(f"{value}_none", neutral(new.op, held), held, new.origin))
                    body.append(Compute(value, "where", (guard, new.value, f"{value}_none"), held, new.origin))
                new = replace(new, axes=axes, value=value)
                if at in reduces and new.op in ("argmax", "argmin"):
                    top = Reduce((f"{new.outs[0]}_top",), new.op[3:], value, axes, held, new.origin)
                    body.append(top)
            body.append(new)
        return body

    def moments_of_part(self, eqn: Equation, cut: Cut, part: Axis, rest: Axis, guard: str) -> list[Equation]:
        """Mean and sum of squared deviations of a part that may have fewer points than the others: two sums."""
        assert isinstance(eqn, Reduce)
        (mean, squares), held, origin = eqn.outs, eqn.dtype, eqn.origin
        gone = {a.name for a in cut.beside}
        axes = tuple(rest.name if a == cut.axis.name else a for a in eqn.axes if a not in gone)
        count, counted = self.points_of_part(eqn, cut, part)
        wide = f"{mean}_wide"
        return [
            *counted,
            Constant(f"{mean}_one", 1.0, held, origin),
            Compute(f"{mean}_some", "maximum", (count, f"{mean}_one"), held, origin),
            Compute(wide, "cast", (eqn.value,), held, origin),
            Compute(f"{mean}_inside", "where", (guard, wide, f"{mean}_zero"), held, origin),
            Reduce((f"{mean}_sum",), "sum", f"{mean}_inside", axes, held, origin),
            Compute(mean, "div", (f"{mean}_sum", f"{mean}_some"), held, origin),
            Compute(f"{mean}_gap", "sub", (wide, mean), held, origin),
            Compute(f"{mean}_gap_inside", "where", (guard, f"{mean}_gap", f"{mean}_zero"), held, origin),
            Compute(f"{mean}_gap_square", "mul", (f"{mean}_gap_inside", f"{mean}_gap_inside"), held, origin),
            Reduce((squares,), "sum", f"{mean}_gap_square", axes, held, origin),
        ]

    def points_of_part(self, eqn: Reduce, cut: Cut, part: Axis) -> tuple[str, list[Equation]]:
        """The name of the number of points that a part reduces, and its equations: the last ones have fewer or none."""
        name, held, origin = eqn.outs[0], eqn.dtype, eqn.origin
        apart = (cut.axis.name, *(a.name for a in cut.beside))
        others = prod(self.facts.axes[a].extent for a in eqn.axes if a not in apart)
        return f"{name}_count", [
            Constant(f"{name}_zero", 0.0, held, origin),
            Index(f"{name}_length", cut.length, held, origin),
            Index(f"{name}_left", cut.axis.extent - as_expr(part) * cut.length, held, origin),
            Compute(f"{name}_most", "minimum", (f"{name}_left", f"{name}_length"), held, origin),
            Compute(f"{name}_least", "maximum", (f"{name}_most", f"{name}_zero"), held, origin),
            Index(f"{name}_others", others, held, origin),
            Compute(f"{name}_count", "mul", (f"{name}_least", f"{name}_others"), held, origin),
        ]

    def guarded(self, eqn: Load | Store, guard: str, body: list[Equation]) -> Load | Store:
        """The access only where the point exists."""
        if eqn.mask is None:
            return replace(eqn, mask=guard)
        name = f"{eqn.mask}_{len(body)}_part"
        body.append(Compute(name, "and", (eqn.mask, guard), "bool", eqn.origin))
        return replace(eqn, mask=name)

    def partials(self, reduces: list[int], part: Axis, cut: Cut) -> tuple[list[Equation], dict[int, list[Load]]]:
        """Stores of the parts' results and the loads that read them."""
        stores: list[Equation] = []
        loads: dict[int, list[Load]] = {}
        for p in reduces:
            eqn = self.facts.reduce(p)
            kept_axes = {*self.facts.values[eqn.outs[0]], *(a.name for a in cut.beside)}
            axes = [part, *(a for a in self.facts.nest.axes if a.name in kept_axes)]
            apart = [a for a in cut.beside if all(o.coefficient(a) != 1 for _, o in self.accesses.offsets)]
            axes.sort(key=lambda a: a is not part and a not in apart)
            index = tuple(as_expr(a) for a in axes)
            kept = [(n, eqn.dtype) for n in eqn.outs]
            if eqn.op in ("argmax", "argmin"):
                kept.append((f"{eqn.outs[0]}_top", self.facts.dtype(eqn.value)))
            loads[p] = []
            for name, dtype in kept:
                buffer = self.new.temporary(f"{name}_parts", dtype, axes)
                stores.append(Store(buffer.name, index, name, origin=eqn.origin))
                loads[p].append(Load(f"{name}_part", buffer.name, index, dtype, origin=eqn.origin))
        return stores, loads

    def join(self, eqn: Reduce, loads: list[Load], part: Axis, cut: Cut) -> list[Equation]:
        """The whole result from the parts'."""
        beside = tuple(a.name for a in cut.beside)
        over, out, held, origin = (part.name, *beside), eqn.outs[0], eqn.dtype, eqn.origin
        names = [load.out for load in loads]
        if eqn.op == "welford" and not cut.exact:
            count, counted = self.points_of_part(eqn, cut, part)
            return [
                *loads,
                *counted,
                Compute(f"{out}_part_sum", "mul", (names[0], count), held, origin),
                Reduce((f"{out}_all",), "sum", f"{out}_part_sum", over, held, origin),
                Index(f"{out}_points", prod(self.facts.axes[a].extent for a in eqn.axes), held, origin),
                Compute(out, "div", (f"{out}_all", f"{out}_points"), held, origin),
                Compute(f"{out}_away", "sub", (names[0], out), held, origin),
                Compute(f"{out}_square", "mul", (f"{out}_away", f"{out}_away"), held, origin),
                Compute(f"{out}_spread", "mul", (f"{out}_square", count), held, origin),
                Compute(f"{out}_own", "add", (f"{out}_spread", names[1]), held, origin),
                Reduce((eqn.outs[1],), "sum", f"{out}_own", over, held, origin),
            ]
        if eqn.op == "welford":
            points = prod(self.facts.axes[a].extent for a in eqn.axes if a not in (cut.axis.name, *beside)) * cut.length
            return [
                *loads,
                Reduce((f"{out}_all",), "sum", names[0], over, held, origin),
                Constant(f"{out}_count", float(cut.parts * self.facts.size(beside)), held, origin),
                Index(f"{out}_points", points, held, origin),
                Compute(out, "div", (f"{out}_all", f"{out}_count"), held, origin),
                Compute(f"{out}_away", "sub", (names[0], out), held, origin),
                Compute(f"{out}_square", "mul", (f"{out}_away", f"{out}_away"), held, origin),
                Compute(f"{out}_spread", "mul", (f"{out}_square", f"{out}_points"), held, origin),
                Compute(f"{out}_own", "add", (f"{out}_spread", names[1]), held, origin),
                Reduce((eqn.outs[1],), "sum", f"{out}_own", over, held, origin),
            ]
        if eqn.op not in ("argmax", "argmin"):
            return [*loads, Reduce(eqn.outs, eqn.op, names[0], over, held, origin)]
        rest = prod(self.facts.axes[a].extent for a in eqn.axes[1:]) * cut.length
        kind = loads[1].dtype
        nan = [Compute(f"{out}_nan", "isnan", (names[1],), "bool", origin)]
        return [
            *loads,
            Index(f"{out}_begin", as_expr(part) * rest, "int64", origin),
            Compute(f"{out}_place", "add", (f"{out}_begin", names[0]), "int64", origin),
            Reduce((f"{out}_best",), eqn.op[3:], names[1], over, kind, origin),
            Compute(f"{out}_same", "eq", (names[1], f"{out}_best"), "bool", origin),
            *nan,
            Compute(f"{out}_here", "or", (f"{out}_same", f"{out}_nan"), "bool", origin),
            Constant(f"{out}_far", (1 << 63) - 1, "int64", origin),
            Compute(f"{out}_at", "where", (f"{out}_here", f"{out}_place", f"{out}_far"), "int64", origin),
            Reduce(eqn.outs, "min", f"{out}_at", over, "int64", origin),
        ]
