"""Which axis counts as the fast one where operands are contiguous along different axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lamina.ir.loops import Check, Nest, Reduce, Scan, Store, axes_of_values, defined, operands

__all__ = ["kept_instead"]

_NARROW = 32
"""Points of a run that are too few for a tile's side."""


def kept_instead(
    nest: Nest, runs: Iterable[tuple[frozenset[str], str, int]], score: Mapping[str, int], best: str | None
) -> str | None:
    """``best``, or the axis to take for it in a nest of sums alone: one that is kept and contiguous for some operands.

    ``score`` says how many bytes are contiguous along each axis, ``runs`` of which accesses: the axes that one varies
    over, the one that it is contiguous along, and its bytes. Programs that own a few columns and go along the reduced
    axes in tiles read both kinds of operands wide; those that own whole rows would read one kind element by element
    (batch norm's backward, with a gradient in one layout and an image in another). What does not vary over the reduced
    axes is read or written once, and says nothing: the results themselves.
    """
    sets = {frozenset(e.axes) for e in nest.body if isinstance(e, Reduce)}
    if best is None or len(sets) != 1 or any(isinstance(e, Scan | Check) for e in nest.body):
        return best
    (over,) = sets
    if best not in over or _goes_on(nest, over):
        return best
    beside: dict[str, int] = {}
    for axes, along, nbytes in runs:
        if axes & over:
            beside[along] = beside.get(along, 0) + nbytes
    kept = [a.name for a in nest.axes if a.name not in over and (not a.extent.is_int or a.extent.const >= _NARROW)]
    other = max(kept, key=lambda a: beside.get(a, 0), default=None)
    return other if other is not None and 4 * beside.get(other, 0) >= score[best] else best


def _goes_on(nest: Nest, over: frozenset[str]) -> bool:
    """Whether anything beside the sums varies over the reduced axes: a store, or what uses a sum."""
    varies = axes_of_values(nest)
    made: set[str] = set()
    for eqn in nest.body:
        if isinstance(eqn, Store):
            if over & {a for e in eqn.index for a in e.axes()} or any(over & varies[n] for n in operands(eqn)):
                return True
        elif isinstance(eqn, Reduce) or made & set(operands(eqn)):
            if made & set(operands(eqn)) and (isinstance(eqn, Reduce) or any(over & varies[n] for n in defined(eqn))):
                return True
            made |= set(defined(eqn))
    return False
