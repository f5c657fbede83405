"""Producer inlining: which nests are computed again in their readers instead of being stored.

``inline`` says how the body of one is copied into another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lamina.base.decision import Decision
from lamina.base.dtypes import DTYPES
from lamina.base.reasons import Reason
from lamina.ir.index import Atom, Expr, as_expr, prod
from lamina.ir.loops import LibraryCall, Load, Nest, Reduce, Scan, Step
from lamina.schedule import reasons
from lamina.schedule.accesses import gathers, loaded, stored
from lamina.schedule.buffer_facts import BufferFacts, estimate
from lamina.schedule.dead_code import live_steps
from lamina.schedule.fold_predicates import without_known_predicates
from lamina.schedule.gpu_work import SECTOR, work
from lamina.schedule.group import StepFacts
from lamina.schedule.inline import inline_into
from lamina.schedule.inline_parts import with_parts
from lamina.schedule.simplify import rename, simplify
from lamina.schedule.windows import FEW_PLACES, places

__all__ = ["inline_producers"]

_CHEAP = 4
"""Cost up to which several readers each do the work again; twice that for a single one, thrice if nothing is loaded."""
_PICKED = 24
"""Cost up to which a reader of some places of a dimension, whose loop fits no other, does the work again there."""
_MANY = 256
"""Sums over one small tensor from which on it is worth a kernel, or a place in another one, to have it at hand."""
_PLACES = 16
"""Places at which each point may read a buffer on a GPU for what is there to be computed again at each of them.

Where the buffer has a sixteenth of the points or less, as a filter's taps, they are ``FEW_PLACES``.
"""


def inline_producers(
    steps: Sequence[Step], buffers: BufferFacts, numerics: str
) -> tuple[list[Step], tuple[Decision, ...]]:
    """``steps`` with cheap producers copied into the nests that read them; producers nobody reads are gone."""
    uses = _Uses.of(steps)
    cheap: dict[str, Nest] = {}
    costly: dict[str, Nest] = {}
    decisions: list[Decision] = []
    result: list[Step] = []
    for number, step in enumerate(steps):
        if isinstance(step, LibraryCall):
            result.append(step)
            continue
        nest = _without_units(step)
        nest = Nest(nest.name, nest.axes, simplify(nest.body, numerics))
        loaded = {e.buffer for e in nest.body if isinstance(e, Load)}
        picked = {b: p for b, p in costly.items() if b in loaded and _picks(nest, b, p, buffers)}
        found = {**cheap, **picked}
        nest = without_known_predicates(_inlined(nest, found, buffers, numerics, decisions), numerics)
        result.append(nest)
        facts = StepFacts.of(nest)
        complete = all(uses.last_write.get(b, -1) < number for b in facts.loads)
        if facts.pure and complete and _is_cheap(facts, uses, buffers):
            cheap[next(iter(facts.stores))] = nest
        elif facts.pure and complete and _is_computable(facts, uses, buffers):
            costly[next(iter(facts.stores))] = nest
    result = with_parts(live_steps(result, buffers.fixed), buffers, numerics, decisions)
    return live_steps(result, buffers.fixed), tuple(decisions)


@dataclass(frozen=True, slots=True)
class _Uses:
    """By buffer: how many stores and calls write it, how many steps read it, and the last step that writes it."""

    writes: Mapping[str, int]
    readers: Mapping[str, int]
    last_write: Mapping[str, int]

    @classmethod
    def of(cls, steps: Sequence[Step]) -> _Uses:
        return cls(
            Counter(b for step in steps for b in stored(step)),
            Counter(b for step in steps for b in loaded(step)),
            {b: number for number, step in enumerate(steps) for b in stored(step)},
        )


def _without_units(nest: Nest) -> Nest:
    """The nest without axes of one point, so that a kept dimension lines up with one that was reduced away."""
    combined = {a for e in nest.body if isinstance(e, Reduce) for a in e.axes}
    combined |= {e.axis for e in nest.body if isinstance(e, Scan)}
    units: dict[Atom, Expr | int] = {a: 0 for a in nest.axes if a.extent == 1 and a.name not in combined}
    if not units:
        return nest
    body = tuple(rename(eqn, {}, units) for eqn in nest.body)
    return Nest(nest.name, tuple(a for a in nest.axes if a not in units), body)


def _inlined(
    nest: Nest, cheap: Mapping[str, Nest], buffers: BufferFacts, numerics: str, decisions: list[Decision]
) -> Nest:
    """The nest with ``cheap`` producers of what it reads copied into it; notes what was decided about each."""
    for name in [b for b in loaded(nest) if b in cheap]:
        producer = cheap[name]
        why = _why_stored(nest, name, producer, buffers)
        if why is not None:
            decisions.append(Decision("inline", (producer.name, nest.name), False, why))
            continue
        changed = inline_into(nest, name, producer, numerics)
        if changed is not None and _scatters_reads(nest, name, producer, changed, buffers):
            decisions.append(Decision("inline", (producer.name, nest.name), False, reasons.SCATTERED_READS()))
        elif changed is not None:
            nest = changed
            decisions.append(Decision("inline", (producer.name, nest.name), True, reasons.CHEAP_AGAIN()))
    return nest


def _is_cheap(facts: StepFacts, uses: _Uses, buffers: BufferFacts) -> bool:
    """Whether a nest with these facts is cheap enough to be computed again by each of its readers."""
    (name,) = facts.stores
    if uses.writes[name] != 1 or name in buffers.fixed:
        return False
    if not facts.loads:
        return facts.cost <= 3 * _CHEAP
    if name in buffers.library_reads:
        return False
    size, read = buffers.bytes[name], _bytes_read(name, facts, buffers)
    grows = sum(read.values()) > 2 * size
    limit = _CHEAP if uses.readers[name] > 1 else 2 * _CHEAP
    large = [b for b, count in read.items() if 8 * count >= size]
    return facts.cost <= limit and len(large) <= 2 and len(facts.loads) <= 4 and not grows


def _bytes_read(name: str, facts: StepFacts, buffers: BufferFacts) -> dict[str, int]:
    """How much of each operand makes ``name``: on a CPU of a larger tensor no more than there are points, as of a part
    of it that is copied.
    """
    if buffers.on_gpu(name):
        return {b: buffers.bytes[b] for b in facts.loads}
    points = estimate(prod(buffers.buffers[name].shape))
    wide = {b: DTYPES[buffers.buffers[b].dtype].size for b in facts.loads}
    return {b: min(buffers.bytes[b], len(places) * points * wide[b]) for b, places in facts.loads.items()}


def _is_computable(facts: StepFacts, uses: _Uses, buffers: BufferFacts) -> bool:
    """Whether readers that pick elements of a nest's result may each compute what they pick."""
    (name,) = facts.stores
    if uses.writes[name] != 1 or name in buffers.fixed or name in buffers.library_reads or buffers.on_gpu(name):
        return False
    return facts.cost * uses.readers[name] <= _PICKED and len(facts.loads) <= 4


