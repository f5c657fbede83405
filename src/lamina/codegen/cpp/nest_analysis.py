"""What code generation asks of a nest: types, axes and producers of values, and which loop runs over which axis."""

from __future__ import annotations

from dataclasses import replace

from lamina.codegen.cpp.expressions import WIDENED
from lamina.ir.index import Axis, Expr, Loaded, prod
from lamina.ir.loops import (
    Check,
    Compute,
    Constant,
    Equation,
    Index,
    Load,
    Nest,
    Reduce,
    Store,
    axes_of,
    axes_of_values,
    operands,
)
from lamina.ir.ops import JOINS
from lamina.ir.plan import Schedule
from lamina.ir.use_def import UseDef

__all__ = ["NestAnalysis", "fits_32", "prepared"]


def prepared(nest: Nest, schedule: Schedule) -> Nest:
    """The nest with welford as two sums, and reductions over both shared and inner axes done in two steps."""
    axes = {a.name: a for a in nest.axes}
    body: list[Equation] = []
    use_def = UseDef(nest.body)
    for eqn in nest.body:
        if isinstance(eqn, Reduce) and eqn.op == "welford":
            body.extend(_two_pass(eqn, axes, bool(use_def.users(eqn.outs[0]))))
        else:
            body.append(eqn)
    body = _small_indices(body)
    outer = set(schedule.outer)
    split: list[Equation] = []
    for eqn in body:
        if isinstance(eqn, Reduce) and eqn.op in JOINS:
            far = tuple(a for a in eqn.axes if a in outer)
            near = tuple(a for a in eqn.axes if a not in outer)
            if far and near:
                half = f"{eqn.outs[0]}_near"
                split.append(replace(eqn, outs=(half,), axes=near))
                eqn = replace(eqn, value=half, axes=far)
        split.append(eqn)
    return replace(nest, body=tuple(split))


def _small_indices(body: list[Equation]) -> list[Equation]:
    """Indices that fit in 32 bits and are only compared with such numbers are computed with 32 bits."""
    constants = {e.out: e for e in body if isinstance(e, Constant) and e.dtype == "int64" and abs(e.value) < 2**31}
    indices = {e.out for e in body if isinstance(e, Index) and e.dtype == "int64" and fits_32(e.expr)}
    before = -1
    while len(indices) != before:  # one that is compared with a wide one is wide, and so are those compared with it
        before = len(indices)
        for eqn in body:
            plain = isinstance(eqn, Compute) and eqn.op in ("eq", "ne", "lt", "le", "gt", "ge")
            if not (plain and all(v in indices or v in constants for v in operands(eqn))):
                indices -= set(operands(eqn))
    result: list[Equation] = []
    narrow: set[str] = set()
    for eqn in body:
        if isinstance(eqn, Index) and eqn.out in indices:
            eqn = replace(eqn, dtype="int32")
        elif isinstance(eqn, Compute) and any(v in indices for v in eqn.ins):
            for name in eqn.ins:
                if name in constants and name not in narrow:
                    narrow.add(name)
                    result.append(replace(constants[name], out=f"{name}_32", dtype="int32"))
            eqn = replace(eqn, ins=tuple(f"{v}_32" if v in narrow else v for v in eqn.ins))
        result.append(eqn)
    return result


def fits_32(expr: Expr) -> bool:
    """Whether every value is known to fit in 32 bits, a whole vector behind the end included."""
    low, high = expr.bounds()
    return low is not None and low >= -(2**30) and high is not None and high.is_int and high.const < 2**30


