"""Values of a buffer as nests over its own dimensions: one for all of it, or one for each piece along a dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lamina.ir.index import Atom, Axis, Expr, as_expr, prod
from lamina.ir.loops import (
    Buffer,
    Check,
    Compute,
    Constant,
    Equation,
    Index,
    Load,
    Nest,
    Store,
    defined,
    operands,
)
from lamina.schedule.align import bare_axis, radix
from lamina.schedule.inline import Names
from lamina.schedule.simplify import rename

__all__ = ["Piece", "Stored", "chosen", "pieces"]

_MOST_PIECES = 4
"""Pieces of a concatenation that are read one by one at most; each copies the reader's body."""

Stored = Mapping[str, Load]
"""Values of a nest that it also stores, and how they are read."""


_Parts = list[tuple[int, int] | None]
"""Of each dimension the first place and the number of those written; ``None`` for all."""
_Found = tuple[int, _Parts, Nest]


@dataclass(frozen=True, slots=True)
class Piece:
    """What one store writes: from place ``start`` along the dimension on, ``extent`` of them.

    ``producer`` computes it and stores it to a buffer of its own, whose name is ``buffer``; ``writer`` is the place
    among the nests of the one that does so now.
    """

    start: int
    extent: int
    buffer: str
    producer: Nest
    writer: int


def pieces(buffer: Buffer, nests: Sequence[Nest], stored: Sequence[Stored]) -> tuple[int, list[Piece]] | None:
    """The dimension along which ``nests`` write the buffer in pieces, and these in order; one piece is all of it.

    ``None`` where a value is not computed at each place on its own, apart from those in ``stored``, or where the
    pieces are not known to be side by side.
    """
    found: list[_Found] = []
    for writer, (nest, values) in enumerate(zip(nests, stored, strict=True)):
        for eqn in nest.body:
            if isinstance(eqn, Store) and eqn.buffer == buffer.name:
                made = _producer(nest, eqn, buffer, values)
                if made is None:
                    return None
                found.append((writer, *made))
    if len(found) > 1:
        return _side_by_side(buffer, found)
    ((writer, parts, producer),) = found
    return (0, [Piece(0, 0, buffer.name, producer, writer)]) if all(p is None for p in parts) else None


def _side_by_side(buffer: Buffer, found: Sequence[_Found]) -> tuple[int, list[Piece]] | None:
    dims = {dim for _, parts, _ in found for dim, part in enumerate(parts) if part is not None}
    if len(dims) != 1 or len(found) > _MOST_PIECES:
        return None
    (dim,) = dims
    result: list[Piece] = []
    for number, (writer, parts, producer) in enumerate(found):
        part, name = parts[dim], f"{buffer.name}_part{number}"
        if part is None:
            return None
        result.append(Piece(*part, name, _retargeted(producer, dim, name), writer))
    result.sort(key=lambda p: p.start)
    end = 0
    for piece in result:
        if piece.start != end:
            return None
        end += piece.extent
    return (dim, result) if buffer.shape[dim] == end else None


def _retargeted(nest: Nest, dim: int, name: str) -> Nest:
    """The nest storing to a buffer of the piece's own, whose first place along ``dim`` is zero."""
    store = nest.body[-1]
    assert isinstance(store, Store)
    index = tuple(e - e.const if k == dim else e for k, e in enumerate(store.index))
    return Nest(nest.name, nest.axes, (*nest.body[:-1], replace(store, buffer=name, index=index)))


