"""What a plan has settled without asking anybody, as decisions: loops of kernels, their indices, and shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from lamina.base.decision import Decision
from lamina.ir.access import reads, writes
from lamina.ir.index import Expr
from lamina.ir.loops import Buffer, Load, Store, storage_bytes
from lamina.ir.plan import GpuSchedule, Kernel, Place, PlanStep, Schedule
from lamina.schedule import reasons, work_reasons

__all__ = ["kernel_decisions", "memory_decisions"]

Facts = tuple[tuple[str, int | float | str], ...]


def kernel_decisions(kernels: Iterable[Kernel]) -> Iterator[Decision]:
    """The loops of each kernel, by its first nest, and the bits of its indices where a GPU would rather have fewer."""
    for kernel in kernels:
        schedule = kernel.schedules[0]
        reason = work_reasons.LOOPS(kind=schedule.kind)
        if isinstance(schedule, GpuSchedule):
            wide = _needs_64_bits(kernel)
            facts = _gpu_facts(schedule, 64 if wide else 32)
            if wide:
                yield Decision("index width", (kernel.name,), True, work_reasons.WIDE_INDICES())
        else:
            facts = _cpu_facts(schedule)
        yield Decision("tile", (kernel.name,), True, reason, facts)


def _gpu_facts(schedule: GpuSchedule, bits: int) -> Facts:
    blocks = ", ".join(f"{'x'.join(b.axes)} {b.role} {b.size}" for b in schedule.blocks)
    return (("blocks", blocks), ("warps", schedule.warps), ("stages", schedule.stages), ("index_bits", bits))


def _cpu_facts(schedule: Schedule) -> Facts:
    facts: list[tuple[str, int | float | str]] = [("loops", ", ".join((*schedule.outer, *schedule.inner)))]
    if schedule.vector is not None:
        facts += [("vector", schedule.vector), ("width", schedule.width)]
    if schedule.tile:
        facts.append(("tile", ", ".join(f"{axis} {size}" for axis, size in schedule.tile)))
    return (*facts, ("parallel", schedule.parallel), ("index_bits", 64))


def _needs_64_bits(kernel: Kernel) -> bool:
    """Whether an element may be farther from its buffer's first one than 32 bits say."""
    places = {i for nest in kernel.nests for e in nest.body if isinstance(e, Load | Store) for i in e.index}
    return not all(_is_narrow(place) for place in places)


def _is_narrow(place: Expr) -> bool:
    low, high = place.bounds()
    return low is not None and high is not None and high.is_int and low > -(2**31) and high.const < 2**31


def memory_decisions(
    steps: Sequence[PlanStep], places: Iterable[Place], buffers: Mapping[str, Buffer]
) -> Iterator[Decision]:
    """Each temporary that lies where another one lay before, in the order in which they are first used."""
    offsets = {place.buffer: place.offset for place in places if place.offset is not None}
    owners: dict[Expr, str] = {}
    ranges: list[tuple[int, int, str]] = []
    for step in steps:
        for name in sorted(reads(step) | writes(step)):
            offset = offsets.pop(name, None)
            if offset is None:
                continue
            nbytes = storage_bytes(buffers[name])
            size = nbytes.const if nbytes.is_int and offset.is_int else 0
            before = owners.get(offset) or _below(ranges, offset, size)
            owners[offset] = name
            if size:
                ranges.append((offset.const, offset.const + size, name))
            if before is not None:
                yield Decision("reuse", (name, before), True, reasons.MEMORY_TAKEN(buffer=before), _bytes(nbytes))


def _below(ranges: Sequence[tuple[int, int, str]], offset: Expr, size: int) -> str | None:
    """The last of ``ranges`` that has bytes in common with ``size`` ones at ``offset``."""
    if not size:
        return None
    first = offset.const
    return next((name for begin, end, name in reversed(ranges) if begin < first + size and first < end), None)


def _bytes(nbytes: Expr) -> Facts:
    return (("bytes", nbytes.const if nbytes.is_int else str(nbytes)),)
