"""The index expressions of programs: those of steps and declarations, and what they are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lamina.ir.access import arguments, views
from lamina.ir.index import Atom, Expr
from lamina.ir.loops import Buffer, BufferView, Index, Load, Nest, Random, SizeInput, Store

__all__ = ["atoms_of", "nest_atoms", "program_exprs", "step_exprs"]


def step_exprs(step: Any) -> Iterable[Expr]:
    """Every expression that a nest or a library call holds."""
    if isinstance(step, Nest):
        yield from (axis.extent for axis in step.axes)
        for eqn in step.body:
            if isinstance(eqn, Load | Store):
                yield from eqn.index
            elif isinstance(eqn, Index):
                yield eqn.expr
            elif isinstance(eqn, Random):
                yield eqn.index
                if isinstance(eqn.stream, Expr):
                    yield eqn.stream
    else:
        for v in views(step):
            yield from (*v.shape, *v.strides, v.offset)
        yield from (a for a in arguments(step) if isinstance(a, Expr))


def nest_atoms(nest: Nest) -> set[Atom]:
    """Every atom of a nest's index expressions."""
    return atoms_of(set(step_exprs(nest)))


def atoms_of(exprs: Iterable[Expr]) -> set[Atom]:
    """Every atom of some expressions."""
    found: set[Atom] = set()
    for e in exprs:
        if e.terms:
            found |= e.atoms()
    return found


def program_exprs(
    buffers: Iterable[Buffer],
    inputs: Iterable[str | SizeInput | None],
    outputs: Iterable[BufferView | Expr | None],
) -> Iterable[Expr]:
    """Every expression in the declarations of a program."""
    for b in buffers:
        yield from (*b.shape, *b.strides)
    yield from (i.expr for i in inputs if isinstance(i, SizeInput))
    for o in outputs:
        if isinstance(o, BufferView):
            yield from (*o.shape, *o.strides, o.offset)
        elif isinstance(o, Expr):
            yield o
