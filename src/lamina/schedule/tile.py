"""How a flat nest is iterated: which axes threads share, which axis fills SIMD registers, what a row keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import gcd

from lamina.base.target import Target
from lamina.ir.index import Axis, Expr, Loaded, as_expr, prod
from lamina.ir.loops import Compute, Load, Nest, Random, Reduce, Scan, Store, axes_of_values, defined, operands
from lamina.ir.ops import OPS
from lamina.ir.plan import Schedule, furthest
from lamina.schedule.accesses import in_stretches
from lamina.schedule.far_elements import far_and_again, far_axis
from lamina.schedule.lanes import LANES

__all__ = ["Chooser"]

_GRAIN_OPS = 60_000
"""Instructions (by ``Op.cost``) below which starting other threads costs more than it gains."""
_KEEP_COST = 8
"""Instructions of a value, per vector, from which a row buffer keeps it between phases instead of computing it
again.
"""
_KEEP_CHEAP = 3
"""The same where rows along one axis have 16-bit numbers: to widen them again takes as long as to compute with them."""
_KEEP_FAR = 12
"""The same where a row does not stay in the second-level cache: one function, or a read at a computed place."""
_GATHERED = 16
"""Instructions of a vector whose elements lie anywhere, each loaded by itself."""
_TILE = 64
"""Side of a square tile of transposed operands, in elements: 16 KB of float32, half of a 32 KB first-level cache."""
_NEXT = 16
"""How much neighbours count for a vector axis beside elements that lie a few apart, which vectors read as well."""
_HALVES = ("float16", "bfloat16")
_SCALAR_ONLY = ("uint16", "uint32", "uint64")
_LIGHT, _HEAVY = 16, 8
"""Instructions for each element of a scatter up to which vectors save less than taking them apart costs, in all and
of an operation below which that is one or two instructions for a single element too."""


class Chooser:
    """Chooses a nest's schedule by rules, beside a given vector axis where there is one.

    ``dtypes`` gives each flat buffer's element type.
    """

    def __init__(self, nest: Nest, dtypes: Mapping[str, str], target: Target, vector: str | None = None) -> None:
        self.nest, self.dtypes, self.target, self.given = nest, dtypes, target, vector
        self.names = [a.name for a in nest.axes]
        self.axis = {a.name: a for a in nest.axes}
        self.values = axes_of_values(nest)
        self.reduces = [frozenset(e.axes) for e in nest.body if isinstance(e, Reduce)]
        self.scanned = {e.axis for e in nest.body if isinstance(e, Scan)}

    def schedule(self) -> Schedule:
        vector = self.vector()
        width = self.target.vector_bytes if vector else 0
        scatters = self.scatters()
        if scatters:
            inner = tuple(self.ordered(self.names, vector))
            if vector is not None and all(self.apart(e, vector) for e in scatters):
                lanes = max(width // 4, 1)
                tile = max(-(-self.size((vector,)) // self.target.processors // lanes) * lanes, 4 * lanes)
                return Schedule(
                    "columns", (), inner, vector=vector, width=width, tile=((vector, tile),), parallel=self.grain()
                )
            shared = self.separate(scatters)
            if shared is not None and shared != vector:
                rest = tuple(a for a in inner if a != shared)
                return Schedule("pointwise", (shared,), rest, vector=vector, width=width, parallel=self.grain())
            return Schedule("serial", (), inner, vector=vector, width=width)
        free = [a for a in self.names if a not in self.scanned and not any(a in r for r in self.reduces)]
        if not self.reduces and not self.scanned:
            return self.pointwise(vector, width)
        outer = tuple(a for a in free if a != vector)
        units = self.size(outer)
        wanted = 4 * self.target.processors if self.target.processors > 1 else 1
        if self.scanned:
            if vector in free and units < self.target.processors:
                return self.columns(outer, units, vector, width)
            return self.rows("scan", outer, vector, width)
        if vector in free:
            if not outer and self.one_pass() and self.reduced_size() >= 8 * self.target.processors:
                return self.mixed(outer, vector, width)
            return self.columns(outer, units, vector, width)
        if units >= wanted or (self.target.processors == 1 and outer):
            return self.rows("rows", outer, vector, width)
        return self.mixed(outer, vector, width)

    # ---- kinds --------------------------------------------------------------------------------------------------

    def pointwise(self, vector: str | None, width: int) -> Schedule:
        outer = tuple(a for a in self.names if a != vector)
        if not outer and self.names:
            return Schedule("pointwise", tuple(self.names), (), vector=vector, width=width, parallel=self.grain())
        inner = (vector,) if vector else ()
        slow = self.transposed_axes(vector)
        if slow is not None and vector is not None:
            outer = tuple(a for a in outer if a != slow)
            tiles = ((slow, _TILE), (vector, _TILE))
            return Schedule(
                "pointwise", outer, (slow, vector), vector=vector, width=width, tile=tiles, parallel=self.grain()
            )
        return Schedule("pointwise", outer, inner, vector=vector, width=width, parallel=self.grain())

    def transposed_axes(self, vector: str | None) -> str | None:
        """Another axis along which some operand is contiguous where it is not along the vector axis."""
        for eqn in self.nest.body:
            if not isinstance(eqn, Load) or vector is None or eqn.mask is not None:
                continue
            expr = eqn.index[0]
            if any(isinstance(a, Loaded) for a in expr.atoms()):
                continue
            along = expr.coefficient(self.axis[vector])
            if along is None or along == 0 or along == 1:
                continue
            for name in self.names:
                fast = name != vector and expr.coefficient(self.axis[name]) == 1
                if fast and self.size((name,)) >= 8 and self.size((vector,)) >= 8:
                    return name
        return None

    def rows(self, kind: str, outer: tuple[str, ...], vector: str | None, width: int) -> Schedule:
        inner = tuple(self.ordered([a for a in self.names if a not in outer], vector))
        kept, prefetch = self.kept(inner), kind == "rows" and self.prefetches(inner)
        return Schedule(
            kind, outer, inner, vector=vector, width=width, kept=kept, parallel=self.grain(), prefetch=prefetch
        )

    def prefetches(self, inner: tuple[str, ...]) -> bool:
        """Whether rows are read several times: later passes find them in cache, so memory is idle meanwhile."""
        count = sum(isinstance(e, Load) and self.values[e.out] >= set(inner) for e in self.nest.body)
        return self.phases() > 1 and count * self.size(inner) * 4 <= self.target.l2_bytes // 4

    def columns(self, outer: tuple[str, ...], units: int, vector: str | None, width: int) -> Schedule:
        """Reductions over axes outside a kept contiguous one: threads share blocks of that axis."""
        assert vector is not None
        threads, extent = self.target.processors, self.size((vector,))
        tile = 2048 if units >= threads else max(64, extent * max(units, 1) // threads // 64 * 64)
        if self.phases() > 1:  # what later phases read again should still be in the second-level cache
            tile = min(tile, max(64, self.target.l2_bytes // 8 // max(self.reduced_size(), 1) // 64 * 64))
        tile = min(tile, 2048)
        if self.axis[vector].extent.is_int:  # memory of a tile is filled and gone over whole
            tile = min(tile, -(-extent // LANES) * LANES)
        if units * -(-extent // tile) < threads and self.reduced_size() >= 8 * threads and self.one_pass():
            return self.mixed(outer, vector, width)
        inner = tuple(self.ordered([a for a in self.names if a not in outer], vector))
        kept = self.kept(inner, tile=((vector, tile),))
        return Schedule(
            "columns",
            outer,
            inner,
            vector=vector,
            width=width,
            tile=((vector, tile),),
            kept=kept,
            parallel=self.grain(),
        )

    def reduced_size(self) -> int:
        """Number of points over which the largest reduction goes."""
        return max((self.size(tuple(r)) for r in self.reduces), default=1)

    def phases(self) -> int:
        """How many times the nest goes over its points: once more after each reduction that it reads again."""
        phase: dict[str, int] = {}
        last = 0
        for eqn in self.nest.body:
            when = max((phase[n] for n in operands(eqn)), default=0)
            if isinstance(eqn, Store | Reduce):
                last = max(last, when)
            for name in defined(eqn):
                phase[name] = when + isinstance(eqn, Reduce)
        return last + 1

    def one_pass(self) -> bool:
        """Whether no value inside the loops depends on a reduction."""
        after: set[str] = set()
        inside = frozenset().union(*self.reduces) if self.reduces else frozenset()
        for eqn in self.nest.body:
            if isinstance(eqn, Reduce) and eqn.op != "welford":
                if eqn.value in after:
                    return False
                after.update(eqn.outs)
            elif isinstance(eqn, Reduce):
                return False
            elif any(n in after for n in operands(eqn)):
                for name in defined(eqn):
                    after.add(name)
                    if self.values[name] & inside:
                        return False
        return True

    def mixed(self, outer: tuple[str, ...], vector: str | None, width: int) -> Schedule:
        """Threads share an axis that is reduced: each sums for itself, and the sums are joined in order."""
        return next(self.sharings(vector, width), None) or self.rows("rows", outer, vector, width)

    def sharings(self, vector: str | None, width: int) -> Iterator[Schedule]:
        """A schedule for each axis that threads may share although it is reduced."""
        for name in self.names:
            if name == vector and len(self.names) > 1:
                continue
            if all(name not in r or self.splits(name, r) for r in self.reduces) and self.size((name,)) > 1:
                inner = tuple(self.ordered([a for a in self.names if a != name], vector))
                kept = self.kept(inner)
                yield Schedule("mixed", (name,), inner, vector=vector, width=width, kept=kept, parallel=self.grain())

    def splits(self, name: str, axes: frozenset[str]) -> bool:
        """Whether every reduction over these axes may be shared along ``name``."""
        single = {"argmax", "argmin"}
        return all(
            e.op not in single or len(e.axes) == 1 for e in self.nest.body if isinstance(e, Reduce) and name in e.axes
        )

    def scatters(self) -> list[Store]:
        """Accumulating stores whose places may collide."""
        return [e for e in self.nest.body if isinstance(e, Store) and e.mode == "add" and self.collides(e)]

    def collides(self, eqn: Store, over: Iterable[str] | None = None) -> bool:
        """Whether two points of the nest, or of the axes ``over`` which the store runs, may store to one place."""
        expr = eqn.index[0]
        if any(not isinstance(a, Axis) for a in expr.atoms()):
            return True
        reach = 0
        names = self.names if over is None else over
        factors = {n: expr.coefficient(self.axis[n]) for n in names}
        for name, factor in sorted(factors.items(), key=lambda item: _guess(item[1] or as_expr(0))):
            extent = self.axis[name].extent
            if factor is None or not factor.is_int or not extent.is_int or factor.const <= reach:
                return True
            reach += factor.const * (extent.const - 1)
        return False

    def apart(self, eqn: Store, vector: str | None) -> bool:
        """Whether points that differ along the vector axis never store to one place, so that it may be shared."""
        if vector is None or any(isinstance(a, Loaded) and self.along(a, vector) for a in eqn.index[0].atoms()):
            return False
        axis, extent = self.axis[vector], self.axis[vector].extent
        expr = eqn.index[0]
        if expr.coefficient(axis) != 1 or not extent.is_int:
            return False
        others = (expr - as_expr(axis)).terms
        step = gcd(*(c for _, c in others)) if others else extent.const
        return step >= extent.const and not self.reduces and not self.scanned

    def separate(self, scatters: list[Store]) -> str | None:
        """An axis whose points each store to a range of places of their own, so that threads may share it."""
        if self.reduces or self.scanned:
            return None
        for name in self.names:
            if all(self.has_own_range(eqn.index[0], self.axis[name]) for eqn in scatters):
                return name
        return None

    def has_own_range(self, place: Expr, axis: Axis) -> bool:
        step = place.coefficient(axis)
        if step is None or step == 0:
            return False
        rest = place - step * as_expr(axis)
        return rest.nonnegative() and rest.below(step)

    def along(self, atom: Loaded, axis: str) -> bool:
        return axis in self.values[atom.name]

    # ---- choices ------------------------------------------------------------------------------------------------

    def vector(self) -> str | None:
        """The axis along which most accesses are contiguous, of those that are no shorter than three."""
        if self.given is not None:
            return self.given
        score = {a: n for a, n in self.scores().items() if not (self.axis[a].extent.is_int and self.size((a,)) < 3)}
        best = max(score, key=lambda a: (score[a], self.names.index(a)), default=None)
        if best is None or score[best] == 0:
            return far_axis(self.nest) if score else None
        far = far_and_again(self.nest, self.target) if self.reduces else frozenset()
        if best in far:
            near = {a: n for a, n in score.items() if n and self.size((a,)) >= LANES and a not in far}
            best = max(near, key=lambda a: (near[a], self.names.index(a)), default=best)
        return None if self.light_scatter(best) else best

    def light_scatter(self, axis: str) -> bool:
        """Whether the nest does little but store elements at places that are computed for each point of ``axis``."""
        stores = [e for e in self.nest.body if isinstance(e, Store)]
        apart = all(any(isinstance(a, Loaded) and self.along(a, axis) for a in e.index[0].atoms()) for e in stores)
        if not stores or not apart or self.reduces or self.scanned:
            return False
        if any(isinstance(e, Random) for e in self.nest.body):
            return False
        costs = [OPS[e.op].cost for e in self.nest.body if isinstance(e, Compute)]
        return sum(costs) <= _LIGHT and max(costs, default=0) < _HEAVY

    def scores(self) -> dict[str, int]:
        """Of each axis that may be the vector axis, how many accesses are contiguous along it, by their weight."""
        if not self.target.vector_bytes or any(d in _SCALAR_ONLY for d in self.all_dtypes()):
            return {}
        score, most = dict.fromkeys(self.names, 0), furthest(self.target.vector_bytes)
        for eqn in self.nest.body:
            if isinstance(eqn, Load | Store):
                expr = eqn.index[0]
                axes = expr.axes()
                chosen = (self.values[a.name] for a in expr.atoms() if isinstance(a, Loaded))
                weight = self.size(tuple(axes.union(*chosen))) * (3 if isinstance(eqn, Store) else 2)
                for name in axes & score.keys():
                    axis, factor = self.axis[name], expr.coefficient(self.axis[name])
                    if factor == 1 or (factor is None and in_stretches(expr, axis, self.values, self.target)):
                        score[name] += weight * _NEXT
                    elif factor is not None and factor.is_int and 1 < factor.const <= most:
                        score[name] += weight
        return score

    def all_dtypes(self) -> set[str]:
        found = {self.dtypes[e.buffer] for e in self.nest.body if isinstance(e, Load | Store)}
        return found | {e.dtype for e in self.nest.body if hasattr(e, "dtype")}

    def ordered(self, names: list[str], vector: str | None) -> list[str]:
        """The axes in order, the vector axis last."""
        return [a for a in names if a != vector] + ([vector] if vector in names and vector is not None else [])

    def size(self, axes: tuple[str, ...]) -> int:
        """Number of points along ``axes``, unknown sizes counted as 64."""
        return _guess(prod(self.axis[a].extent for a in axes))

    def grain(self) -> int:
        """Points below which one thread does all the work."""
        cost = 1
        for eqn in self.nest.body:
            if isinstance(eqn, Compute):
                cost += OPS[eqn.op].cost
            elif isinstance(eqn, Random):
                cost += 30
            elif isinstance(eqn, Load | Store):
                cost += 1
        return max(_GRAIN_OPS * 8 // cost // 4, 1024)

    def kept(
        self, inner: tuple[str, ...], least: int | None = None, tile: tuple[tuple[str, int], ...] = ()
    ) -> tuple[str, ...]:
        """Values that cost ``least`` or more, vary inside a row, and are needed again after a reduction.

        Of axes in ``tile`` a row has so many points at a time. Where what is kept does not stay in the second-level
        cache only values that take longer to compute than to read from the next one are.
        """
        if least is None:
            halves = any(isinstance(e, Load) and self.dtypes[e.buffer] in _HALVES for e in self.nest.body)
            least = _KEEP_CHEAP if halves and len(inner) == 1 else _KEEP_COST
        near, far = self.target.l2_bytes // 2, self.target.llc_bytes // 4
        crossing = self.crossing(inner, least)
        size = {name: self.row_bytes(name, inner, dict(tile)) for name in crossing}
        return tuple(
            n for n, cost in crossing.items() if size[n] <= near or (size[n] <= far and cost >= max(least, _KEEP_FAR))
        )

    def crossing(self, inner: tuple[str, ...], least: int) -> dict[str, int]:
        """Values that cost ``least`` or more and are needed again after a reduction inside a row, with that cost."""
        phase: dict[str, int] = {}
        cost: dict[str, int] = {}
        wanted: dict[str, int] = {}
        moments = any(isinstance(e, Reduce) and e.op == "welford" for e in self.nest.body)
        for eqn in self.nest.body:
            names = operands(eqn)
            when = max((phase[n] for n in names), default=0)
            for name in names:
                if phase[name] < when and cost[name] >= least and self.values[name] & set(inner):
                    wanted[name] = cost[name]
            price = sum(cost[n] for n in names if n not in wanted)
            if isinstance(eqn, Compute):
                price += OPS[eqn.op].cost
                if moments and eqn.op == "cast" and len(self.values[eqn.out] & set(inner)) > 1:
                    price = max(price, _KEEP_COST)  # read three times, from rows that lie apart in memory
            elif isinstance(eqn, Random):
                price += 30
            elif isinstance(eqn, Load):
                price = _GATHERED if inner and self.gathers(eqn, inner[-1]) else 1
            for name in defined(eqn):
                phase[name] = when + isinstance(eqn, Reduce)
                cost[name] = 0 if isinstance(eqn, Reduce) else price
        return wanted

    def gathers(self, eqn: Load, axis: str) -> bool:
        """Whether neighbours along ``axis`` are read at places in no even steps."""
        place = eqn.index[0]
        if any(isinstance(a, Loaded) and self.along(a, axis) for a in place.atoms()):
            return True
        if axis not in place.axes() or place.coefficient(self.axis[axis]) is not None:
            return False
        return not in_stretches(place, self.axis[axis], self.values, self.target)

    def row_bytes(self, name: str, inner: tuple[str, ...], tile: Mapping[str, int]) -> int:
        size = 4
        for axis in inner:
            if axis in self.values[name]:
                size *= min(self.size((axis,)), tile.get(axis, 1 << 62))
        return size


def _guess(extent: Expr) -> int:
    if extent.is_int:
        return extent.const
    total = extent.const
    for mono, coef in extent.terms:
        total += coef * 64 ** len(mono)
    return max(total, 1)
