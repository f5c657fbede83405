"""The buffers that a step loads and stores, in order, and how: what fusion counts and looks candidates up by.

``ir.access.reads`` says more: what a store under a mask or a call in place leaves as it was counts as read there, and
here as written only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from lamina.base.target import Target
from lamina.ir.access import views
from lamina.ir.index import Axis, Expr, Loaded
from lamina.ir.loops import Equation, LibraryCall, Load, Nest, Step, Store, axes_of, axes_of_values
from lamina.ir.stretches import jumps

__all__ = ["additions", "gathers", "in_stretches", "loaded", "stored"]


def loaded(step: Step) -> tuple[str, ...]:
    """Buffers that a call takes, or that a nest loads or adds to, each once."""
    if isinstance(step, LibraryCall):
        return tuple(dict.fromkeys(view.buffer for view in views(step)))
    found = (e for e in step.body if isinstance(e, Load) or (isinstance(e, Store) and e.mode != "set"))
    return tuple(dict.fromkeys(e.buffer for e in found))


def stored(step: Step) -> tuple[str, ...]:
    """Buffers that a call makes or writes in place, or those of a nest's stores, one for each store."""
    if isinstance(step, LibraryCall):
        return (*(o for o in step.outs if o is not None), *step.mutates)
    return tuple(e.buffer for e in step.body if isinstance(e, Store))


def gathers(eqn: Equation) -> bool:
    """Whether an equation loads at places that are loaded themselves."""
    return isinstance(eqn, Load) and any(isinstance(a, Loaded) for e in eqn.index for a in e.atoms())


def in_stretches(place: Expr, axis: Axis, values: Mapping[str, frozenset[str]], target: Target) -> bool:
    """Whether along ``axis`` most vectors are of elements side by side, although the places jump now and then.

    ``values`` gives the axes that each value varies over. Stretches are of two vectors of four-byte elements or more.
    """
    if any(isinstance(a, Loaded) and axis.name in values[a.name] for a in place.atoms()):
        return False
    return bool(jumps(place, axis, target.vector_bytes // 2))


def additions(nest: Nest) -> Counter[tuple[str, frozenset[str]]]:
    """The stores that add to a buffer, with the axes that each runs over.

    A store runs along an axis only if its place, mask or value varies there: ``x[zeros(2)] += 1`` adds twice, which
    it no longer does where a known number takes the place of the loaded zeros.
    """
    adding = [e for e in nest.body if isinstance(e, Store) and e.mode != "set"]
    if not adding:
        return Counter()
    varies = axes_of_values(nest)
    return Counter((e.buffer, axes_of(e, varies)) for e in adding)
