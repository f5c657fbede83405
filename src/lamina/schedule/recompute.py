"""Values that kernels of a GPU store and others read are computed by the readers where that takes less time.

Grouping leaves such values where loops do not line up: what is read shifted, as differences, rolls and pads do, or in
pieces side by side, as concatenations are. A store costs its write, the reads, and often a launch; computing again
costs arithmetic for each place that is read, and reads of the operands. ``work`` compares the two.

A value goes only if nothing reads it from memory any more, so that no kernel holds another rounding of it beside the
stored one. Numbers are not drawn again, and nothing is computed again that a check guards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.ir.access import contiguous_axes
from lamina.ir.index import Axis, Div, Expr, Loaded, Mod, as_expr
from lamina.ir.loops import Check, Load, Nest, Reduce, Scan, Step, Store
from lamina.ir.use_def import UseDef
from lamina.schedule import reasons
from lamina.schedule.accesses import loaded, stored
from lamina.schedule.buffer_facts import BufferFacts
from lamina.schedule.fold_predicates import without_known_predicates
from lamina.schedule.gpu_work import work
from lamina.schedule.group import illegal
from lamina.schedule.inline import inline_into
from lamina.schedule.pieces import Piece, Stored, chosen, pieces
from lamina.schedule.simplify import simplify
from lamina.schedule.step_table import StepTable
from lamina.schedule.windows import places

__all__ = ["recompute"]

_GAIN = 0.98
"""Share of the time up to which it is worth it."""
_MOST_EQUATIONS = 400
"""Equations of a nest that computes values again at most, as for fused nests."""
_MOST_BUFFERS = 40
"""Buffers of such a nest at most, as for fused nests."""
_MOST_READERS = 8
"""Readers of a value that compute it again at most: each computes all of it."""
_PLACES = 16
"""Places at which a point may read what is computed there."""


def recompute(
    steps: Sequence[Step], buffers: BufferFacts, numerics: str, only: Collection[str] | None = None
) -> tuple[list[Step], tuple[Decision, ...]]:
    """``steps`` with values computed where they are read, or pieces of one tensor in one nest, where that is faster;
    of all values in a GPU's memory, or of ``only`` these.
    """
    chooser = _Chooser(StepTable(steps), buffers, numerics)
    tried: set[str] = set()
    for step in steps:
        names = [b for b in dict.fromkeys(stored(step)) if b not in tried and _is_ours(b, buffers)]
        names = [b for b in names if only is None or b in only]
        tried.update(names)
        refused = [name for name in names if chooser.alone(name) is False]
        if len(refused) > 1:
            chooser.together(refused)
    return chooser.table.steps(), tuple(chooser.decisions)


def _is_ours(name: str, buffers: BufferFacts) -> bool:
    return buffers.on_gpu(name) and buffers.buffers[name].kind != "input"


class _Chooser:
    """Changes the steps of ``table`` where that takes less time."""

    def __init__(self, table: StepTable, buffers: BufferFacts, numerics: str) -> None:
        self.table, self.buffers, self.numerics = table, buffers, numerics
        self.decisions: list[Decision] = []

    def alone(self, name: str) -> bool | None:
        """Whether the buffer is stored no more, or in one piece; ``None`` where there is nothing to choose."""
        best = self.best(self.table, name)
        if best is None:
            return None
        taken = best.after < _GAIN * best.before
        self.decide(
            (name, *best.readers), taken, best.reason if taken else reasons.STORING_IS_FASTER(), best.before, best.after
        )
        if taken:
            self.table.apply(best.nests)
        return taken

    def together(self, names: Sequence[str]) -> None:
        """Let what one nest stores go all at once, where only that spares the nest."""
        trial = self.table.copy()
        touched: set[int] = set()
        for name in names:
            best = self.best(trial, name)
            if best is None:
                return
            touched |= best.nests.keys()
            trial.apply(best.nests)
        before, after = (sum(t.cost(n, self.buffers.buffers) for n in touched) for t in (self.table, trial))
        if after < _GAIN * before:
            self.table = trial
            self.decide(tuple(names), True, reasons.ALL_ARE_FASTER(), before, after)

    def best(self, table: StepTable, name: str) -> _Change | None:
        changes = _Question(table, self.buffers, self.numerics, name).changes()
        return min(changes, key=lambda change: change.after, default=None)

    def decide(self, subject: tuple[str, ...], taken: bool, reason: Reason, before: float, after: float) -> None:
        facts = (("before", int(before)), ("after", int(after)))
        self.decisions.append(Decision("recompute", subject, taken, reason, facts))


@dataclass(frozen=True, slots=True)
class _Change:
    """Nests by their numbers in the table, ``None`` for those that go, and the time of all of them before and after."""

    nests: dict[int, Nest | None]
    readers: tuple[str, ...]
    before: float
    after: float
    reason: Reason


class _Question:
    """Whether the buffer ``name`` need be stored, or be stored in pieces."""

    def __init__(self, table: StepTable, buffers: BufferFacts, numerics: str, name: str) -> None:
        self.table, self.buffers, self.numerics, self.name = table, buffers, numerics, name
        self.writers = table.writers(name)
        self.readers = table.readers(name)

    def changes(self) -> Iterator[_Change]:
        """What could be done instead, with values of the same nests that are in memory anyway computed or read."""
        nests = [n for n in map(self.table.nest, self.writers) if n is not None]
        if not nests or len(nests) != len(self.writers) or any(r <= self.writers[-1] for r in self.readers):
            return
        if not self.can_go() and len(self.writers) == 1:
            return
        nothing: list[Stored] = [{} for _ in nests]
        known = [self.known(nest) for nest in nests]
        for values in [nothing, known] if any(known) else [nothing]:
            found = pieces(self.buffers.buffers[self.name], nests, values)
            if found is None:
                continue
            if self.can_go() and (change := self.computed_by_readers(*found)) is not None:
                yield change
            if len(self.writers) > 1 and (change := self.in_one_nest(*found)) is not None:
                yield change

    def can_go(self) -> bool:
        """Whether the buffer is read by nests only, and by few."""
        if self.name in self.buffers.fixed or not 0 < len(self.readers) <= _MOST_READERS:
            return False
        return all(self.table.nest(r) is not None for r in self.readers)

    def known(self, nest: Nest) -> Stored:
        """Values of the nest that it stores elsewhere, for others than the buffer's readers, by how they are read."""
        use_def = UseDef(nest.body)
        result: dict[str, Load] = {}
        for eqn in nest.body:
            if not isinstance(eqn, Store) or eqn.buffer == self.name or use_def.compute(eqn.value) is None:
                continue
            buffer = self.buffers.buffers[eqn.buffer]
            lasting = eqn.buffer in self.buffers.fixed or eqn.buffer in self.buffers.library_reads
            lasting = lasting or not set(self.table.readers(eqn.buffer)) <= set(self.readers)
            once = len(self.table.writers(eqn.buffer)) == 1 and stored(nest).count(eqn.buffer) == 1
            direct = eqn.mode == "set" and eqn.mask is None and not _indirect(eqn.index)
            if lasting and once and direct and buffer.kind != "input" and buffer.dtype == use_def.dtypes[eqn.value]:
                result[eqn.value] = Load(eqn.value, eqn.buffer, eqn.index, buffer.dtype, origin=eqn.origin)
        return result

    def computed_by_readers(self, dim: int, parts: Sequence[Piece]) -> _Change | None:
        """The readers with the producers in them, and what is left of the writers."""
        changed = dict(self.without())
        for number in self.readers:
            nest = self.table.nest(number)
            if nest is None or places(nest)[self.name] > _PLACES or not self.unchanged(parts, number):
                return None
            made = self.inlined(nest, dim, parts)
            if made is None:
                return None
            changed[number] = made
        return self.change(changed, self.readers, reasons.READERS_ARE_FASTER())

    def in_one_nest(self, dim: int, parts: Sequence[Piece]) -> _Change | None:
        """One nest that stores all pieces, after what is left of those that did."""
        buffer, last = self.buffers.buffers[self.name], self.writers[-1]
        place = self.table.free(last)
        if place is None or not self.unchanged(parts, last):
            return None
        axes = tuple(Axis(f"i{k}", n) for k, n in enumerate(buffer.shape))
        index = tuple(as_expr(a) if a.extent != 1 else as_expr(0) for a in axes)
        origin = parts[0].producer.body[-1].origin
        body = (Load("v0", self.name, index, buffer.dtype, origin=origin), Store(self.name, index, "v0", origin=origin))
        name = self.table.unique(f"n_{self.name}_whole")
        whole = Nest(name, tuple(a for a in axes if a.extent != 1), body)
        made = self.inlined(whole, dim, parts)
        if made is None:
            return None
        changed = {**dict(self.without()), place: made}
        return self.change(changed, (), reasons.ONE_KERNEL_FOR_PIECES())

    def without(self) -> Iterator[tuple[int, Nest | None]]:
        """What is left of the nests that write the buffer."""
        for number in self.writers:
            nest = self.table.nest(number)
            assert nest is not None
            body = tuple(e for e in nest.body if not (isinstance(e, Store) and e.buffer == self.name))
            lives = any(isinstance(e, Store | Check) for e in body)
            yield number, Nest(nest.name, nest.axes, simplify(body, "eager")) if lives else None

    def unchanged(self, parts: Sequence[Piece], reader: int) -> bool:
        """Whether what the producers load is the same where the reader runs."""
        # What a writer stores itself, its producer loads only as it is afterwards.
        return not any(
            self.writers[piece.writer] < number <= reader
            for piece in parts
            for operand in loaded(piece.producer)
            for number in self.table.writers(operand)
        )

    def inlined(self, nest: Nest, dim: int, parts: Sequence[Piece]) -> Nest | None:
        """``nest`` computing what it reads of the buffer; ``None`` where it would be no kernel, or too large a one."""
        made: Nest | None = chosen(nest, self.name, dim, parts)
        for piece in parts:
            made = made and inline_into(made, piece.buffer, piece.producer, self.numerics)
            if made is None or len(made.body) > 2 * _MOST_EQUATIONS:
                return None
        assert made is not None
        made = without_known_predicates(made, self.numerics)
        if len(made.body) > _MOST_EQUATIONS or len({*loaded(made), *stored(made)}) > _MOST_BUFFERS:
            return None
        if illegal(made, self.buffers.buffers, False, (nest,)) or self.loses_order(nest, made):
            return None
        return made

    def loses_order(self, nest: Nest, made: Nest) -> bool:
        """Whether a nest that reduces or scans would read memory along more axes than before, or at divided places.

        Its loops could then be cut and shared less well than they are.
        """
        if not any(isinstance(e, Reduce | Scan) for e in nest.body):
            return False
        return not (self.along(made) <= self.along(nest) and _divided(made) <= _divided(nest))

    def along(self, nest: Nest) -> set[str]:
        """The axes along which the nest's large operands are contiguous."""
        accesses = [e for e in nest.body if isinstance(e, Load | Store)]
        least = max(self.buffers.bytes[e.buffer] for e in accesses) // 8
        large = tuple(e for e in accesses if self.buffers.bytes[e.buffer] >= least)
        return contiguous_axes(Nest(nest.name, nest.axes, large), self.buffers.buffers)

    def change(self, nests: dict[int, Nest | None], readers: Sequence[int], reason: Reason) -> _Change:
        before = sum(self.table.cost(n, self.buffers.buffers) for n in nests)
        after = sum(work(nest, self.buffers.buffers) for nest in nests.values() if nest is not None)
        names = [n.name for n in map(self.table.nest, readers) if n is not None]
        return _Change(nests, tuple(names), before, after, reason)


def _divided(nest: Nest) -> set[str]:
    """Axes of whose places quotients or remainders are taken."""
    atoms = {a for e in nest.body if isinstance(e, Load | Store) for i in e.index if i.terms for a in i.atoms()}
    return {name for atom in atoms if isinstance(atom, Div | Mod) for name in atom.num.axes()}


def _indirect(index: Sequence[Expr]) -> bool:
    return any(isinstance(a, Loaded) for e in index if e.terms for a in e.atoms())
