"""Flat nests that differ only in their buffers and their length, as one nest and what each puts in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lamina.ir.index import Axis, Expr, Size, as_expr
from lamina.ir.loops import Check, Equation, Index, Load, Nest, Random, Reduce, Scan, Store

__all__ = ["Form", "Grouped", "form", "grouped"]


@dataclass(frozen=True, slots=True)
class Form:
    """A nest in the names ``b0, b1, ...`` and the length ``s0``; ``buffers`` and ``length`` are its own, in order.

    ``length`` is ``None`` for a nest without axes.
    """

    nest: Nest
    buffers: tuple[str, ...]
    length: int | None


@dataclass(frozen=True, slots=True)
class Grouped:
    """Nests of one form: the form's nest, and for each nest its buffers and its length."""

    nest: Nest
    buffers: tuple[tuple[str, ...], ...]
    lengths: tuple[int | None, ...]


def form(nest: Nest) -> Form | None:
    """The form of a flat nest of at most one axis of known length; ``None`` where it has none."""
    if len(nest.axes) > 1 or any(isinstance(e, Reduce | Scan | Check | Random) for e in nest.body):
        return None
    names: dict[str, str] = {}
    length: int | None = None
    axes: tuple[Axis, ...] = ()
    old: Axis | None = None
    if nest.axes:
        (old,) = nest.axes
        if not old.extent.is_int:
            return None
        length = old.extent.const
        axes = (Axis(old.name, as_expr(Size("s0", 1))),)
    body: list[Equation] = []
    for eqn in nest.body:
        if isinstance(eqn, Index):
            if eqn.expr.terms:
                return None
        elif isinstance(eqn, Load | Store):
            index: list[Expr] = []
            for expr in eqn.index:
                if expr.terms and (old is None or expr.atoms() != {old}):
                    return None
                index.append(expr.substitute({old: as_expr(axes[0])}) if old is not None else expr)
            name = names.setdefault(eqn.buffer, f"b{len(names)}")
            eqn = replace(eqn, buffer=name, index=tuple(index))
        body.append(eqn)
    return Form(Nest("nest", axes, tuple(body)), tuple(names), length)


def grouped(nests: Sequence[Nest]) -> Grouped | None:
    """The nests as one form, if they have the same; ``None`` for fewer than two."""
    if len(nests) < 2:
        return None
    first = form(nests[0])
    if first is None:
        return None
    forms = [first]
    for nest in nests[1:]:
        found = form(nest)
        if found is None or found.nest != first.nest:
            return None
        forms.append(found)
    return Grouped(first.nest, tuple(f.buffers for f in forms), tuple(f.length for f in forms))
