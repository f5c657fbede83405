"""Costly values of which readers use parts only are computed where the parts are read, instead of whole and stored.

The loops of such readers are others than the producer's, so that the two cannot be one kernel in any other way: a
channel of an image, the halves of a gate, every second element. All readers together may do no more of the work than
the producer did, so that what is stored and read again is saved at no cost.
"""

from __future__ import annotations

from collections.abc import Sequence

from lamina.base.decision import Decision
from lamina.ir.index import Axis, Div, Expr, Loaded, Mod, as_expr, prod
from lamina.ir.loops import Buffer, LibraryCall, Load, Nest, Step
from lamina.schedule import reasons
from lamina.schedule.accesses import loaded, stored
from lamina.schedule.buffer_facts import BufferFacts, estimate
from lamina.schedule.fold_predicates import without_known_predicates
from lamina.schedule.group import StepFacts
from lamina.schedule.inline import inline_into

__all__ = ["with_parts"]

_NEAR, _APART = 4, 8
"""Elements from one read to the next up to which whole vectors are loaded, and how many times as long as those it
takes to load elements one by one.
"""

_LOADS = 4
"""Tensors that a producer may read: each of them is read where the parts are, in the order of the reader's loops."""
_EQUATIONS = 400
"""What a reader may grow to: compilers take minutes for sums of hundreds of parts that are each computed in place."""


def with_parts(steps: Sequence[Step], buffers: BufferFacts, numerics: str, decisions: list[Decision]) -> list[Step]:
    """``steps`` with producers copied into the readers of their parts, on CPUs; notes what was decided.

    Producers that nobody reads any more are still there.
    """
    result = list(steps)
    writers: dict[str, list[int]] = {}
    readers: dict[str, set[int]] = {}
    for number, step in enumerate(steps):
        for written in stored(step):
            writers.setdefault(written, []).append(number)
        for read in loaded(step):
            readers.setdefault(read, set()).add(number)
    for number in reversed(range(len(result))):  # what reads parts of a value may do so of what that is made of
        producer = result[number]
        if isinstance(producer, LibraryCall):
            continue
        name = _result(producer, buffers)
        if name is None or len(writers[name]) > 1 or not readers.get(name):
            continue
        if any(writers.get(b, [-1])[-1] >= number for b in loaded(producer)):
            continue  # what it reads is written over before its readers run
        users = sorted(readers[name])
        if not _pays(producer, name, [result[n] for n in users], buffers):
            continue
        changed = {n: inline_into(_nest(result[n]), name, producer, numerics) for n in users}
        for n, nest in changed.items():
            if nest is None:
                continue
            decisions.append(Decision("inline", (producer.name, nest.name), True, reasons.READERS_READ_PARTS()))
            result[n] = without_known_predicates(nest, numerics)
            for other in loaded(producer):
                readers[other].add(n)
        if None not in changed.values():
            for other in loaded(producer):
                readers[other].discard(number)
    return result


def _nest(step: Step) -> Nest:
    assert isinstance(step, Nest)
    return step


def _result(producer: Nest, buffers: BufferFacts) -> str | None:
    """The one tensor that the nest makes, where every element of it may be computed anywhere on its own."""
    facts = StepFacts.of(producer)
    if not facts.pure or not facts.loads or len(facts.loads) > _LOADS:
        return None
    (name,) = facts.stores
    given = name in buffers.fixed or name in buffers.library_reads or buffers.on_gpu(name)
    return None if given else name


def _pays(producer: Nest, name: str, users: Sequence[Step], buffers: BufferFacts) -> bool:
    """Whether all readers read parts, and together no more places than there are; fewer, if one by one."""
    buffer, read, price = buffers.buffers[name], 0, 1
    for user in users:
        if isinstance(user, LibraryCall):
            return False
        loads = [eqn for eqn in user.body if isinstance(eqn, Load) and eqn.buffer == name]
        if not loads or not all(eqn.mask is None and _is_part(eqn.index, buffer.shape) for eqn in loads):
            return False
        if len(user.body) + len(loads) * len(producer.body) > _EQUATIONS:
            return False
        facts = StepFacts.of(user)
        if facts.scans or facts.scatters:
            return False  # its loop goes one by one
        read += len({eqn.index for eqn in loads}) * estimate(prod(a.extent for a in user.axes))
        if any(_is_apart(eqn.index, buffer) for eqn in loads):
            price = _APART
    return read * price <= estimate(prod(a.extent for a in producer.axes))


def _is_apart(index: tuple[Expr, ...], buffer: Buffer) -> bool:
    """Whether no two of the places that are read lie next to each other in memory, or nearly so."""
    place = sum((e * n for e, n in zip(index, buffer.strides, strict=True)), as_expr(0))
    known = [abs(step) for mono, step in place.terms if len(mono) == 1 and isinstance(mono[0], Axis | Div)]
    return bool(place.atoms()) and min(known, default=_NEAR + 1) > _NEAR


def _is_part(index: tuple[Expr, ...], shape: Sequence[Expr]) -> bool:
    """Whether an index goes over axes and places that are data, and leaves out some; what it divides by is small, so
    that a point of the reader may do the work of all neighbours that have one quotient.
    """
    atoms = {atom for e in index for atom in e.atoms()}
    if any(isinstance(a, Div | Mod) and not (a.den.is_int and a.den.const <= _NEAR) for a in atoms):
        return False
    chosen = any(isinstance(atom, Loaded) for atom in atoms)
    return chosen or any(e.bounds() != (0, n - 1) for e, n in zip(index, shape, strict=True))