def _two_pass(eqn: Reduce, axes: dict[str, Axis], reads_mean: bool) -> tuple[Equation, ...]:
    """Mean and sum of squared deviations by two sums: exact where a running update would have to be corrected.

    A mean that is read is moved by the mean of the deviations from it: times the reciprocal deviation of nearly equal
    values its rounding is large. Of equal values it is exact. Where the deviations are larger than the mean, their sum
    is no more exact than that of the values, and where a sum overflows it is not a number: the mean stays as it is.
    No name ends with a number: coarsening tells the means of several points apart by these.
    """
    mean, squares = eqn.outs
    kind = "float32" if eqn.dtype in ("float16", "bfloat16") else eqn.dtype
    count: Expr = prod(axes[a].extent for a in eqn.axes)
    wide = kind != eqn.dtype
    value, average, total = (f"{mean}_x", f"{mean}_f", f"{squares}_f") if wide else (eqn.value, mean, squares)
    first = f"{mean}_mean" if reads_mean else average
    steps: list[Equation] = [Compute(value, "cast", (eqn.value,), kind)] if wide else []
    steps += [
        Reduce((f"{mean}_s",), "sum", value, eqn.axes, kind),
        Index(f"{mean}_n", count, kind),
        Compute(first, "div", (f"{mean}_s", f"{mean}_n"), kind),
        Compute(f"{mean}_d", "sub", (value, first), kind),
        Compute(f"{mean}_q", "mul", (f"{mean}_d", f"{mean}_d"), kind),
        Reduce((total,), "sum", f"{mean}_q", eqn.axes, kind),
    ]
    if reads_mean:
        steps += [
            Reduce((f"{mean}_e",), "sum", f"{mean}_d", eqn.axes, kind),
            Compute(f"{mean}_by", "div", (f"{mean}_e", f"{mean}_n"), kind),
            Compute(f"{mean}_moved", "add", (first, f"{mean}_by"), kind),
            Compute(f"{mean}_square", "mul", (first, first), kind),
            Compute(f"{mean}_whole", "mul", (f"{mean}_square", f"{mean}_n"), kind),
            Compute(f"{mean}_near", "lt", (total, f"{mean}_whole"), "bool"),
            Compute(average, "where", (f"{mean}_near", f"{mean}_moved", first), kind),
        ]
    if wide:
        steps += [Compute(mean, "cast", (average,), eqn.dtype), Compute(squares, "cast", (total,), eqn.dtype)]
    return tuple(steps)


class NestAnalysis:
    """A prepared nest and its schedule, indexed. Equations are known by their position in the body.

    Checks are numbered after the ``checks_before`` of the kernel's earlier nests.
    """

    def __init__(self, nest: Nest, schedule: Schedule, checks_before: int = 0) -> None:
        self.nest, self.schedule = prepared(nest, schedule), schedule
        self.body = self.nest.body
        self.extent = {a.name: a.extent for a in nest.axes}
        self.order = (*schedule.outer, *schedule.inner)
        self.loop = dict.fromkeys(schedule.outer, 0)
        self.tiles = dict(schedule.tile)
        self.shared = bool(schedule.outer) or bool(self.tiles)
        first = 1 if self.shared else 0
        self.loop.update({a: first + k for k, a in enumerate(schedule.inner)})
        self.vector = schedule.vector if schedule.width else None
        self.axes = axes_of_values(self.nest)
        self.use_def = UseDef(self.body)
        self.dtype = self.use_def.dtypes
        self.needs: list[tuple[str, ...]] = []
        self.checks: list[int] = []
        self.guards: list[tuple[int, ...]] = []
        self.check_number: dict[int, int] = {}
        self.stores = {p: e for p, e in enumerate(self.body) if isinstance(e, Store)}
        for position, eqn in enumerate(self.body):
            self._note(position, eqn, checks_before)

    def _note(self, position: int, eqn: Equation, checks_before: int) -> None:
        self.needs.append(operands(eqn))
        if isinstance(eqn, Check):
            self.checks.append(position)
            self.check_number[position] = checks_before + len(self.checks)
        indirect = isinstance(eqn, Load | Store) and any(isinstance(a, Loaded) for a in eqn.index[0].atoms())
        axes = self.axes_at(position)
        self.guards.append(
            tuple(c for c in self.checks if c != position and self.axes_at(c) <= axes) if indirect else ()
        )

    def reduce(self, position: int) -> Reduce:
        """The reduction at ``position``."""
        eqn = self.body[position]
        assert isinstance(eqn, Reduce)
        return eqn

    def axes_at(self, position: int) -> frozenset[str]:
        """Axes of the points at which an equation runs."""
        return axes_of(self.body[position], self.axes)

    def kept_axes(self, eqn: Reduce) -> tuple[str, ...]:
        """Axes that a reduction's result still varies over, in loop order."""
        left = self.axes[eqn.outs[0]]
        return tuple(a for a in self.order if a in left)

    def first_loop(self, axes: frozenset[str], open_axes: frozenset[str]) -> int | None:
        """The outermost loop over ``axes`` that is not open yet."""
        if any(a in axes and f"{a}_tile" not in open_axes for a in self.tiles):
            return 0
        loops = [self.loop[a] for a in axes if a not in open_axes]
        return min(loops) if loops else None

    def only_stored(self, name: str) -> bool:
        """Whether a narrow float is only written to memory of its own type, so that the store does the rounding."""
        return self.dtype[name] in WIDENED and all(isinstance(self.body[u], Store) for u in self.use_def.users(name))

    def constant(self, name: str) -> Constant | None:
        return self.use_def.constant(name)
