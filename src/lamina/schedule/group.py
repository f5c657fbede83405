"""A group of nests on its way to becoming one nest: what it reads and writes, and what joining two of them means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lamina.base.reasons import Reason
from lamina.ir.index import Atom, Axis, Expr, Loaded, prod
from lamina.ir.loops import (
    Buffer,
    Check,
    Compute,
    Constant,
    Equation,
    Index,
    LibraryCall,
    Load,
    Nest,
    Reduce,
    Scan,
    Store,
    axes_of_values,
    defined,
    operands,
)
from lamina.ir.ops import OPS
from lamina.schedule import reasons
from lamina.schedule.align import Alignment, bare_axis, radix
from lamina.schedule.simplify import rename, simplify

__all__ = ["Group", "StepFacts", "illegal", "join", "renamed_axes", "splits_scan"]


@dataclass(slots=True)
class StepFacts:
    """What fusion asks of a nest, computed once."""

    loads: dict[str, list[tuple[Expr, ...]]]
    stores: dict[str, list[tuple[Expr, ...]]]
    pure: bool
    reduces: bool
    scans: bool
    scatters: bool
    masked: frozenset[str]
    cost: int
    inner: bool

    @classmethod
    def of(cls, nest: Nest) -> StepFacts:
        loads: dict[str, list[tuple[Expr, ...]]] = {}
        stores: dict[str, list[tuple[Expr, ...]]] = {}
        masked: set[str] = set()
        reduces = scans = scatters = checks = False
        cost = 0
        for eqn in nest.body:
            if isinstance(eqn, Load):
                places = loads.setdefault(eqn.buffer, [])
                if eqn.index not in places:
                    places.append(eqn.index)
                if eqn.mask:
                    masked.add(eqn.buffer)
            elif isinstance(eqn, Compute):
                cost += OPS[eqn.op].cost
            elif isinstance(eqn, Store):
                stores.setdefault(eqn.buffer, []).append(eqn.index)
                scatters |= eqn.mode != "set" or eqn.mask is not None or _indirect(eqn.index)
            elif isinstance(eqn, Reduce):
                reduces = True
            elif isinstance(eqn, Scan):
                scans = True
            elif isinstance(eqn, Check):
                checks = True
            elif not isinstance(eqn, Constant | Index):
                cost += 20
        pure = not (reduces or scans or scatters or checks) and len(stores) == 1
        inner = reduces and bool(_inner_axes(nest, axes_of_values(nest)))
        return cls(loads, stores, pure, reduces, scans, scatters, frozenset(masked), cost, inner)


def _indirect(index: tuple[Expr, ...]) -> bool:
    return any(isinstance(a, Loaded) for e in index if e.terms for a in e.atoms())


@dataclass(slots=True)
class Group:
    """One future kernel, or a library call. ``number`` is its bit in the ancestor masks.

    ``raises``: it may end in an error; ``updates``: it writes to an input in a CPU's memory.
    """

    number: int
    nest: Nest | None
    call: LibraryCall | None
    reads: set[str]
    writes: set[str]
    facts: StepFacts | None = None
    deps: set[int] = field(default_factory=set)
    ancestors: int = 0
    raises: bool = False
    updates: bool = False

    @property
    def name(self) -> str:
        """The nest's or the call's name."""
        found = self.nest if self.nest is not None else self.call
        assert found is not None
        return found.name

    @property
    def described(self) -> str:
        """What it is and what it is called, for a sentence."""
        return f"the loops {self.name}" if self.call is None else f"the call of {self.call.op} ({self.call.name})"


def renamed_axes(names: tuple[str, ...], axes: Iterable[Axis], mapping: Mapping[Atom, Expr | int]) -> tuple[str, ...]:
    """Names of reduced axes after substitution: an axis may have become one axis or several."""
    by_name = {a.name: a for a in axes}
    result: list[str] = []
    for name in names:
        target = mapping.get(by_name[name])
        if target is None:
            result.append(name)
            continue
        assert isinstance(target, Expr)
        parts = radix(target)
        assert parts is not None
        result += [p.name for p in parts]
    return tuple(result)


def splits_scan(nest: Nest, mapping: Mapping[Atom, Expr | int]) -> bool:
    """Whether the axis of a scan would become several: a running sum knows one direction."""
    scanned = {eqn.axis for eqn in nest.body if isinstance(eqn, Scan)}
    return any(len(renamed_axes((name,), nest.axes, mapping)) != 1 for name in scanned)


def _moved(nest: Nest, mapping: Mapping[Atom, Expr | int], prefix: dict[str, str]) -> list[Equation]:
    """The body in the common space, with fresh value names."""
    result: list[Equation] = []
    axes = dict(mapping)
    for eqn in nest.body:
        made = rename(eqn, prefix, axes)
        if isinstance(made, Reduce) and axes:
            names = renamed_axes(made.axes, nest.axes, axes)
            made = Reduce(made.outs, made.op, made.value, names, made.dtype, made.origin)
        elif isinstance(made, Scan) and axes:
            (name,) = renamed_axes((made.axis,), nest.axes, axes)
            made = Scan(made.out, made.op, made.value, name, made.dtype, made.reverse, made.origin)
        result.append(made)
    return result


def _numbered(body: Iterable[Equation], start: int) -> dict[str, str]:
    names: dict[str, str] = {}
    for eqn in body:
        for name in defined(eqn):
            names[name] = f"v{start + len(names)}"
    return names


def join(first: Nest, second: Nest, found: Alignment, numerics: str) -> Nest:
    """One nest that does ``first`` and then ``second`` in the aligned space.

    Loads of what ``first`` stores become uses of the stored value.
    """
    names_first = _numbered(first.body, 0)
    names_second = _numbered(second.body, len(names_first))
    body = _moved(first, found.left, names_first)
    stored: dict[tuple[str, tuple[Expr, ...]], str] = {}
    for eqn in body:
        if isinstance(eqn, Store):
            stored[eqn.buffer, eqn.index] = eqn.value
    forwarded: dict[str, str] = {}
    for eqn in _moved(second, found.right, names_second):
        eqn = rename(eqn, forwarded) if forwarded else eqn
        if isinstance(eqn, Load):
            value = stored.get((eqn.buffer, eqn.index))
            if value is not None and eqn.mask is None:
                forwarded[eqn.out] = value
                continue
        body.append(eqn)
    return Nest(first.name, found.axes, simplify(body, numerics))


def illegal(nest: Nest, buffers: Mapping[str, Buffer], fresh: bool, parts: Sequence[Nest] = ()) -> Reason | None:
    """Why the nest cannot be one kernel, or ``None``.

    All reductions whose results are used further inside the nest must reduce the same axes (the inner loops); the
    others may only end in stores. A buffer that is both read and written is touched at one index only, not beside
    reductions, and what is computed from it is not stored at more points than it has elements. ``fresh``: the use of a
    reduction inside is new, so the reduced axes must hold the fastest axis of the largest operand. ``parts`` are the
    nests that were joined: the order in which they read memory must not be lost either.
    """
    varies = axes_of_values(nest)
    reduces = [e for e in nest.body if isinstance(e, Reduce)]
    scans = [e for e in nest.body if isinstance(e, Scan)]
    if scans and reduces:
        return reasons.SCAN_BESIDE_REDUCTION()
    if len({(e.axis, e.reverse) for e in scans}) > 1:
        return reasons.SCANS_DIFFER()
    used = _inner_axes(nest, varies)
    if len(used) > 1:
        return reasons.INNER_AXES_DIFFER()
    inner = next(iter(used), None)
    ends = {frozenset(r.axes) for r in reduces} - ({inner} if inner is not None else set())
    if len(ends) > (1 if inner is not None else 2):
        return reasons.TOO_MANY_REDUCED_SETS()
    sets = ends | ({inner} if inner is not None else set())
    if len(sets) > 1 and not any(_holds_fast_axis(nest, axes, buffers) for axes in sets):
        return reasons.NO_FAST_AXIS_REDUCED()
    torn = inner is not None and _torn(nest, inner, buffers, read_once=len(sets) == 1)
    if inner is not None:
        holds = _holds_fast_axis(nest, inner, buffers)
        if (
            (torn or not (holds or _held_columns(nest, inner, buffers)))
            if fresh
            else _loses_order(parts, torn and len(sets) > 1, holds, buffers)
        ):
            return reasons.READS_IN_BETTER_ORDER()
    return _rewrites(nest, bool(reduces or scans), varies)


def _loses_order(parts: Sequence[Nest], torn: bool, holds: bool, buffers: Mapping[str, Buffer]) -> bool:
    """Whether one of the nests reads its operands along what it reduces, and joined it would not.

    A softmax, and a product of its result with rows that lie along another axis; products of one row, where the result
    of the first is summed over by the second.
    """
    for part in parts:
        for inner in _inner_axes(part, axes_of_values(part)):
            if (torn and not _torn(part, inner, buffers, read_once=False)) or (
                not holds and _holds_fast_axis(part, inner, buffers)
            ):
                return True
    return False


def _inner_axes(nest: Nest, varies: Mapping[str, frozenset[str]]) -> set[frozenset[str]]:
    """The sets of axes reduced by reductions whose results are used inside the nest."""
    return {frozenset(e.axes) for e in nest.body if isinstance(e, Reduce) and _used_inside(nest, e, varies)}


def _rewrites(nest: Nest, phases: bool, varies: Mapping[str, frozenset[str]]) -> Reason | None:
    """Why what the nest reads of a buffer that it writes may not be what was there before, or ``None``."""
    stores: dict[str, set[tuple[Expr, ...]]] = {}
    for eqn in nest.body:
        if isinstance(eqn, Store):
            stores.setdefault(eqn.buffer, set()).add(eqn.index)
    for eqn in nest.body:
        if not isinstance(eqn, Load) or eqn.buffer not in stores:
            continue
        if phases or stores[eqn.buffer] != {eqn.index}:
            return reasons.OVERWRITES_OTHER_POINTS()
        if _used_at_more_points(nest, eqn, varies):
            return reasons.OVERWRITES_SHARED_POINT()
    return None


def _used_at_more_points(nest: Nest, load: Load, varies: Mapping[str, frozenset[str]]) -> bool:
    """Whether what is computed from an element is stored or checked over axes that its index does not have.

    A store whose index lacks an axis runs at the first point along it; later points would read the new value.
    """
    repeated = {a.name for a in nest.axes if a.extent != 1} - {a for e in load.index for a in e.axes()}
    if not repeated:
        return False
    reach = {load.out}
    for eqn in nest.body:
        if not reach.intersection(operands(eqn)):
            continue
        reach.update(defined(eqn))
        if isinstance(eqn, Store | Check):
            places = {a for e in eqn.index for a in e.axes()} if isinstance(eqn, Store) else set()
            if repeated & places.union(*(varies[name] for name in operands(eqn))):
                return True
    return False


def _used_inside(nest: Nest, reduce: Reduce, varies: Mapping[str, frozenset[str]]) -> bool:
    reach = set(reduce.outs)
    over = set(reduce.axes)
    started = False
    for eqn in nest.body:
        if eqn is reduce:
            started = True
            continue
        if not started or not any(name in reach for name in operands(eqn)):
            continue
        if isinstance(eqn, Reduce | Scan):
            return True
        if isinstance(eqn, Store | Check):
            touched = set().union(*(varies[n] for n in operands(eqn)))
            index_axes = {a for e in eqn.index for a in e.axes()} if isinstance(eqn, Store) else set()
            if over & (touched | index_axes):
                return True
            continue
        for name in defined(eqn):
            if over & varies[name]:
                return True
            reach.add(name)
    return False


_PERSISTENT = 1 << 14
"""Reduced points that are read once and kept."""


def _held_columns(nest: Nest, inner: frozenset[str], buffers: Mapping[str, Buffer]) -> bool:
    """Whether programs of a GPU hold whole columns, 32 side by side, so that what is reduced is read once: a norm over
    an image's channels. There must be enough columns, as such a reduction is no more divided among programs.
    """
    if not all(a.extent.is_int for a in nest.axes):
        return False
    if not _on_gpu(nest, buffers):
        return False
    reduced, kept = (prod(a.extent for a in nest.axes if (a.name in inner) == side).const for side in (True, False))
    return 32 * reduced <= _PERSISTENT <= kept


def _on_gpu(nest: Nest, buffers: Mapping[str, Buffer]) -> bool:
    return all(buffers[e.buffer].on_gpu for e in nest.body if isinstance(e, Load | Store))


def _torn(nest: Nest, inner: frozenset[str], buffers: Mapping[str, Buffer], read_once: bool) -> bool:
    """Whether reductions take some of the largest operands along their fast axis and others across it.

    Where the points are few and ``read_once``, a tile holds them all, whatever their layout.
    """
    extents = [a.extent for a in nest.axes if a.name in inner]
    if read_once and all(n.is_int for n in extents) and prod(extents).const <= _PERSISTENT:
        return False
    sides: set[bool] = set()
    loads = [e for e in nest.body if isinstance(e, Load)]
    varies = axes_of_values(nest) if _on_gpu(nest, buffers) else {}
    most = max((len(_axes_of(e, varies)) for e in loads), default=0)
    for eqn in loads:
        if len(_axes_of(eqn, varies)) < most:
            continue
        for e, stride in zip(eqn.index, buffers[eqn.buffer].strides, strict=True):
            axis = bare_axis(e - e.const) if stride == 1 else None
            if axis is not None and axis.extent != 1:
                sides.add(axis.name in inner)
    return len(sides) == 2


def _axes_of(eqn: Load, varies: Mapping[str, frozenset[str]]) -> set[str]:
    """The axes along which a load reads other elements; a gathered row is another one for each of its places.

    On CPUs ``varies`` is empty: places are read, and checked, once for many points (``hoist``).
    """
    places = (varies[a.name] for e in eqn.index for a in e.atoms() if isinstance(a, Loaded) and a.name in varies)
    return {a for e in eqn.index for a in e.axes()}.union(*places)


def _holds_fast_axis(nest: Nest, inner: frozenset[str], buffers: Mapping[str, Buffer]) -> bool:
    best, fast = -1, True
    varies = axes_of_values(nest) if _on_gpu(nest, buffers) else {}
    for eqn in nest.body:
        if not isinstance(eqn, Load):
            continue
        axes = _axes_of(eqn, varies)
        if len(axes) <= best:
            continue
        for e, stride in zip(eqn.index, buffers[eqn.buffer].strides, strict=True):
            if stride == 1:
                axis = bare_axis(e - e.const)
                parts = (axis,) if axis is not None else radix(e - e.const)
                if parts:
                    best, fast = len(axes), parts[-1].name in inner
    return fast
