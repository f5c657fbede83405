"""Results that may take over the memory of an operand: elementwise ones of kernels that are the last to read it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lamina.ir.access import views
from lamina.ir.index import Expr
from lamina.ir.library import may_alias
from lamina.ir.loops import Buffer, LibraryCall, Load, Nest, Reduce, Scan, Store, defined, operands, storage_bytes
from lamina.ir.plan import Kernel, KernelCall, Plan

__all__ = ["taken_over"]


def taken_over(plan: Plan, fresh: Collection[str], last: Mapping[str, int]) -> dict[str, str]:
    """The buffer whose memory each buffer takes over, by name. Linear in the steps, quadratic in a step's buffers.

    ``fresh`` are buffers with memory of their own that nobody outside holds, ``last`` the last step that uses each. A
    kernel may write where it reads if every point reads and writes the very same element, and what it writes needs no
    reduction's result: sums may be taken beside it.
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
                    if _alike(buffers[name], buffers[old]) and _elementwise(step, kernels[step.kernel], old, name):
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


def _elementwise(step: KernelCall, kernel: Kernel, read: str, written: str) -> bool:
    """Whether each point of the kernel that reads or writes one of the two does so at one and the same place."""
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
    if _combines(nest, stores[0]):
        return False
    if any(isinstance(e, Load) and e.buffer == names[1] for e in nest.body):
        return False
    # A place that an axis of the nest does not decide would be met by several points.
    return next(iter(places)).axes() >= {axis.name for axis in nest.axes if axis.extent != 1}


def _combines(nest: Nest, store: Store) -> bool:
    """Whether the stored value depends on other points than its own, or the nest goes over its points in an order."""
    if any(isinstance(e, Scan) for e in nest.body):
        return True
    needed = set(operands(store))
    for eqn in reversed(nest.body):
        if needed.intersection(defined(eqn)):
            if isinstance(eqn, Reduce):
                return True
            needed.update(operands(eqn))
    return False


def _places(nest: Nest, names: tuple[str, str]) -> list[Expr]:
    return [e.index[0] for e in nest.body if isinstance(e, Load | Store) and e.buffer in names]
