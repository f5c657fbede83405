"""Fusion: a loop program's nests are joined into fewer, larger ones; every yes and no is a decision with its reason.

Nests are taken in program order. One that only computes cheap things from few operands is copied into its readers;
otherwise a nest joins the earlier group with which it shares the most bytes, if the two iteration spaces can be
aligned, no third step must run between them, and the result is still one kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lamina.base.decision import Decision
from lamina.base.dtypes import DTYPES
from lamina.errors import InvalidIR
from lamina.ir.access import contiguous_axes
from lamina.ir.index import Atom, Expr, Size, prod
from lamina.ir.loops import (
    Buffer,
    BufferView,
    Check,
    Equation,
    LibraryCall,
    Load,
    LoopProgram,
    Nest,
    Reduce,
    Scan,
    Step,
    Store,
)
from lamina.schedule.align import align, disjoint
from lamina.schedule.fold import fold, folds
from lamina.schedule.group import Facts, Group, illegal, join, splits_scan
from lamina.schedule.in_place import update_in_place
from lamina.schedule.inline import inline_into
from lamina.schedule.interleave import sliding_axes
from lamina.schedule.overwrite import overwrite_results
from lamina.schedule.settle import settle
from lamina.schedule.simplify import rename, simplify
from lamina.schedule.split import split_concats
from lamina.schedule.windows import places

__all__ = ["Fused", "fuse"]

_MAX_EQUATIONS = 400
_MAX_BUFFERS = 40
_CHEAP = 4
_SIZE_GUESS = 64
"""What an unknown size counts as when bytes are compared."""
_LARGE = 1 << 20
"""Bytes on a GPU that are not kept alive for the sake of one launch less."""
_MANY = 256
"""Sums over one small tensor from which on it is worth a kernel, or a place in another one, to have it at hand."""
_PLACES, _FEW_PLACES = 16, 8
"""Places at which each point reads a buffer on a GPU from which on what is there is not computed again at each: the
second where it has a sixteenth of the points or less, as a filter's taps. From that on they are windows, which no
reduction joins.
"""
_WAITS = "results would wait in memory for library calls that their readers do not need"


@dataclass(frozen=True, slots=True)
class Fused:
    """A program whose nests are the kernels to be, and what was decided on the way."""

    program: LoopProgram
    decisions: tuple[Decision, ...]


def fuse(program: LoopProgram, numerics: str = "fast") -> Fused:
    """Join nests of ``program``; the meaning stays the same."""
    updated, decisions = update_in_place(program, numerics)
    updated, changes = overwrite_results(updated, numerics)
    fused = _Fuser(split_concats(updated), numerics).run()
    return Fused(fused.program, (*decisions, *changes, *fused.decisions))


def _without_units(nest: Nest) -> Nest:
    """The nest without axes of one point, so that a kept dimension lines up with one that was reduced away."""
    combined = {a for e in nest.body for a in (e.axes if isinstance(e, Reduce) else _scanned(e))}
    units: dict[Atom, Expr | int] = {a: 0 for a in nest.axes if a.extent == 1 and a.name not in combined}
    if not units:
        return nest
    body = tuple(rename(eqn, {}, units) for eqn in nest.body)
    return Nest(nest.name, tuple(a for a in nest.axes if a not in units), body)


def _scanned(eqn: Equation) -> tuple[str, ...]:
    return (eqn.axis,) if isinstance(eqn, Scan) else ()


def _buffers_in(value: object) -> list[str]:
    if isinstance(value, BufferView):
        return [value.buffer]
    if isinstance(value, tuple):
        return [b for v in value for b in _buffers_in(v)]
    return []


class _Fuser:
    def __init__(self, program: LoopProgram, numerics: str) -> None:
        self.program, self.numerics = program, numerics
        self.buffers = program.buffer_map()
        self.decisions: list[Decision] = []
        self.groups: dict[int, Group] = {}
        self.bytes: dict[str, int] = {b.name: _bytes(b) for b in program.buffers}
        self.writers: dict[str, list[int]] = defaultdict(list)
        self.readers: dict[str, list[int]] = defaultdict(list)
        self.outputs = {o.buffer for o in program.outputs if isinstance(o, BufferView)}
        self.fixed = {b.name for b in program.buffers if b.kind == "input"} | self.outputs
        self.library_reads = {
            b for s in program.steps if isinstance(s, LibraryCall) for b in _buffers_in((s.args, s.kwargs))
        }
        self.large_calls = 0  # a bit for each library call with a large result on a GPU
        self.uses: dict[str, int] = defaultdict(int)

    def run(self) -> Fused:
        steps = self.inlined(_live_steps(self.program.steps, self.fixed))
        for step in steps:
            for b in set(_touched(step, writes=False)):
                self.uses[b] += 1
        for number, step in enumerate(steps):
            group = self.group(number, step)
            if group.nest is not None:
                group = self.place(group)
            elif any(self.is_large(b) for b in group.writes):
                self.large_calls |= 1 << number
            self.register(group)
        ordered = self.order()
        steps = _live_steps(ordered, self.fixed)
        used = self.fixed | {b for s in steps for b in _touched(s)}
        buffers = tuple(b for b in self.program.buffers if b.name in used)
        program = replace(self.program, steps=tuple(steps), buffers=buffers)
        return Fused(program, tuple(self.decisions))

    # ---- inlining ---------------------------------------------------------------------------------------------

    def inlined(self, steps: Sequence[Step]) -> list[Step]:
        """Copy cheap producers into the nests that read them; producers nobody reads then disappear."""
        writers: dict[str, int] = defaultdict(int)
        readers: dict[str, int] = defaultdict(int)
        last_write: dict[str, int] = {}
        for k, step in enumerate(steps):
            for b in _touched(step, writes=True):
                writers[b] += 1
                last_write[b] = k
            for b in set(_touched(step, writes=False)):
                readers[b] += 1
        cheap: dict[str, Nest] = {}
        result: list[Step] = []
        for number, step in enumerate(steps):
            if isinstance(step, LibraryCall):
                result.append(step)
                continue
            nest = _without_units(step)
            nest = Nest(nest.name, nest.axes, simplify(nest.body, self.numerics))
            for name in [b for b in dict.fromkeys(_touched(nest, writes=False)) if b in cheap]:
                why = self.read_often(nest, name, cheap[name])
                if why:
                    self.decide("inline", (cheap[name].name, nest.name), False, why)
                    continue
                changed = inline_into(nest, name, cheap[name], self.numerics)
                if changed is not None:
                    nest = changed
                    self.decide("inline", (cheap[name].name, nest.name), True, "cheap to compute again")
            nest = self.settled(nest)
            result.append(nest)
            facts = Facts.of(nest)
            settled = all(last_write.get(b, -1) < number for b in facts.loads)
            if facts.pure and settled and self.is_cheap(facts, writers, readers):
                cheap[next(iter(facts.stores))] = nest
        return _live_steps(result, self.fixed)

    def settled(self, nest: Nest) -> Nest:
        """The nest without masks that are known: an axis may have been cut or folded where they begin."""
        if not any(isinstance(e, Load) and e.mask is not None for e in nest.body):
            return nest
        return Nest(nest.name, nest.axes, simplify(settle(nest.body), self.numerics))

    def is_cheap(self, facts: Facts, writers: dict[str, int], readers: dict[str, int]) -> bool:
        (buffer,) = facts.stores
        if writers[buffer] != 1 or buffer in self.fixed:
            return False
        if not facts.loads:
            return facts.cost <= 3 * _CHEAP
        if buffer in self.library_reads:
            return False
        grows = sum(self.bytes[b] for b in facts.loads) > 2 * self.bytes[buffer]
        limit = _CHEAP if readers[buffer] > 1 else 2 * _CHEAP
        large = [b for b in facts.loads if 8 * self.bytes[b] >= self.bytes[buffer]]
        return facts.cost <= limit and len(large) <= 2 and len(facts.loads) <= 4 and not grows

    def read_often(self, nest: Nest, name: str, producer: Nest) -> str:
        """Why ``producer`` should not be computed again by ``nest`` on a GPU wherever that reads its result, or ""."""
        if not self.buffers[name].device.startswith("cuda"):
            return ""
        if self.is_read_at_places(nest, name):
            return "every point would compute it at many places"
        if self.is_summed_often(nest, name, producer):
            return "every sum would read its operands again"
        return ""

    def is_read_at_places(self, nest: Nest, name: str) -> bool:
        """Whether each point of ``nest`` reads ``name`` at many places, as windows read images and filters."""
        count = places(nest)[name]
        small = 16 * _guess(prod(self.buffers[name].shape)) <= _guess(prod(a.extent for a in nest.axes))
        return count > (_FEW_PLACES if small else _PLACES)

    def is_summed_often(self, nest: Nest, name: str, producer: Nest) -> bool:
        """Whether many sums of ``nest`` go over all of ``name``, which is smaller than what it is made of.

        Each program that takes some of the sums reads all of it: of a vector that a matrix is multiplied with.
        """
        if sum(self.bytes[b] for b in set(_touched(producer, writes=False))) <= self.bytes[name]:
            return False
        over = {a for e in nest.body if isinstance(e, Reduce) for a in e.axes}
        for eqn in nest.body:
            if isinstance(eqn, Load) and eqn.buffer == name:
                own = {a for e in eqn.index for a in e.axes()}
                others = [a.extent for a in nest.axes if a.name not in own]
                if own and own <= over and all(n.is_int for n in others) and prod(others).const >= _MANY:
                    return True
        return False

    # ---- groups -----------------------------------------------------------------------------------------------

    def group(self, number: int, step: Step) -> Group:
        reads, writes = set(_touched(step, writes=False)), set(_touched(step, writes=True))
        if isinstance(step, LibraryCall):
            made = Group(number, None, step, reads, writes)
        else:
            made = Group(number, step, None, reads, writes, Facts.of(step))
        for b in reads:
            made.deps.update(self.writers.get(b, ()))
        for b in writes:
            made.deps.update(self.writers.get(b, ()))
            made.deps.update(self.readers.get(b, ()))
        for k in made.deps:
            made.ancestors |= self.groups[k].ancestors | (1 << k)
        return made

    def register(self, group: Group) -> None:
        self.groups[group.number] = group
        for b in group.reads:
            if group.number not in self.readers[b]:
                self.readers[b].append(group.number)
        for b in group.writes:
            if group.number not in self.writers[b]:
                self.writers[b].append(group.number)

    def candidates(self, group: Group) -> list[Group]:
        """Earlier groups sharing bytes with this one, most first."""
        shared: dict[int, int] = defaultdict(int)
        for b in group.reads:
            for k in self.writers.get(b, ()):
                shared[k] += 2 * self.bytes[b]
            for k in self.readers.get(b, ()):
                shared[k] += self.bytes[b]
        ranked = sorted(shared, key=lambda k: (-shared[k], -k))
        return [self.groups[k] for k in ranked if self.groups[k].nest is not None]

    def place(self, group: Group) -> Group:
        """Join the group with the best earlier group it fits, again and again until none fits."""
        refused: set[int] = set()
        while True:
            made = self.joined(group, refused)
            if made is None:
                return group
            group = made

    def joined(self, group: Group, refused: set[int]) -> Group | None:
        for other in self.candidates(group)[:8]:
            if other.number in refused or other.number == group.number:
                continue
            swap = bool(other.ancestors >> group.number & 1)
            first, second = (group, other) if swap else (other, group)
            result = self.try_join(first, second)
            if isinstance(result, str):
                result = self.try_folded(first, second) or result
            if isinstance(result, Group):
                self.decide("fuse", (first.name, second.name), True, "shared bytes", self.shared(first, second))
                self.absorb(first, second, result)
                return result
            refused.add(other.number)
            if first.writes & second.reads or result is _WAITS:
                self.decide("fuse", (first.name, second.name), False, result)
        return None

    def shared(self, first: Group, second: Group) -> int:
        return sum(self.bytes[b] for b in (first.reads | first.writes) & second.reads)

    def absorb(self, first: Group, second: Group, made: Group) -> None:
        """Replace ``first`` and ``second`` by ``made``, which has ``first``'s number."""
        for old in (first, second):
            for b in old.reads:
                if old.number in self.readers[b]:
                    self.readers[b].remove(old.number)
            for b in old.writes:
                if old.number in self.writers[b]:
                    self.writers[b].remove(old.number)
            self.groups.pop(old.number, None)
        self.register(made)
        bit, gone = 1 << made.number, 1 << second.number
        for other in self.groups.values():
            if second.number in other.deps:
                other.deps.discard(second.number)
                other.deps.add(made.number)
            if other.number != made.number and other.ancestors & (bit | gone):
                other.ancestors |= made.ancestors | bit

    def try_join(self, first: Group, second: Group) -> Group | str:
        """The joined group, or why there is none."""
        if first.nest is None or second.nest is None or first.facts is None or second.facts is None:
            return "a library call"
        a, b = first.facts, second.facts
        if a.scatters or b.scatters:
            return "one of them scatters"
        shares, other_shares = self.shares_reads(first.nest), self.shares_reads(second.nest)
        if (shares and _combines(second.nest)) or (other_shares and _combines(first.nest)):
            return "what reads windows shares its reads among neighbours instead"
        if len(first.nest.body) + len(second.nest.body) > _MAX_EQUATIONS:
            return "too many equations"
        if len(first.reads | first.writes | second.reads | second.writes) > _MAX_BUFFERS:
            return "too many buffers"
        between = second.deps - {first.number}
        if any(self.groups[k].ancestors >> first.number & 1 for k in between):
            return "another step must run between them"
        required, hints = [], []
        for name in sorted((first.reads | first.writes) & (second.reads | second.writes)):
            if name in first.writes or name in second.writes:
                if name in b.masked or (len(self.writers[name]) > 1 and name in first.writes):
                    return "the value is read shifted or has several writers"
                left = a.stores.get(name, a.loads.get(name, [])) if name in first.writes else a.loads[name]
                right = b.loads.get(name, []) + b.stores.get(name, [])
                pairs = [(p, q) for p in left for q in right]
                near = [(p, q) for p, q in pairs if not disjoint(p, q)]
                if name not in b.loads and not near:
                    hints += [(self.bytes[name], p, q) for p, q in pairs]
                elif all(sum(q is other for _, other in near) == 1 for q in right):
                    required += near  # each place is one of several that the first nest touches
                else:
                    required += pairs
            else:
                hints.append((self.bytes[name], a.loads[name][0], b.loads[name][0]))
        hints.sort(key=lambda h: -h[0])
        vertical = bool(required)
        found = align(first.nest.axes, second.nest.axes, required, [(p, q) for _, p, q in hints], by_position=vertical)
        if found is None:
            return "their loops do not line up"
        if not vertical and found.bound < max(len(first.nest.axes), len(second.nest.axes)):
            return "their loops do not line up"
        if not vertical and (self.waits(first, second) or self.waits(second, first)):
            return _WAITS
        if splits_scan(first.nest, found.left) or splits_scan(second.nest, found.right):
            return "a scan would run along several loops"
        nest = join(first.nest, second.nest, found, self.numerics)
        if (shares or other_shares) and len(contiguous_axes(nest, self.buffers)) > 1:
            return "what reads windows keeps to one order of memory"
        facts = Facts.of(nest)
        parts = (first.nest, second.nest)
        why = illegal(nest, self.buffers, fresh=facts.inner and not (a.inner or b.inner), parts=parts)
        if why:
            return why
        mine = (1 << first.number) | (1 << second.number)
        return Group(
            first.number,
            nest,
            None,
            set(facts.loads),
            set(facts.stores),
            facts,
            (first.deps | second.deps) - {first.number, second.number},
            (first.ancestors | second.ancestors) & ~mine,
        )

    def is_large(self, name: str) -> bool:
        """Whether a temporary is large enough to count in a GPU's memory."""
        on_gpu = self.buffers[name].device.startswith("cuda")
        return on_gpu and name not in self.fixed and self.bytes[name] >= _LARGE

    def waits(self, group: Group, other: Group) -> bool:
        """Whether library calls could read a large result of ``group``, and be done with it, before ``other`` can run.

        The two share operands only: joined, they read those once, but need more memory at once.
        """
        if not self.large_calls & other.ancestors & ~group.ancestors:
            return False
        for name in filter(self.is_large, group.writes):
            readers = [self.groups[k] for k in self.readers[name]]
            if len(readers) == self.uses[name] and all(
                r.call is not None and not r.ancestors >> other.number & 1 for r in readers
            ):
                return True
        return False

    def shares_reads(self, nest: Nest) -> bool:
        """Whether the nest reads windows on a GPU of which neighbours that share a point read less."""
        many = any(n > _FEW_PLACES and self.buffers[b].device.startswith("cuda") for b, n in places(nest).items())
        return many and bool(sliding_axes(nest, self.buffers))

    def try_folded(self, first: Group, second: Group) -> Group | None:
        """The joined group with a loop of one nest folded to the other's, which touches the same rows in parts.

        Or is a part of what the second reads with zeros around it, as the gradient of a slice.
        """
        if not first.writes & second.reads:
            return None
        shared = (first.reads | first.writes) & (second.reads | second.writes)
        for long, short in ((first, second), (second, first)):
            if long.nest is None or short.nest is None or short.facts is None:
                continue
            facts = short.facts
            padded = long is second and long.facts is not None and bool(long.facts.masked & first.writes)
            touched = max(len({*facts.loads.get(n, ()), *facts.stores.get(n, ())}) for n in shared)
            extents = {a.extent.const for a in short.nest.axes if a.extent.is_int}
            for axis, parts in folds(long.nest, extents):
                if touched < parts and not padded:
                    continue
                nest = fold(long.nest, axis, parts)
                if nest is None:
                    continue
                nest = self.settled(nest)
                made = replace(long, nest=nest, facts=Facts.of(nest))
                result = self.try_join(made, second) if long is first else self.try_join(first, made)
                if isinstance(result, Group):
                    return result
        return None

    # ---- result -----------------------------------------------------------------------------------------------

    def order(self) -> list[Step]:
        """Groups in a dependence-respecting order, near program order."""
        result: list[Step] = []
        done: set[int] = set()
        left = sorted(self.groups)
        while left:
            waiting: list[int] = []
            for k in left:
                group = self.groups[k]
                if group.deps <= done:
                    found = group.nest if group.nest is not None else group.call
                    assert found is not None
                    result.append(found)
                    done.add(k)
                else:
                    waiting.append(k)
            if len(waiting) == len(left):
                raise InvalidIR("fusion made a cycle of steps", where=self.program.name)
            left = waiting
        return result

    def decide(self, kind: str, subject: tuple[str, ...], taken: bool, reason: str, shared: int = 0) -> None:
        facts = (("bytes", shared),) if shared else ()
        self.decisions.append(Decision(kind, subject, taken, reason, facts))


