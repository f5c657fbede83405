"""Splits elementwise readers of a concatenation into one nest for each piece.

A concatenation is a buffer with one writer for each piece. A nest that reads all of it could fuse with none of the
writers; cut along the concatenated axis, each part reads one piece only, which then is a buffer of its own. A nest
that gathers from it (on a GPU) reads of each place the piece that it is in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lamina.ir.access import reads, writes
from lamina.ir.index import Atom, Axis, Expr, Loaded, Mod, as_expr, as_expr_atom, prod
from lamina.ir.loops import (
    Buffer,
    Compute,
    Equation,
    Index,
    Load,
    LoopProgram,
    Nest,
    Step,
    Store,
    defined,
    row_major_strides,
)
from lamina.schedule.align import bare_axis
from lamina.schedule.group import StepFacts
from lamina.schedule.simplify import rename

__all__ = ["split_concats"]

_MOST_PIECES = 4
"""Each piece costs a kernel; beyond a few, one more pass over the memory is cheaper."""


_Range = tuple[Expr, Expr]
"""The first index of a piece along a dimension, and its extent."""


@dataclass(frozen=True, slots=True)
class _Concat:
    """A buffer written in pieces along dimension ``dim``: the one that each writer writes to.

    Several that write to one piece write pieces of it along another dimension.
    """

    buffer: Buffer
    dim: int
    writers: dict[str, _Range]

    @property
    def pieces(self) -> list[_Range]:
        """The pieces, each once."""
        return list(dict.fromkeys(self.writers.values()))


@dataclass(frozen=True, slots=True)
class _Cut:
    """The axis of a reader, which reads the concatenation at ``(axis + turn) % extent``."""

    axis: Axis
    turn: int

    def pieces(self, concat: _Concat) -> Iterator[tuple[_Range, Expr, Expr]]:
        """Each piece with the first point and the number of points of the axis that read of it; two such ranges for a
        piece that is rolled over the end.
        """
        for piece in concat.pieces:
            start, extent = piece
            if self.turn == 0:
                yield piece, start, extent
                continue
            length, begin = self.axis.extent, (start - self.turn) % self.axis.extent
            beyond = begin + extent - length
            if beyond.const <= 0:
                yield piece, begin, extent
            else:
                yield from ((piece, begin, extent - beyond), (piece, as_expr(0), beyond))


def split_concats(program: LoopProgram) -> LoopProgram:
    """The program with concatenations dissolved where all their readers can be cut; else the same object.

    What a cut reader writes is a concatenation again, so its own readers come next. A reader that is itself one of
    the writers of another concatenation is several afterwards: what is known of the others is found anew.
    """
    tried: set[str] = set()
    while True:
        waiting = [concat for concat in _concats(program) if concat.buffer.name not in tried]
        if not waiting:
            return program
        for concat in waiting:
            tried.add(concat.buffer.name)
            before, program = program, _dissolve(program, concat)
            if program is not before:
                break


def _concats(program: LoopProgram) -> list[_Concat]:
    buffers = program.buffer_map()
    writers: dict[str, list[Step]] = {}
    for step in program.steps:
        for name in writes(step):
            writers.setdefault(name, []).append(step)
    found = []
    for name, steps in writers.items():
        if len(steps) > 1 and buffers[name].kind == "temp" and all(isinstance(s, Nest) for s in steps):
            concat = _as_concat(buffers[name], [s for s in steps if isinstance(s, Nest)])
            if concat is not None:
                found.append(concat)
    return found


def _as_concat(buffer: Buffer, nests: Sequence[Nest]) -> _Concat | None:
    if len(nests) > _MOST_PIECES:
        return None
    written: dict[str, list[_Range]] = {}
    for nest in nests:
        stores = [e for e in nest.body if isinstance(e, Store) and e.buffer == buffer.name]
        if len(stores) != 1 or stores[0].mode != "set" or stores[0].mask is not None:
            return None
        ranges = [_range(place, size) for place, size in zip(stores[0].index, buffer.shape, strict=True)]
        known = [one for one in ranges if one is not None]
        if len(known) < len(ranges):
            return None
        written[nest.name] = known
    volume = sum((prod(extent for _, extent in ranges) for ranges in written.values()), as_expr(0))
    if len(written) != len(nests) or volume != prod(buffer.shape):
        return None
    for dim, size in enumerate(buffer.shape):
        concat = _Concat(buffer, dim, {name: ranges[dim] for name, ranges in written.items()})
        extents = sum((extent for _, extent in concat.pieces), as_expr(0))
        if len(concat.pieces) > 1 and extents == size and _are_whole(concat, written):
            return concat
    return None


def _range(place: Expr, size: Expr) -> _Range | None:
    """What a store writes along a dimension of this size, if it writes one place after the other."""
    axis = bare_axis(place - place.const)
    if axis is None:
        return None if place.terms or size != 1 else (as_expr(0), size)
    return as_expr(place.const), axis.extent


def _are_whole(concat: _Concat, written: Mapping[str, Sequence[_Range]]) -> bool:
    """Whether the writers of each piece write all of it: they fill it, as they write to no place twice."""
    for piece in concat.pieces:
        inside = [ranges for name, ranges in written.items() if concat.writers[name] == piece]
        volume = sum((prod(extent for _, extent in ranges) for ranges in inside), as_expr(0))
        if volume != prod(_with(concat.buffer.shape, concat.dim, piece[1])):
            return False
    return True


def _cut_axis(nest: Nest, concat: _Concat, program: LoopProgram) -> _Cut | None:
    """The axis along which the reader can be cut, if it can."""
    facts = StepFacts.of(nest)
    if not facts.pure or concat.buffer.name in facts.masked:
        return None
    (target,) = facts.stores
    for step in program.steps:
        if isinstance(step, Nest) and target in reads(step) and not StepFacts.of(step).pure:
            return None
    places = {index[concat.dim] for index in facts.loads[concat.buffer.name]}
    cut = _turned(places.pop()) if len(places) == 1 else None
    if cut is None or cut.axis.extent != concat.buffer.shape[concat.dim]:
        return None
    if cut.turn and not all(e.is_int for piece in concat.pieces for e in piece):
        return None
    return cut if len(list(cut.pieces(concat))) <= _MOST_PIECES else None


def _turned(place: Expr) -> _Cut | None:
    """An axis, alone or rolled over its extent."""
    if (axis := bare_axis(place)) is not None:
        return _Cut(axis, 0)
    atoms = [a for mono, coef in place.terms for a in mono if coef == 1]
    if len(atoms) != 1 or not isinstance(atoms[0], Mod) or place != as_expr_atom(atoms[0]):
        return None
    turn = atoms[0].num.const
    axis = bare_axis(atoms[0].num - turn)
    return _Cut(axis, turn) if axis is not None and axis.extent.is_int and axis.extent == atoms[0].den else None


def _gathers(nest: Nest, concat: _Concat) -> bool:
    """Whether the nest reads one of two pieces at places that it loads."""
    if len(concat.pieces) != 2 or not concat.buffer.on_gpu:
        return False
    loads = [e for e in nest.body if isinstance(e, Load) and e.buffer == concat.buffer.name]
    return all(any(isinstance(a, Loaded) for a in e.index[concat.dim].atoms()) for e in loads)


def _gathered(nest: Nest, concat: _Concat, parts: list[tuple[Buffer, Expr]]) -> Nest:
    """The nest reading each place from the piece that it is in."""
    (first, second), dim = sorted(parts, key=lambda p: p[1] != 0), concat.dim
    body: list[Equation] = []
    taken = {name for e in nest.body for name in defined(e)}
    for number, eqn in enumerate(nest.body):
        if not isinstance(eqn, Load) or eqn.buffer != concat.buffer.name:
            body.append(eqn)
            continue

        def name(what: str, number: int = number) -> str:
            made = f"{what}{number}"
            while made in taken:
                made += "_"
            return made

        place, bound, early, late = name("place"), name("bound"), name("early"), name("late")
        body.append(Index(place, eqn.index[dim], "int64", eqn.origin))
        body.append(Index(bound, second[1], "int64", eqn.origin))
        body.append(Compute(early, "lt", (place, bound), "bool", eqn.origin))
        body.append(Compute(late, "not", (early,), "bool", eqn.origin))
        values: list[str] = []
        for (buffer, start), mask in zip((first, second), (early, late), strict=True):
            if eqn.mask is not None:
                body.append(Compute(f"{mask}_in", "and", (mask, eqn.mask), "bool", eqn.origin))
                mask = f"{mask}_in"
            index = _with(eqn.index, dim, eqn.index[dim] - start)
            values.append(f"{mask}_value")
            body.append(replace(eqn, out=values[-1], buffer=buffer.name, index=index, mask=mask))
        body.append(Compute(eqn.out, "where", (early, *values), eqn.dtype, eqn.origin))
    return Nest(nest.name, nest.axes, tuple(body))


def _dissolve(program: LoopProgram, concat: _Concat) -> LoopProgram:
    name = concat.buffer.name
    readers = [s for s in program.steps if name in reads(s)]
    cuts: dict[str, _Cut] = {}
    gathers: set[str] = set()
    for step in readers:
        cut = _cut_axis(step, concat, program) if isinstance(step, Nest) else None
        if cut is not None:
            cuts[step.name] = cut
        elif isinstance(step, Nest) and _gathers(step, concat):
            gathers.add(step.name)
        else:
            return program
    if not readers:
        return program
    parts: dict[_Range, Buffer] = {}
    for k, piece in enumerate(concat.pieces):
        shape = _with(concat.buffer.shape, concat.dim, piece[1])
        parts[piece] = replace(concat.buffer, name=f"{name}_piece{k}", shape=shape, strides=row_major_strides(shape))
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Nest) and step.name in concat.writers:
            piece = concat.writers[step.name]
            steps.append(_retarget(step, concat, parts[piece], piece[0]))
        elif isinstance(step, Nest) and step.name in gathers:
            steps.append(_gathered(step, concat, [(parts[piece], piece[0]) for piece in concat.pieces]))
        elif isinstance(step, Nest) and step.name in cuts:
            cut = cuts[step.name]
            for k, (piece, first, extent) in enumerate(cut.pieces(concat)):
                part = _part(step, f"{step.name}_{name}_part{k}", cut.axis, first, extent)
                steps.append(_retarget(part, concat, parts[piece], piece[0]))
        else:
            steps.append(step)
    buffers = [b for b in program.buffers if b.name != name] + list(parts.values())
    return replace(program, steps=tuple(steps), buffers=tuple(buffers))


def _with(shape: tuple[Expr, ...], dim: int, extent: Expr) -> tuple[Expr, ...]:
    return (*shape[:dim], extent, *shape[dim + 1 :])


def _retarget(nest: Nest, concat: _Concat, part: Buffer, start: Expr) -> Nest:
    """The nest storing to or loading from the piece's own buffer, whose first index is zero."""
    body: list[Equation] = []
    for eqn in nest.body:
        if isinstance(eqn, Load | Store) and eqn.buffer == concat.buffer.name:
            moved = _with(eqn.index, concat.dim, eqn.index[concat.dim] - start)
            eqn = replace(eqn, buffer=part.name, index=moved)
        body.append(eqn)
    return Nest(nest.name, nest.axes, tuple(body))


def _part(nest: Nest, name: str, axis: Axis, first: Expr, extent: Expr) -> Nest:
    """The reader, called ``name``, restricted to ``extent`` points of an axis from the ``first`` on."""
    short = Axis(axis.name, extent)
    mapping: dict[Atom, Expr | int] = {axis: as_expr(short) + first}
    body = tuple(rename(eqn, {}, mapping) for eqn in nest.body)
    axes = tuple(short if a == axis else a for a in nest.axes)
    return Nest(name, axes, body)
