"""Matrix products on a GPU: the vendor's library, or a kernel of our own that works on the result while it has it.

The library multiplies faster, and its result goes through memory once more for whatever is computed on it; an operand
that is computed, such as weights that are kept as bytes, goes through memory twice. A kernel of our own saves
these passes. Both times are estimated from bytes and operations; the lower one decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from lamina.base.decision import Decision
from lamina.base.dtypes import DTYPES
from lamina.base.target import TENSOR_CORES, Target
from lamina.ir.access import reads, views, writes
from lamina.ir.index import Expr, as_expr, prod
from lamina.ir.library import first_factor, may_alias
from lamina.ir.loops import (
    Buffer,
    BufferView,
    Compute,
    LibraryCall,
    LoopProgram,
    Nest,
    Step,
    Store,
)
from lamina.ir.ops import OPS
from lamina.ir.product import as_product
from lamina.schedule import work_reasons
from lamina.schedule.flatten import flatten
from lamina.schedule.group import StepFacts
from lamina.schedule.inline import inline_into
from lamina.schedule.memo import Memo, ProductEstimate
from lamina.schedule.product_nests import product_nest, with_epilogue
from lamina.schedule.product_tiles import multiplications, product_schedules, reads_meanwhile, tiled_us, typical_tile

__all__ = ["library_us", "place_products"]

_LIBRARY_RATE = 2.8
"""Multiply-adds of half precision that a multiprocessor of an H100 or H200 does in a nanosecond, in thousands, in the
library's large products: 740 TFLOP/s on 132 processors (measured: 690 to 790)."""

_EPILOGUE_RATE = 73.0
"""Simple operations of an epilogue that a multiprocessor does in a nanosecond while nothing hides behind them (H100:
GELU with erf on 38.5 million elements adds 73 us to a product, SiLU and a product on 57.7 million 37)."""

_HIDDEN = 0.75
"""The share of that time that the same operations take in an elementwise kernel, behind its memory accesses."""

_APPROXIMATE = {**dict.fromkeys(("exp", "sigmoid", "tanh", "div", "rsqrt", "exp2"), 3), "erf": 6}
"""Costs of operations that kernels take the hardware's, or shorter, approximations of."""

_EXPOSED = 0.6
"""The share of an epilogue's time that shows where tiles are read meanwhile (H100: 0.35 to 1)."""

_SLOWER = 1.25
"""How much longer than their bytes products take that are bound by them (H100, 50176x768x192: 43 us for 32)."""

_LAUNCH_US = 2.5
"""What a kernel more costs, whatever it does."""

_CLEARLY = 0.9
"""The share of the library's time that our kernel must stay below: estimates are no better than that."""

_LARGEST = 1 << 31
"""Multiplications up to which launches and latencies decide, which estimates know. Beyond (measured from 7e9 on) our
kernels with epilogues took 1.05 to 1.4 times what the library and a kernel for the epilogue took together."""

_GUESS = 1 << 18
"""Elements that a tensor of unknown size counts as."""


def library_us(multiplied: int, target: Target) -> float:
    """Microseconds that the library takes for so many multiplications of half precision, by estimate."""
    return multiplied / (_LIBRARY_RATE * target.processors * 1e6)


def place_products(
    program: LoopProgram, target: Target, settled: Mapping[str, bool] | None = None, memo: Memo | None = None
) -> tuple[LoopProgram, list[Decision]]:
    """The program with those library products replaced by nests that are faster with what surrounds them.

    ``settled`` says of library calls, by name, whether they are to be replaced, whatever the estimates. Each product
    with a prologue or an epilogue gets a ``Decision("product", ...)`` with both estimates in microseconds, which are in
    ``memo.products`` as well.
    """
    if not target.approximate or not target.has(TENSOR_CORES):
        return program, []
    chooser = _Chooser(program, target, settled or {}, memo or Memo())
    for call in program.steps:
        if isinstance(call, LibraryCall) and first_factor(call.op) is not None:
            chooser.consider(call)
    if not chooser.changed:
        return program, chooser.decisions
    return replace(program, steps=tuple(chooser.steps)), chooser.decisions


@dataclass(frozen=True, slots=True)
class _Way:
    """A library product as a nest: with the nests ``before`` copied into it, and joined with its ``reader``, if any."""

    call: LibraryCall
    nest: Nest
    before: tuple[Nest, ...]
    reader: Nest | None


@dataclass(frozen=True, slots=True)
class _Estimate:
    """Microseconds of a way as one kernel, and of the library's call and the nests around it."""

    way: _Way
    multiplied: int
    library_us: float
    template_us: float

    @property
    def gain(self) -> float:
        return self.library_us - self.template_us

    @property
    def is_faster(self) -> bool:
        return self.template_us < _CLEARLY * self.library_us