def _picks(nest: Nest, name: str, producer: Nest, buffers: BufferFacts) -> bool:
    """Whether the nest reads single places along a dimension of ``name``, all in all hardly more than there are.

    Its loops then are others than the producer's, and the two cannot be one kernel in any other way.
    """
    places = {eqn.index for eqn in nest.body if isinstance(eqn, Load) and eqn.buffer == name}
    shape = buffers.buffers[name].shape
    if not all(any(not e.terms and n != 1 for e, n in zip(index, shape, strict=True)) for index in places):
        return False
    points = len(places) * estimate(prod(a.extent for a in nest.axes))
    return bool(places) and points <= 2 * estimate(prod(a.extent for a in producer.axes))


def _why_stored(nest: Nest, name: str, producer: Nest, buffers: BufferFacts) -> Reason | None:
    """Why ``producer`` should not be computed again by ``nest`` on a GPU wherever that reads it, or ``None``."""
    if not buffers.on_gpu(name):
        return None
    if _is_read_at_places(nest, name, buffers):
        return reasons.MANY_PLACES()
    if _is_summed_often(nest, name, producer, buffers):
        return reasons.SUMMED_AGAIN()
    return None


def _is_read_at_places(nest: Nest, name: str, buffers: BufferFacts) -> bool:
    """Whether each point of ``nest`` reads ``name`` at many places, as windows read images and filters."""
    count = places(nest)[name]
    small = 16 * estimate(prod(buffers.buffers[name].shape)) <= estimate(prod(a.extent for a in nest.axes))
    return count > (FEW_PLACES if small else _PLACES)


def _scatters_reads(nest: Nest, name: str, producer: Nest, changed: Nest, buffers: BufferFacts) -> bool:
    """Whether ``nest`` reads ``name`` on a GPU at loaded places, and storing it for that takes less time than computing
    it at those places, ``changed``.
    """
    if not buffers.on_gpu(name) or _sectors(producer, buffers) < 2:
        return False
    if not any(isinstance(e, Load) and e.buffer == name and gathers(e) for e in nest.body):
        return False
    apart = work(nest, buffers.buffers) + work(producer, buffers.buffers)
    return apart < work(changed, buffers.buffers)


def _sectors(producer: Nest, buffers: BufferFacts) -> int:
    """Sectors of memory that one point of the producer takes: places of one buffer near each other lie in one."""
    found: dict[str, list[Expr]] = {}
    for eqn in producer.body:
        if isinstance(eqn, Load):
            buffer = buffers.buffers[eqn.buffer]
            place = sum((e * s for e, s in zip(eqn.index, buffer.strides, strict=True)), as_expr(0))
            gaps = [place - other for other in found.setdefault(eqn.buffer, [])]
            near = SECTOR // DTYPES[buffer.dtype].size
            if not any(not gap.terms and abs(gap.const) < near for gap in gaps):
                found[eqn.buffer].append(place)
    return sum(map(len, found.values()))


def _is_summed_often(nest: Nest, name: str, producer: Nest, buffers: BufferFacts) -> bool:
    """Whether many sums of ``nest`` go over all of ``name``, which is smaller than what it is made of.

    Each program that takes some of the sums reads all of it: of a vector that a matrix is multiplied with.
    """
    if sum(buffers.bytes[b] for b in loaded(producer)) <= buffers.bytes[name]:
        return False
    over = {a for e in nest.body if isinstance(e, Reduce) for a in e.axes}
    for eqn in nest.body:
        if isinstance(eqn, Load) and eqn.buffer == name:
            own = {a for e in eqn.index for a in e.axes()}
            others = [a.extent for a in nest.axes if a.name not in own]
            if own and own <= over and all(n.is_int for n in others) and prod(others).const >= _MANY:
                return True
    return False
