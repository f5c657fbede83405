"""What scheduling preserves: how often a program adds to its buffers, and at how many places it sets those that last.

A store runs once for each point of the axes that it varies over. Joined, narrowed, split, unrolled or flat, the loops
around it may not change how many these are in all: an axis that is lost adds once what was to be added often, and one
that is cut short leaves elements as they were. Neither breaks any other rule of the loop IR.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lamina.errors import InvalidIR
from lamina.ir.access import reads, writes
from lamina.ir.index import Atom, Div, Expr, Loaded, Mod, Size, as_expr, prod
from lamina.ir.loops import LoopProgram, Nest, Origin, Step, Store, axes_of, axes_of_values

__all__ = ["verify_kernel", "verify_same_stores"]


@dataclass(slots=True)
class _Points:
    """Points at which stores run.

    ``added`` and ``adds``: of those that add, by their origin and by their buffer. ``sets``: of those that set, by
    their buffer. ``targets``: the buffers that the stores of an origin add to. ``masked``: the origins and buffers of
    stores that run at some of their points only.
    """

    added: dict[Origin, Expr] = field(default_factory=dict)
    targets: dict[Origin, set[str]] = field(default_factory=dict)
    adds: dict[str, Expr] = field(default_factory=dict)
    sets: dict[str, Expr] = field(default_factory=dict)
    masked: set[Origin | str] = field(default_factory=set)


def verify_same_stores(before: LoopProgram, after: LoopProgram, in_place: Collection[str] = ()) -> None:
    """Raise ``InvalidIR`` where ``after``, made of ``before``, adds more or less often, or sets more or fewer places.

    Stores that add are known by their origin, since their buffers may be renamed; those that set by their buffer, of
    those that last. ``in_place`` are buffers of which a part is written where all of it was.
    """
    was, now = (_points(one.steps, {b.name for b in one.buffers if b.kind != "input"}) for one in (before, after))
    used = {b.name for b in after.buffers if b.kind != "temp"}.union(*map(reads, after.steps)) if was.added else set()
    for origin in was.added.keys() | now.added.keys():
        if origin not in now.added and used.isdisjoint(was.targets[origin]):
            continue  # what is added is not read
        how = f"the stores of {', '.join(origin)} add"
        _same(
            before.name, how, was.added.get(origin), now.added.get(origin), origin in was.masked, origin in now.masked
        )
    lasting = {b.name for b in before.buffers if b.kind != "temp"} & {b.name for b in after.buffers}
    called = {name for step in before.steps if not isinstance(step, Nest) for name in writes(step)}
    for name in sorted((lasting & (was.sets.keys() | (now.sets.keys() - called))) - {*in_place}):
        how = f"stores set {name}"
        _same(before.name, how, was.sets.get(name), now.sets.get(name), name in was.masked, name in now.masked)


def verify_kernel(nests: Sequence[Nest], flat: Sequence[Nest], buffers: Sequence[str], sizes: Sequence[Expr]) -> None:
    """Raise ``InvalidIR`` where the ``flat`` nests of a kernel do not store as often as the ``nests`` they stand for.

    ``buffers[k]`` is called ``b<k>`` in them, and ``sizes[k]`` is ``s<k>``.
    """
    was, now = _points(nests), _points(flat)
    names = {f"s{k}": size for k, size in enumerate(sizes)}
    for how, before, after in (("add to", was.adds, now.adds), ("set", was.sets, now.sets)):
        found = {buffers[int(name[1:])]: _named(points, names) for name, points in after.items()}
        for name in before.keys() | found.keys():
            masked = name in was.masked, any(buffers[int(b[1:])] == name for b in now.masked if isinstance(b, str))
            _same(nests[0].name, f"stores {how} {name}", before.get(name), found.get(name), *masked)


def _points(steps: Sequence[Step], made: Collection[str] = ()) -> _Points:
    result = _Points()
    uniform = _uniform(steps, made) if any(e.mode == "set" and _gathers(e) for e in _stores(steps)) else ()
    for step in steps:
        if not isinstance(step, Nest):
            continue
        stores = _stores([step])
        varies = axes_of_values(step, uniform) if any(e.mode != "set" or _gathers(e) for e in stores) else {}
        for eqn in stores:
            along = _along_place(eqn, varies) if eqn.mode == "set" else axes_of(eqn, varies)
            points = prod(a.extent for a in step.axes if a.name in along)
            if eqn.mask is not None:
                result.masked |= {eqn.buffer, eqn.origin}
            if eqn.mode == "set":
                result.sets[eqn.buffer] = result.sets.get(eqn.buffer, as_expr(0)) + points
                continue
            result.adds[eqn.buffer] = result.adds.get(eqn.buffer, as_expr(0)) + points
            result.added[eqn.origin] = result.added.get(eqn.origin, as_expr(0)) + points
            result.targets.setdefault(eqn.origin, set()).add(eqn.buffer)
    return result


def _stores(steps: Iterable[Step]) -> list[Store]:
    return [e for step in steps if isinstance(step, Nest) for e in step.body if isinstance(e, Store)]


def _uniform(steps: Sequence[Step], made: Collection[str]) -> set[str]:
    """The ``made`` buffers whose elements are all set to one value: loads of them may have become that value."""
    written = Counter(e.buffer for e in _stores(steps))
    written.update(name for step in steps if not isinstance(step, Nest) for name in writes(step))
    found: set[str] = set()
    for step in steps:
        varies = axes_of_values(step, found) if isinstance(step, Nest) else {}
        for eqn in _stores([step]):
            once = eqn.buffer in made and written[eqn.buffer] == 1 and eqn.mode == "set" and eqn.mask is None
            if once and not varies[eqn.value] and not _gathers(eqn):
                found.add(eqn.buffer)
    return found


def _along_place(store: Store, varies: Mapping[str, frozenset[str]]) -> set[str]:
    """The axes that the place of a store varies over: along others it sets that place again."""
    found = {name for e in store.index for name in e.axes()}
    return found.union(*(varies[name] for name in _computed(store)))


def _computed(store: Store) -> list[str]:
    return [a.name for e in store.index if e.terms for a in e.atoms() if isinstance(a, Loaded)]


def _gathers(store: Store) -> bool:
    """Whether the place of a store is computed, so that it runs along the axes of values."""
    return bool(_computed(store))


def _named(points: Expr, names: Mapping[str, Expr]) -> Expr:
    mapping: dict[Atom, Expr | int] = {a: names[a.name] for a in points.atoms() if isinstance(a, Size)}
    return points.substitute(mapping) if mapping else points


def _same(
    where: str, what: str, before: Expr | None, after: Expr | None, masked_before: bool, masked_after: bool
) -> None:
    """Fail where two numbers of points certainly differ.

    Of a store with a mask its points are the most that it runs at: loops in parts of which the last is not full have
    more points than elements. No store at all is fewer than any.
    """
    if before == after or (masked_before and after is not None):
        return
    gap = (as_expr(0) if before is None else before) - (as_expr(0) if after is None else after)
    if gap == 0 or any(isinstance(a, Div | Mod) for a in gap.atoms()):
        return
    if masked_after and before is not None and (gap.terms or gap.const < 0):
        return
    raise InvalidIR(f"{where}: {what} at {before or 'no'} points before scheduling and at {after or 'no'} after it")