class _Chooser:
    """The steps of a program while products become nests."""

    def __init__(self, program: LoopProgram, target: Target, settled: Mapping[str, bool], memo: Memo) -> None:
        self.target, self.settled, self.memo = target, settled, memo
        self.buffers = program.buffer_map()
        self.steps: list[Step] = list(program.steps)
        self.kept = {o.buffer for o in program.outputs if isinstance(o, BufferView)} | {
            b.name for b in program.buffers if b.kind == "input"
        }
        self.memory_of = _memory_of(program)
        self.decisions: list[Decision] = []
        self.changed = False

    def consider(self, call: LibraryCall) -> None:
        """Join a product with what computes its operands and its only elementwise reader, where that is faster."""
        found = [way for way in self.ways(call) if self.fits(way)]
        if found:
            estimates = [self.estimated(way) for way in found]
            self.decide(call, max(estimates, key=lambda each: (each.is_faster, each.gain)))

    def ways(self, call: LibraryCall) -> list[_Way]:
        """Nests that could do more than the product: with its reader, with what computes its operands, with both."""
        nest = self.memo.of("product", (call,), lambda: product_nest(call, self.buffers))
        if nest is None:
            return []
        plain = _Way(call, nest, (), None)
        computed = self.with_prologues(plain)
        starts = [plain] if computed is None else [plain, computed]
        joined = [found for start in starts if (found := self.with_epilogue(start)) is not None]
        return joined if computed is None else [computed, *joined]

    def with_prologues(self, way: _Way) -> _Way | None:
        """The product with the nests copied into it that compute its operands for it alone; None if there is none."""
        nest, before = way.nest, list[Nest]()
        at = self.steps.index(way.call)
        for buffer in sorted(self.reads(way.call) - self.kept):
            writers = [step for step in self.steps if buffer in self.writes(step)]
            readers = [step for step in self.steps if buffer in self.reads(step)]
            if len(writers) != 1 or len(readers) != 1 or not isinstance(producer := writers[0], Nest):
                continue
            if not StepFacts.of(producer).pure or self.is_overwritten(producer, at):
                continue
            made = self.inlined(nest, buffer, producer)
            if made is not None:
                nest = made
                before.append(producer)
        return replace(way, nest=nest, before=tuple(before)) if before else None

    def reads(self, step: Step) -> AbstractSet[str]:
        return self.memo.of("reads", (step,), lambda: reads(step))

    def writes(self, step: Step) -> AbstractSet[str]:
        return self.memo.of("writes", (step,), lambda: writes(step))

    def inlined(self, nest: Nest, buffer: str, producer: Nest) -> Nest | None:
        """The product that computes an operand as ``producer`` does; None where it would be no product any more."""

        def found() -> Nest | None:
            made = inline_into(nest, buffer, producer, "fast")
            if made is None or as_product(flatten((made,), self.buffers).nests[0]) is None:
                return None
            return made

        return self.memo.of("inlined", (nest, buffer, producer), found)

    def is_overwritten(self, step: Step, until: int) -> bool:
        """Whether anything that ``step`` reads, or may share memory with, is written before the step at ``until``."""
        read = {self.memory_of.get(b, b) for b in self.reads(step)}
        between = self.steps[self.steps.index(step) + 1 : until]
        return any(read & {self.memory_of.get(b, b) for b in self.writes(other)} for other in between)

    def with_epilogue(self, way: _Way) -> _Way | None:
        """The product with its only elementwise reader, or the first one; None where they cannot be one nest."""
        call, out = way.call, way.call.outs[0]
        readers = [k for k, step in enumerate(self.steps) if out in self.reads(step)]
        if out is None or not readers or not isinstance(reader := self.steps[readers[0]], Nest):
            return None
        taken: tuple[Step, ...] = (call, *way.before)
        if any(self.is_overwritten(step, readers[0]) for step in taken):
            return None
        stored = len(readers) > 1 or out in self.kept

        def found() -> Nest | None:
            made = with_epilogue(way.nest, reader, out)
            if made is None or stored:
                return made
            body = tuple(e for e in made.body if not (isinstance(e, Store) and e.buffer == out))
            return Nest(made.name, made.axes, body)

        made = self.memo.of("epilogue", (way.nest, reader, out, stored), found)
        return None if made is None else replace(way, nest=made, reader=reader)

    def fits(self, way: _Way) -> bool:
        """Whether a kernel can do it, in sizes that are known."""
        out = self.buffers[way.call.outs[0] or ""]

        def found() -> bool:
            flat = flatten((way.nest,), self.buffers)
            dtypes = {f"b{k}": d for k, d in enumerate(flat.dtypes)}
            return bool(product_schedules(flat.nests[0], dtypes, self.target))

        return all(n.is_int for n in out.shape[-2:]) and self.memo.of("fits", (way.nest,), found)

    def estimated(self, way: _Way) -> _Estimate:
        """What the library and other kernels take for it, and what one kernel does."""
        parts = (way.call, way.nest, way.reader, *way.before)
        return replace(self.memo.of("estimate", parts, lambda: self.estimate(way)), way=way)

    def estimate(self, way: _Way) -> _Estimate:
        call, reader = way.call, way.reader
        (flat,) = flatten((way.nest,), self.buffers).nests
        work = library_us(multiplications(flat), self.target)
        apart: list[Step] = [*way.before, call, *([] if reader is None else [reader])]
        moved = {b: _nbytes(self.buffers[b]) for step in [*apart, way.nest] for b in reads(step) | writes(step)}

        def memory(step: Step) -> float:
            return sum(moved[b] for b in reads(step) | writes(step)) / self.target.copy_gbs / 1e3

        library = max(work, _SLOWER * memory(call))
        template = max(tiled_us(flat, self.target), _SLOWER * memory(way.nest))
        for producer in way.before:
            library += memory(producer) + _LAUNCH_US
        if way.before:
            template = max(template, self.prologues_us(flat))
        if reader is not None:
            computing = self.epilogue_us(call, reader)
            library += max(memory(reader), _HIDDEN * computing) + _LAUNCH_US
            template += computing * (_EXPOSED if reads_meanwhile(flat, self.target) else 1.0)
        return _Estimate(way, multiplications(flat), library, template)

    def decide(self, call: LibraryCall, found: _Estimate) -> None:
        way, library, template = found.way, found.library_us, found.template_us
        taken = found.is_faster
        saved = work_reasons.SAVES_PROLOGUE_PASS if way.before else work_reasons.SAVES_EPILOGUE_PASS
        reason = (saved if taken else work_reasons.LIBRARY_IS_FASTER)()
        if taken and found.multiplied > _LARGEST:
            taken, reason = False, work_reasons.PRODUCT_TOO_LARGE()
        if call.name in self.settled:
            taken, reason = self.settled[call.name], work_reasons.SETTLED_BY_CLOCK()
        facts = (("library_us", round(library, 1)), ("template_us", round(template, 1)))
        others = (*way.before, *([] if way.reader is None else [way.reader]))
        subject = (call.name, *(nest.name for nest in others))
        self.decisions.append(Decision("product", subject, taken, reason, facts))
        self.memo.products[call.name] = ProductEstimate(template, library, taken)
        if taken:
            self.steps[self.steps.index(call if way.reader is None else way.reader)] = way.nest
            gone = {id(step) for step in (*way.before, call)}
            self.steps = [step for step in self.steps if id(step) not in gone]
            self.changed = True

    def prologues_us(self, flat: Nest) -> float:
        """Microseconds of computing operands, each again for every tile of the result that it goes into."""
        product = as_product(flat)
        assert product is not None
        rows, columns = typical_tile(flat, self.target)
        extents = {axis.name: axis.extent for axis in flat.axes}
        total = 0.0
        for own, others, size, prologue in (
            (product.rows, product.columns, columns, product.prologues[0]),
            (product.columns, product.rows, rows, product.prologues[1]),
        ):
            points = _points(extents, (*product.batch, *own, *product.inner))
            each = sum(_APPROXIMATE.get(e.op, OPS[e.op].cost) for e in prologue if isinstance(e, Compute))
            total += points * each * -(-_points(extents, others) // size)
        return total / (_EPILOGUE_RATE * 1e3 * self.target.processors)

    def epilogue_us(self, call: LibraryCall, reader: Nest) -> float:
        """Microseconds that a reader's operations take on the tiles of a product."""
        out = self.buffers[call.outs[0] or ""]
        each = sum(_APPROXIMATE.get(e.op, OPS[e.op].cost) for e in reader.body if isinstance(e, Compute))
        count = _nbytes(out) // DTYPES[out.dtype].size
        return count * each / (_EPILOGUE_RATE * 1e3 * self.target.processors)


def _memory_of(program: LoopProgram) -> dict[str, str]:
    """A buffer that stands for all those that may share memory, of each that library calls may return views of."""
    found: dict[str, str] = {}
    for step in program.steps:
        if isinstance(step, LibraryCall) and may_alias(step.op):
            names = {*(view.buffer for view in views(step)), *(out for out in step.outs if out is not None)}
            joined = {found.get(name, name) for name in names}
            first = min(joined)
            found |= {name: first for name, other in found.items() if other in joined} | dict.fromkeys(names, first)
    return found


def _points(extents: Mapping[str, Expr], axes: Sequence[str]) -> int:
    sizes = [extents[a] for a in axes]
    return prod(n if n.is_int else as_expr(_GUESS) for n in sizes).const


def _nbytes(buffer: Buffer) -> int:
    count = prod(buffer.shape)
    return (count.const if count.is_int else _GUESS) * DTYPES[buffer.dtype].size
