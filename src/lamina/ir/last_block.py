"""Last-block reductions: how the axes of two nests correspond, the second of which joins partial results of the first.

Both run in one launch. Programs of the first nest store partial results; the last program to finish one for a result
runs the second nest's program for that result. Both nests must agree on which programs work on which result.
"""

from __future__ import annotations

from lamina.ir.index import Axis, Expr
from lamina.ir.loops import Check, Load, Nest, Random, Reduce, Scan, Store

__all__ = ["Pairs", "paired_axes", "partial_axes"]

Pairs = dict[str, tuple[str, ...]]
"""For each axis of the second nest the axes of the first that it stands for, slowest first."""


def paired_axes(first: Nest, second: Nest) -> Pairs | None:
    """How the second nest's axes are made of the first's, by the buffers that one stores and the other loads.

    None where some axis is not, where they are made in different ways, or where the second nest would change what
    other programs of the first still read.
    """
    if any(isinstance(e, Check | Random | Scan) for e in (*first.body, *second.body)):
        return None
    stores = [e for e in first.body if isinstance(e, Store)]
    stored = {e.buffer: e for e in stores}
    loads = [e for e in second.body if isinstance(e, Load) and e.buffer in stored]
    written = {e.buffer for e in second.body if isinstance(e, Store)}
    touched = {e.buffer for e in first.body if isinstance(e, Load | Store)}
    if not loads or written & touched:
        return None
    plain = all(e.mode == "set" and e.mask is None for e in (*stores, *second.body) if isinstance(e, Store))
    if not plain or len(stored) != len(stores):
        return None
    found: Pairs | None = None
    for load in loads:
        pairs = None if load.mask is not None else _pairs(stored[load.buffer].index[0], load.index[0])
        if pairs is None or (found is not None and found != pairs):
            return None
        found = pairs
    return found if found is not None and found.keys() == {a.name for a in second.axes} else None


def partial_axes(second: Nest) -> frozenset[str]:
    """The axes that all reductions of the second nest are over; none where they differ."""
    sets = {frozenset(e.axes) for e in second.body if isinstance(e, Reduce)}
    return next(iter(sets)) if len(sets) == 1 else frozenset()


def _pairs(stored: Expr, loaded: Expr) -> Pairs | None:
    """The loaded places' axes as runs of the stored places' axes."""
    ours, theirs = _steps(stored), _steps(loaded)
    if ours is None or theirs is None or stored.const != loaded.const:
        return None
    pairs: Pairs = {}
    for step, axis in sorted(theirs.items()):
        names: list[str] = []
        count = 1
        while count < axis.extent.const:
            part = ours.pop(step * count, None)
            if part is None:
                return None
            names.insert(0, part.name)
            count *= part.extent.const
        if count != axis.extent.const:
            return None
        pairs[axis.name] = tuple(names)
    return None if ours else pairs


def _steps(place: Expr) -> dict[int, Axis] | None:
    """The axes of a linear place by their steps; None where it is not linear or lengths are unknown."""
    found: dict[int, Axis] = {}
    for atom in place.atoms():
        if not isinstance(atom, Axis) or not atom.extent.is_int:
            return None
        step = place.coefficient(atom)
        if step is None or not step.is_int or step.const <= 0 or step.const in found:
            return None
        found[step.const] = atom
    return found
