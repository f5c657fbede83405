"""Canonical, flat form of nests: one offset for each access, few axes, canonical names.

Two layers of a model that do the same work in the same shapes become equal values here, whatever their buffers and
sizes were called, so that they share one kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Atom, Axis, Div, Expr, Loaded, Mod, Size, as_expr
from lamina.ir.loops import (
    Buffer,
    Check,
    Compute,
    Constant,
    Equation,
    Index,
    Load,
    Nest,
    Origin,
    Random,
    Reduce,
    Scan,
    Store,
)

__all__ = ["Flat", "alone", "flatten"]

_MIN_RUN = 8
"""Shortest run of consecutive elements worth an axis of its own."""


@dataclass(frozen=True, slots=True)
class Flat:
    """Nests in canonical names, and what the names stand for: ``buffers[k]`` is ``b<k>``, ``sizes[k]`` is ``s<k>``."""

    nests: tuple[Nest, ...]
    buffers: tuple[str, ...]
    dtypes: tuple[str, ...]
    sizes: tuple[Expr, ...]


def flatten(nests: Sequence[Nest], buffers: Mapping[str, Buffer]) -> Flat:
    """Nests with logical indices as flat nests (one index each: elements from the buffer's first element)."""
    names = _Names()
    done = tuple(_Flattener(nest, buffers, names).run() for nest in nests)
    order = tuple(names.buffers)
    return Flat(done, order, tuple(buffers[b].dtype for b in order), tuple(as_expr(s) for s in names.sizes))


class _Names:
    """Canonical names of buffers and sizes, shared by the nests of one kernel."""

    def __init__(self) -> None:
        self.buffers: dict[str, str] = {}
        self.sizes: dict[Size, Size] = {}

    def buffer(self, name: str) -> str:
        return self.buffers.setdefault(name, f"b{len(self.buffers)}")

    def size(self, size: Size) -> Size:
        found = self.sizes.get(size)
        if found is None:
            found = self.sizes[size] = Size(f"s{len(self.sizes)}", size.low)
        return found


Coefs = dict[str, Expr]


class _Flattener:
    def __init__(self, nest: Nest, buffers: Mapping[str, Buffer], names: _Names) -> None:
        self.nest, self.buffers, self.names = nest, buffers, names
        self.offsets: dict[int, Expr] = {}
        self.pieces: list[Coefs] = []
        self.stuck: set[str] = set()
        self.divided = False
        self.extents = {a.name: a.extent for a in nest.axes}

    def run(self) -> Nest:
        self.measure()
        if self.divided:
            self.unfold()
        order = [a.name for a in self.nest.axes if self.extents[a.name] != 1]
        order = self.collapse(self.reorder(order))
        return self.rebuild(order)

    # ---- what is known about every index expression --------------------------------------------------------------

    def measure(self) -> None:
        """Flat offsets, and the factor of each axis in every (piece of an) index expression."""
        for position, eqn in enumerate(self.nest.body):
            if isinstance(eqn, Load | Store):
                strides = self.buffers[eqn.buffer].strides
                offset = as_expr(0)
                for index, stride in zip(eqn.index, strides, strict=True):
                    if index.terms or index.const:
                        offset = offset + index * stride
                self.note(position, offset)
            elif isinstance(eqn, Index):
                self.note(position, eqn.expr)
            elif isinstance(eqn, Random):
                self.note(position, eqn.index)

    def note(self, position: int, expr: Expr) -> None:
        self.offsets[position] = expr
        self.pieces.append(self.piece(expr))

    def piece(self, expr: Expr) -> Coefs:
        """Factor of each axis in the linear part; parts inside divisions become pieces of their own."""
        found: dict[str, Expr] = {}
        for mono, coef in expr.terms:
            axes = [a for a in mono if isinstance(a, Axis)]
            inner = [a for a in mono if isinstance(a, Div | Mod)]
            for atom in inner:
                self.divided = True
                self.pieces.append(self.piece(atom.num))
                self.stuck |= atom.den.axes()
                if axes:
                    self.stuck |= atom.num.axes()
            if len(axes) > 1 or (axes and inner):
                self.stuck.update(a.name for a in axes)
            elif axes:
                rest = tuple(a for a in mono if not isinstance(a, Axis))
                factor = Expr(((rest, coef),), 0) if rest else Expr((), coef)
                name = axes[0].name
                found[name] = found[name] + factor if name in found else factor
        return found

    def unfold(self) -> None:
        """Split axes so that remainders and quotients change with the slow part only: ``(j + 32) % 64`` over
        ``j < 64`` is ``(h + 1) % 2 * 32 + k``, whose inner part a register can follow.
        """
        scanned = {e.axis for e in self.nest.body if isinstance(e, Scan)}
        for axis in self.nest.axes:
            if axis.name in scanned or not axis.extent.is_int:
                continue
            step = axis.extent.const
            atoms = {a for e in self.offsets.values() for a in e.atoms() if isinstance(a, Div | Mod) and axis in _of(a)}
            for atom in atoms:
                step = gcd(step, _period(atom, axis))
            if atoms and step >= _MIN_RUN:
                self.split(axis, step)

    def split(self, axis: Axis, step: int) -> None:
        """Replace ``axis`` by its quotient and remainder by ``step``."""
        count = axis.extent.const // step
        slow, fast = Axis(f"{axis.name}_slow", as_expr(count)), Axis(f"{axis.name}_fast", as_expr(step))
        parts = (slow, fast) if count > 1 else (fast,)
        names = tuple(a.name for a in parts)
        head = as_expr(slow) if count > 1 else as_expr(0)
        self.offsets = {p: _unfolded(e, axis, head, as_expr(fast), step) for p, e in self.offsets.items()}
        axes = tuple(part for a in self.nest.axes for part in (parts if a == axis else (a,)))
        body = tuple(
            replace(e, axes=tuple(n for a in e.axes for n in (names if a == axis.name else (a,))))
            if isinstance(e, Reduce)
            else e
            for e in self.nest.body
        )
        self.nest = replace(self.nest, axes=axes, body=body)
        self.extents = {a.name: a.extent for a in axes}
        self.pieces, self.stuck = [], set()
        for expr in self.offsets.values():
            self.pieces.append(self.piece(expr))

    # ---- order and number of axes --------------------------------------------------------------------------------

    def reorder(self, order: list[str]) -> list[str]:
        """Axes by falling stride in the access that varies over most of them, so that the fastest comes last."""
        if len(order) < 2:
            return order
        best: Coefs = {}
        for position, eqn in enumerate(self.nest.body):
            if isinstance(eqn, Load | Store):
                # Axes of one point are gone from the order but still in the indices.
                coefs = {name: c for name, c in self.piece(self.offsets[position]).items() if name in order}
                if len(coefs) > len(best) or (len(coefs) == len(best) and isinstance(eqn, Store)):
                    best = coefs
        if len(best) < len(order):
            return order
        ranked = sorted(order, key=lambda a: _size_rank(best[a]), reverse=True)
        return order if ranked == order else ranked

    def collapse(self, order: list[str]) -> list[str]:
        """Join neighbours that every index expression steps through as if they were one axis."""
        reduces = [frozenset(e.axes) for e in self.nest.body if isinstance(e, Reduce)]
        ordered = [e.axes for e in self.nest.body if isinstance(e, Reduce) and e.op in ("argmax", "argmin")]
        scanned = {e.axis for e in self.nest.body if isinstance(e, Scan)}
        result: list[str] = []
        for name in reversed(order):
            if result and self.joins(name, result[0], reduces, ordered, scanned):
                self.extents[result[0]] = self.extents[name] * self.extents[result[0]]
                self.extents[name] = as_expr(1)
                for coefs in self.pieces:
                    coefs.pop(name, None)
            else:
                result.insert(0, name)
        return result

    def joins(
        self,
        outer: str,
        inner: str,
        reduces: list[frozenset[str]],
        ordered: list[tuple[str, ...]],
        scanned: set[str],
    ) -> bool:
        if outer in self.stuck or inner in self.stuck or outer in scanned or inner in scanned:
            return False
        if any((outer in r) != (inner in r) for r in reduces):
            return False
        for axes in ordered:
            if outer in axes and axes.index(outer) + 1 != axes.index(inner):
                return False
        extent = self.extents[inner]
        whole = extent.const if extent.is_int else None
        for coefs in self.pieces:
            slow, fast = coefs.get(outer), coefs.get(inner)
            if slow is None and fast is None:
                continue
            if slow is None or fast is None:
                return False
            if whole is not None and fast.is_int:
                if not (slow.is_int and slow.const == whole * fast.const):
                    return False
            elif slow != extent * fast:
                return False
        return True

    # ---- the nest in canonical names -----------------------------------------------------------------------------

    def rebuild(self, order: list[str]) -> Nest:
        self.values: dict[str, str] = {}
        self.atoms: dict[Atom, Atom | None] = {}
        self.axis_names = {name: f"i{k}" for k, name in enumerate(order)}
        self.old_axes = {a.name: a for a in self.nest.axes}
        axes = []
        for name in order:
            axis = Axis(self.axis_names[name], self.expr(self.extents[name]))
            axes.append(axis)
            self.atoms[self.old_axes[name]] = axis
        for name, old in self.old_axes.items():
            if name not in self.axis_names:
                self.atoms[old] = None
        body = [new for position, eqn in enumerate(self.nest.body) for new in self.equation(position, eqn)]
        return Nest("nest", tuple(axes), tuple(body))

    def name(self, old: str) -> str:
        found = self.values.get(old)
        if found is None:
            found = self.values[old] = f"v{len(self.values)}"
        return found

    def atom(self, atom: Atom) -> Atom | None:
        """The atom's new name; ``None`` for an axis that is always zero."""
        if atom in self.atoms:
            return self.atoms[atom]
        new: Atom
        if isinstance(atom, Size):
            new = self.names.size(atom)
        elif isinstance(atom, Loaded):
            new = Loaded(self.name(atom.name), self.expr(atom.bound))
        else:
            raise KeyError(str(atom))
        self.atoms[atom] = new
        return new

    def expr(self, expr: Expr) -> Expr:
        """The expression in new names."""
        if not expr.terms:
            return expr
        total: Expr = Expr((), expr.const)
        for mono, coef in expr.terms:
            if len(mono) == 1 and not isinstance(mono[0], Div | Mod):
                atom = self.atom(mono[0])
                if atom is not None:
                    total = total + Expr((((atom,), coef),), 0)
                continue
            term: Expr = Expr((), coef)
            for old in mono:
                if isinstance(old, Div):
                    term = term * (self.expr(old.num) // self.expr(old.den))
                elif isinstance(old, Mod):
                    term = term * (self.expr(old.num) % self.expr(old.den))
                else:
                    atom = self.atom(old)
                    term = term * (0 if atom is None else _single(atom))
            total = total + term
        return total

    def equation(self, position: int, eqn: Equation) -> tuple[Equation, ...]:
        name = self.name
        if isinstance(eqn, Compute):
            ins = tuple(name(v) for v in eqn.ins)
            return (Compute(name(eqn.out), eqn.op, ins, eqn.dtype),)
        if isinstance(eqn, Load):
            index = self.expr(self.offsets[position])
            mask = name(eqn.mask) if eqn.mask else None
            return (Load(name(eqn.out), self.names.buffer(eqn.buffer), (index,), eqn.dtype, mask, eqn.fill),)
        if isinstance(eqn, Store):
            index = self.expr(self.offsets[position])
            mask = name(eqn.mask) if eqn.mask else None
            return (Store(self.names.buffer(eqn.buffer), (index,), name(eqn.value), eqn.mode, mask),)
        if isinstance(eqn, Constant):
            return (Constant(name(eqn.out), eqn.value, eqn.dtype),)
        if isinstance(eqn, Index):
            return (Index(name(eqn.out), self.expr(self.offsets[position]), eqn.dtype),)
        if isinstance(eqn, Random):
            return (Random(name(eqn.out), name(eqn.seed), eqn.stream, self.expr(self.offsets[position]), eqn.dtype),)
        if isinstance(eqn, Reduce):
            return self.reduce(eqn)
        if isinstance(eqn, Scan):
            if eqn.axis not in self.axis_names:
                if eqn.op == "sum":
                    return alone(name(eqn.out), name(eqn.value), eqn.dtype)
                return (Compute(name(eqn.out), "identity", (name(eqn.value),), eqn.dtype),)
            value = name(eqn.value)
            return (Scan(name(eqn.out), eqn.op, value, self.axis_names[eqn.axis], eqn.dtype, eqn.reverse),)
        return (Check(name(eqn.cond), eqn.message, eqn.error),)

    def reduce(self, eqn: Reduce) -> tuple[Equation, ...]:
        value = self.name(eqn.value)
        outs = tuple(self.name(v) for v in eqn.outs)
        axes = tuple(self.axis_names[a] for a in eqn.axes if a in self.axis_names)
        if axes:
            return (Reduce(outs, eqn.op, value, axes, eqn.dtype),)
        if eqn.op in ("argmax", "argmin"):
            return (Constant(outs[0], 0, eqn.dtype),)
        if eqn.op == "sum":
            return alone(outs[0], value, eqn.dtype)
        if eqn.op != "welford":
            return (Compute(outs[0], "identity", (value,), eqn.dtype),)
        return (*alone(outs[0], value, eqn.dtype), Compute(outs[1], "sub", (value, value), eqn.dtype))


def alone(out: str, value: str, dtype: str, origin: Origin = ()) -> tuple[Equation, ...]:
    """The sum of one value: a sum begins with zero, so that a negative zero becomes a positive one."""
    if not DTYPES[dtype].is_float:
        return (Compute(out, "identity", (value,), dtype, origin),)
    return (Constant(f"{out}_begin", 0.0, dtype, origin), Compute(out, "add", (f"{out}_begin", value), dtype, origin))


def _size_rank(coef: Expr) -> tuple[int, int]:
    """How large a stride is: the degree of its largest product of sizes, then the factor."""
    if coef.is_int:
        return (0, abs(coef.const))
    return max((len(mono), abs(c)) for mono, c in coef.terms)


def _single(atom: Atom) -> Expr:
    return Expr((((atom,), 1),), 0)


def _of(atom: Div | Mod) -> frozenset[Atom]:
    return frozenset(atom.num.atoms()) | frozenset(atom.den.atoms())


def _period(atom: Div | Mod, axis: Axis) -> int:
    """The largest step in which ``axis`` can be split out of a division, 1 if there is none."""
    if not atom.den.is_int or atom.num.coefficient(axis) != 1:
        return 1
    step = gcd(atom.den.const, atom.num.const)
    for mono, coef in atom.num.terms:
        if mono != (axis,):
            step = gcd(step, coef)
    return step


def _unfolded(expr: Expr, axis: Axis, slow: Expr, fast: Expr, step: int) -> Expr:
    """The expression with ``axis == slow * step + fast`` and ``0 <= fast < step``."""
    total: Expr = Expr((), expr.const)
    for mono, coef in expr.terms:
        term: Expr = Expr((), coef)
        for atom in mono:
            if atom == axis:
                term = term * (slow * step + fast)
            elif isinstance(atom, Div | Mod) and axis in _of(atom):
                rest = atom.num - as_expr(axis)
                reduced = slow + Expr(tuple((m, c // step) for m, c in rest.terms), rest.const // step)
                den = Expr((), atom.den.const // step)
                term = term * (reduced // den if isinstance(atom, Div) else reduced % den * step + fast)
            else:
                term = term * _single(atom)
        total = total + term
    return total