def _bytes(buffer: Buffer) -> int:
    count = prod(buffer.shape)
    return _guess(count) * DTYPES[buffer.dtype].size


def _guess(count: Expr) -> int:
    if count.is_int:
        return count.const
    return int(count.evaluate({a.name: _SIZE_GUESS for a in count.atoms() if isinstance(a, Size)}))


def _touched(step: Step, writes: bool | None = None) -> list[str]:
    """Buffers a step reads, writes, or both."""
    found: list[str] = []
    if isinstance(step, LibraryCall):
        if writes is not True:
            found += _buffers_in((step.args, tuple(v for _, v in step.kwargs)))
        if writes is not False:
            found += [o for o in step.outs if o is not None] + list(step.mutates)
        return found
    for eqn in step.body:
        if isinstance(eqn, Store):
            if writes is not False or eqn.mode != "set":
                found.append(eqn.buffer)
        elif isinstance(eqn, Load) and writes is not True:
            found.append(eqn.buffer)
    return found


def _combines(nest: Nest) -> bool:
    return any(isinstance(e, Reduce | Scan) for e in nest.body)


def _live_steps(steps: Sequence[Step], fixed: set[str]) -> list[Step]:
    """Steps that something needs, with stores that nobody reads taken out."""
    needed = set(fixed)
    kept: list[Step] = []
    for step in reversed(steps):
        writes = _touched(step, writes=True)
        if isinstance(step, LibraryCall):
            if not any(b in needed for b in writes) and step.outs:
                continue
        else:
            body = tuple(e for e in step.body if not (isinstance(e, Store) and e.buffer not in needed))
            if not any(isinstance(e, Store | Check) for e in body):
                continue
            if len(body) != len(step.body):
                step = Nest(step.name, step.axes, simplify(body, "eager"))
        needed.update(_touched(step, writes=False))
        kept.append(step)
    return kept[::-1]
