"""Results that may take over the memory of an operand: elementwise ones of kernels that are the last to read it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

from lamina.ir.access import views
from lamina.ir.index import Expr
from lamina.ir.library import may_alias
from lamina.ir.loops import (
    Buffer,
    Check,
    LibraryCall,
    Load,
    Nest,
    Reduce,
    Scan,
    Store,
    axes_of_values,
    defined,
    operands,
    storage_bytes,
)
from lamina.ir.plan import GpuSchedule, Kernel, KernelCall, Plan

__all__ = ["taken_over"]

_THREADS = 32
"""Threads of a warp."""
_PLAIN = ("sum", "prod", "min", "max", "any")
"""Reductions whose kernels load each point once."""


def taken_over(plan: Plan, fresh: Collection[str], last: Mapping[str, int]) -> dict[str, str]:
    """The buffer whose memory each buffer takes over, by name. Linear in the steps, quadratic in a step's buffers.

    ``fresh`` are buffers with memory of their own that nobody outside holds, ``last`` the last step that uses each. A
    kernel may write where it reads if every point reads and writes the very same element, once, and writes what it
    makes of all that it reads there: sums may be taken beside it, but nothing along the row may need them.
    """
    kernels = {k.name: k for k in plan.kernels}
    buffers = plan.buffer_map()
    aliased = {
        name
        for step in plan.steps
        if isinstance(step, LibraryCall) and may_alias(step.op)
        for name in (*(v.buffer for v in views(step)), *(o for o in step.outs if o is not None))
    }
    own = set(fresh) - aliased
    found: dict[str, str] = {}
    written: set[str] = set()
    for at, step in enumerate(plan.steps):
        if isinstance(step, KernelCall):
            dying = [n for n in step.buffers if n in own and last.get(n) == at and n not in step.writes]
            new = [n for n in step.writes if n in own and n not in written]
            for name in new:
                for old in dying:
                    if _alike(buffers[name], buffers[old]) and _elementwise(
                        step, kernels[step.kernel], old, name, buffers[name].on_cpu
                    ):
                        found[name] = old
                        dying.remove(old)
                        break
            written.update(step.writes)
        else:
            written.update(o for o in step.outs if o is not None)
    return found


def _alike(a: Buffer, b: Buffer) -> bool:
    """Whether one's memory is as large as the other's; their shapes may differ."""
    return (a.dtype, a.device, storage_bytes(a)) == (b.dtype, b.device, storage_bytes(b))


def _elementwise(step: KernelCall, kernel: Kernel, read: str, written: str, loops: bool) -> bool:
    """Whether each point of the kernel that reads or writes one of the two does so at one and the same place, and may.

    ``loops``: the kernel is a CPU's.
    """
    if step.buffers.count(read) != 1 or step.buffers.count(written) != 1:
        return False
    names = (f"b{step.buffers.index(read)}", f"b{step.buffers.index(written)}")
    users = [nest for nest in kernel.nests if _places(nest, names)]
    if len(users) != 1:
        return False
    (nest,) = users
    places = set(_places(nest, names))
    stores = [e for e in nest.body if isinstance(e, Store) and e.buffer == names[1]]
    if len(places) != 1 or len(stores) != 1 or any(e.mode != "set" or e.mask is not None for e in stores):
        return False
    if not _made_of_all(nest, stores[0], names[0]):
        return False
    # A place that an axis of the nest does not decide would be met by several points.
    if not places.pop().axes() >= {axis.name for axis in nest.axes if axis.extent != 1}:
        return False
    schedules = [s for n, s in zip(kernel.nests, kernel.schedules, strict=False) if n is nest]
    if loops:
        return _in_loops(nest, stores[0], names[0])
    if any(isinstance(s, GpuSchedule) and not _one_thread_each(s) for s in schedules):
        return False
    held = any(isinstance(s, GpuSchedule) and _holds_rows(nest, stores[0], s) for s in schedules)
    if not held and _feeds_reductions(nest, names[0]) and _combines(nest, stores[0]):
        return False
    return not any(isinstance(e, Load) and e.buffer == names[1] for e in nest.body)


def _in_loops(nest: Nest, store: Store, buffer: str) -> bool:
    """Whether a CPU's loops, whatever they are, are through with a point of ``buffer`` when ``store`` writes it over.

    Several loops may go over a point one after the other, and read it again. Where nothing is reduced one loop does
    all that there is to do with a point, after it has read it. Elsewhere nothing else may be stored of what is read,
    and what is reduced of it must be needed by ``store``: then it is complete.
    """
    if any(isinstance(e, Scan | Load) and (isinstance(e, Scan) or e.buffer == store.buffer) for e in nest.body):
        return False
    if not any(isinstance(e, Reduce) for e in nest.body):
        axes = {axis.name for axis in nest.axes if axis.extent != 1}
        written = (e for e in nest.body if isinstance(e, Store))
        return all({name for i in e.index for name in i.axes()} >= axes for e in written)
    needed = {store.value}
    for eqn in reversed(nest.body[: nest.body.index(store)]):
        if not needed.isdisjoint(defined(eqn)):
            needed.update(operands(eqn))
    found: set[str] = set()
    for eqn in nest.body:
        if isinstance(eqn, Load) and eqn.buffer == buffer:
            found.add(eqn.out)
        elif eqn is not store and found.intersection(operands(eqn)):
            if isinstance(eqn, Store | Check) or (isinstance(eqn, Reduce) and needed.isdisjoint(eqn.outs)):
                return False
            if not isinstance(eqn, Reduce):
                found.update(defined(eqn))
    return True


def _made_of_all(nest: Nest, store: Store, buffer: str) -> bool:
    """Whether ``store`` writes what is made of all that the nest reads of ``buffer``.

    What it was not made of may be read after it, by this thread or by another one that is late.
    """
    needed = {store.value}
    for eqn in reversed(nest.body[: nest.body.index(store)]):
        if not needed.isdisjoint(defined(eqn)):
            needed.update(operands(eqn))
    return all(e.out in needed for e in nest.body if isinstance(e, Load) and e.buffer == buffer)


def _one_thread_each(schedule: GpuSchedule) -> bool:
    """Whether no two threads work on the same point of a tile: one could read it after the other has written to it."""
    return prod(block.size for block in schedule.blocks) >= _THREADS * schedule.warps


def _feeds_reductions(nest: Nest, buffer: str) -> bool:
    """Whether a reduction or a scan needs what the nest reads of ``buffer``; else a point of it is read for itself."""
    found: set[str] = set()
    for eqn in nest.body:
        if isinstance(eqn, Load) and eqn.buffer == buffer:
            found.add(eqn.out)
        elif found.intersection(operands(eqn)):
            if isinstance(eqn, Reduce | Scan):
                return True
            found.update(defined(eqn))
    return False


def _holds_rows(nest: Nest, store: Store, schedule: GpuSchedule) -> bool:
    """Whether a program reads all the points that the reductions before ``store`` need, once, before it stores any."""
    if schedule.kind not in ("rows", "mixed") or schedule.peel or any(isinstance(e, Scan) for e in nest.body):
        return False
    whole = {axis for block in schedule.blocks if block.role == "whole" for axis in block.axes}
    needed = {store.value}
    for eqn in reversed(nest.body):
        if eqn is store or needed.isdisjoint(defined(eqn)):
            continue
        if isinstance(eqn, Reduce) and (eqn.op not in _PLAIN or not whole.issuperset(eqn.axes)):
            return False
        needed.update(operands(eqn))
    return True


def _combines(nest: Nest, store: Store) -> bool:
    """Whether the nest may read a point again after ``store``, or ``store`` needs more than its own point.

    It reads every point once if its reductions are plain, go over the same axes, and nothing along these needs their
    results. (A variance may look at its row's first point from everywhere.)
    """
    reductions = [e for e in nest.body if isinstance(e, Reduce)]
    if any(isinstance(e, Scan) for e in nest.body) or len({frozenset(e.axes) for e in reductions}) > 1:
        return True
    if any(e.op not in _PLAIN for e in reductions):
        return True
    reduced = {axis for e in reductions for axis in e.axes}
    axes = axes_of_values(nest)
    late: set[str] = set()
    for eqn in nest.body:
        if isinstance(eqn, Reduce):
            if eqn.value in late:
                return True
            late.update(eqn.outs)
        elif late.intersection(operands(eqn)):
            along = {name for e in eqn.index for name in e.axes()} if isinstance(eqn, Store) else set()
            along.update(axis for name in defined(eqn) for axis in axes[name])
            if eqn is store or along & reduced:
                return True
            late.update(defined(eqn))
    return False


def _places(nest: Nest, names: tuple[str, str]) -> list[Expr]:
    return [e.index[0] for e in nest.body if isinstance(e, Load | Store) and e.buffer in names]
