"""Copies the body of a pure producer nest into a nest that reads its result, at any index."""

from __future__ import annotations

from lamina.ir.index import Atom, Axis, Expr
from lamina.ir.loops import Compute, Constant, Equation, Load, Nest, Store, defined
from lamina.schedule.accesses import additions
from lamina.schedule.align import bare_axis
from lamina.schedule.simplify import rename, simplify

__all__ = ["Names", "inline_into"]


def inline_into(nest: Nest, buffer: str, producer: Nest, numerics: str) -> Nest | None:
    """``nest`` with every load of ``buffer`` replaced by the computation of ``producer``, which stores it.

    ``None`` when the producer's store does not name each of its axes once, or a store would add less often.
    """
    store = producer.body[-1]
    if not isinstance(store, Store) or store.buffer != buffer or any(isinstance(e, Store) for e in producer.body[:-1]):
        return None
    places: dict[Axis, int] = {}
    for k, e in enumerate(store.index):
        axis = bare_axis(e)
        if axis is None or axis in places:
            if e.terms:
                return None
            continue
        places[axis] = k
    if any(axis not in places and axis.extent != 1 for axis in producer.axes):
        return None
    body: list[Equation] = []
    names: dict[str, str] = {}
    fresh = Names(nest)
    for eqn in nest.body:
        eqn = rename(eqn, names) if names else eqn
        if isinstance(eqn, Load) and eqn.buffer == buffer:
            axes: dict[Atom, Expr | int] = {a: eqn.index[places[a]] if a in places else 0 for a in producer.axes}
            names[eqn.out] = _copy(body, producer, store, axes, eqn, fresh)
        else:
            body.append(eqn)
    changed = Nest(nest.name, nest.axes, simplify(body, numerics))
    return changed if additions(changed) == additions(nest) else None


class Names:
    """Names of values that a nest has not."""

    def __init__(self, nest: Nest) -> None:
        self.taken = {name for e in nest.body for name in defined(e)}
        self.count = len(self.taken)

    def new(self) -> str:
        """One more of them."""
        while f"v{self.count}" in self.taken:
            self.count += 1
        self.taken.add(f"v{self.count}")
        return f"v{self.count}"


def _copy(
    body: list[Equation], producer: Nest, store: Store, axes: dict[Atom, Expr | int], load: Load, fresh: Names
) -> str:
    """Append the producer's equations for one load; the name of the loaded value."""
    inner = {name: fresh.new() for e in producer.body for name in defined(e)}
    for eqn in producer.body[:-1]:
        made = rename(eqn, inner, axes)
        if isinstance(made, Load) and load.mask is not None:
            mask = load.mask
            if made.mask is not None:
                mask = fresh.new()
                body.append(Compute(mask, "and", (load.mask, made.mask), "bool", load.origin))
            made = Load(made.out, made.buffer, made.index, made.dtype, mask, made.fill, made.origin)
        body.append(made)
    value = inner[store.value]
    if load.mask is None:
        return value
    other, chosen = fresh.new(), fresh.new()
    body.append(Constant(other, load.fill, load.dtype, load.origin))
    body.append(Compute(chosen, "where", (load.mask, value, other), load.dtype, load.origin))
    return chosen
