"""The fast axis of a nest on a GPU: which one it is where operands are contiguous along different axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lamina.ir.index import Axis, Expr
from lamina.ir.loops import Check, Nest, Reduce, Scan, Store, axes_of_values, defined, operands
from lamina.schedule.gpu_work import SECTOR

__all__ = ["Run", "fast_of", "near_step"]

_NARROW = 32
"""Points of a run that are too few for a tile's side."""


Run = tuple[frozenset[str], str, int]
"""An access that is contiguous along an axis: the axes that it varies over, that axis, and its bytes."""


def near_step(expr: Expr, axes: Iterable[Axis]) -> str | None:
    """The axis along which an access takes its smallest step, if one sector holds several 32-bit elements of it.

    So does one of a tensor of which every second element is taken; of several axes in equal steps it is none.
    """
    steps = {a.name: abs(step.const) for a in axes if (step := expr.coefficient(a)) is not None and step.is_int}
    steps = {name: step for name, step in steps.items() if step}
    least = min(steps, key=steps.__getitem__, default=None)
    if least is None or 4 * steps[least] > SECTOR or sum(step == steps[least] for step in steps.values()) > 1:
        return None
    return least


def fast_of(nest: Nest, runs: Iterable[Run], near: Iterable[Run] = ()) -> str | None:
    """The axis along which most of the bytes are contiguous; ``None`` where nothing is.

    Where a nest reduces the same axes everywhere, what does not vary over them says nothing: it is read or written
    once. Such a nest with no other contiguous access goes along the axis of those that are ``near``ly so, by
    ``near_step``, or along what it reduces (places that are computed, as a roll's, are nearly contiguous there).
    """
    sets = {frozenset(e.axes) for e in nest.body if isinstance(e, Reduce)}
    over = next(iter(sets)) if len(sets) == 1 else frozenset[str]()
    names = [a.name for a in nest.axes]

    def scored(found: Iterable[Run]) -> dict[str, int]:
        score: dict[str, int] = {}
        for axes, along, nbytes in found:
            if not over or axes & over:
                score[along] = score.get(along, 0) + nbytes
        return score

    score = scored(runs) or (scored(near) if over else {})
    if not score:
        return next((name for name in reversed(names) if name in over), None)
    best = max(score, key=lambda name: (score[name], names.index(name)))
    if best not in over or any(isinstance(e, Scan | Check) for e in nest.body) or _goes_on(nest, over):
        return best
    return _kept_instead(nest, over, score, best)


def _kept_instead(nest: Nest, over: frozenset[str], score: Mapping[str, int], best: str) -> str:
    """``best``, or the axis to take for it in a nest of sums alone: one that is kept and contiguous for some operands.

    Programs that own a few columns and go along the reduced axes in tiles read both kinds of operands wide; those that
    own whole rows would read one kind element by element (batch norm's backward, with a gradient in one layout and an
    image in another).
    """
    kept = [a.name for a in nest.axes if a.name not in over and (not a.extent.is_int or a.extent.const >= _NARROW)]
    other = max(kept, key=lambda a: score.get(a, 0), default=None)
    return other if other is not None and 4 * score.get(other, 0) >= score[best] else best


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