def _producer(nest: Nest, store: Store, buffer: Buffer, stored: Stored) -> tuple[_Parts, Nest] | None:
    """What of each dimension the store writes, unless it is all of it, and a nest over dimensions that does only it."""
    body = _slice(nest, store, stored)
    if body is None or store.mode != "set" or store.mask is not None:
        return None
    parts: _Parts = []
    mapping: dict[Atom, Expr | int] = {}
    axes: list[Axis] = []
    index: list[Expr] = []
    for dim, (e, n) in enumerate(zip(store.index, buffer.shape, strict=True)):
        if not e.terms and n == 1:
            parts.append(None)
            index.append(e)
            continue
        inner = e - e.const
        along = (axis,) if (axis := bare_axis(inner)) is not None else radix(inner) if inner.terms else ()
        if along is None or any(a in mapping for a in along):
            return None
        extent = prod(a.extent for a in along)
        if extent == n:
            parts.append(None)
        elif extent.is_int:
            parts.append((e.const, extent.const))
        else:
            return None
        if along:
            axes.append(Axis(f"d{dim}", extent))
            _take_apart(axes[-1], along, mapping)
            index.append(as_expr(axes[-1]) + e.const)
        else:
            index.append(e)
    if any(a not in mapping and a.extent != 1 for a in nest.axes):
        return None
    mapping |= {a: 0 for a in nest.axes if a not in mapping}
    moved = [rename(eqn, {}, mapping) for eqn in body]
    moved.append(replace(store, index=tuple(index)))
    return parts, Nest(nest.name, tuple(axes), tuple(moved))


def _take_apart(whole: Axis, along: Sequence[Axis], mapping: dict[Atom, Expr | int]) -> None:
    """Where in ``along`` each place of ``whole`` is, their row-major number."""
    inner = as_expr(1)
    for number, axis in enumerate(reversed(along)):
        place = as_expr(whole) // inner
        mapping[axis] = place if number == len(along) - 1 else place % axis.extent
        inner = inner * axis.extent


def _slice(nest: Nest, store: Store, stored: Stored) -> list[Equation] | None:
    """The equations that the stored value needs; ``None`` where those are more than arithmetic at each point."""
    needed = set(operands(store))
    body: list[Equation] = []
    written = {e.buffer for e in nest.body if isinstance(e, Store)}
    for eqn in reversed(nest.body):
        if isinstance(eqn, Check):
            return None  # what it guards is to be read after it only
        if isinstance(eqn, Store) or needed.isdisjoint(defined(eqn)):
            continue
        if isinstance(eqn, Compute) and eqn.out in stored:
            body.append(stored[eqn.out])
            continue
        if not isinstance(eqn, Load | Compute | Constant | Index):
            return None
        if isinstance(eqn, Load) and eqn.buffer in written:
            return None
        needed.update(operands(eqn))
        body.append(eqn)
    return body[::-1]


def chosen(nest: Nest, name: str, dim: int, parts: Sequence[Piece]) -> Nest:
    """``nest`` reading each place of ``name`` from the piece that it is in."""
    if len(parts) == 1:
        return nest
    body: list[Equation] = []
    fresh = Names(nest)
    for eqn in nest.body:
        if isinstance(eqn, Load) and eqn.buffer == name:
            body += _choice(eqn, dim, parts, fresh)
        else:
            body.append(eqn)
    return Nest(nest.name, nest.axes, tuple(body))


def _choice(load: Load, dim: int, parts: Sequence[Piece], fresh: Names) -> list[Equation]:
    """Loads of all pieces, each under the condition that the place is in it, and the choice among them."""
    place, origin = fresh.new(), load.origin
    body: list[Equation] = [Index(place, load.index[dim], "int64", origin)]
    before: list[str] = []
    after: list[str] = []
    for piece in parts[1:]:
        bound = fresh.new()
        body.append(Constant(bound, piece.start, "int64", origin))
        for names, op in ((before, "lt"), (after, "ge")):
            names.append(fresh.new())
            body.append(Compute(names[-1], op, (place, bound), "bool", origin))
    values: list[str] = []
    for number, piece in enumerate(parts):
        conditions = [*after[number - 1 : number], *before[number : number + 1], *([load.mask] if load.mask else [])]
        mask = conditions[0]
        for other in conditions[1:]:
            body.append(Compute(fresh.new(), "and", (mask, other), "bool", origin))
            (mask,) = defined(body[-1])
        index = (*load.index[:dim], load.index[dim] - piece.start, *load.index[dim + 1 :])
        values.append(fresh.new())
        body.append(replace(load, out=values[-1], buffer=piece.buffer, index=index, mask=mask))
    value = values.pop()
    for number in reversed(range(len(values))):
        out = load.out if number == 0 else fresh.new()
        body.append(Compute(out, "where", (before[number], values[number], value), load.dtype, origin))
        value = out
    return body
