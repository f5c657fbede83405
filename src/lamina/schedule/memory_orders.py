"""Reductions that read memory along one axis and stores that go on along another.

An image that is normalised and stored with its channels innermost has no good order of loops: whatever is the vector
axis, the other side takes an element from every line of memory. Reduced in the order that it is read in, and computed
again in tiles that are transposed, both sides are vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lamina.ir.index import as_expr
from lamina.ir.loops import Buffer, Check, Compute, Load, Nest, Reduce, Store, axes_of_values, defined, operands
from lamina.ir.ops import OPS
from lamina.ir.use_def import UseDef
from lamina.schedule.lanes import LANES
from lamina.schedule.nest_parts import COSTLY, Late, is_free

__all__ = ["long_runs", "stores_across_reads"]


def stores_across_reads(nest: Nest, buffers: Mapping[str, Buffer]) -> Late | None:
    """The stores that go through memory in another order than what a nest for a CPU reduces, ``None`` without any."""
    if any(isinstance(e, Check) for e in nest.body):
        return None
    definitions = UseDef(nest.body)
    sums = [p for p, e in enumerate(nest.body) if isinstance(e, Reduce)]
    early = definitions.backward_slice(sums)
    reads = long_runs(nest, (e for p in early if isinstance(e := nest.body[p], Load)), buffers)
    reduced = {name for p in sums if isinstance(e := nest.body[p], Reduce) for name in e.axes}
    if len(reads) != 1:
        return None
    stores = [e for e in nest.body if isinstance(e, Store)]
    across = tuple(e for e in stores if _goes_across(nest, e, reads, buffers))
    if not across or not all(is_free(nest, e, buffers) for e in across):
        return None
    needed = _needed(nest, across, early, reduced)
    taken = [nest.body[p] for p in definitions.backward_slice([nest.body.index(e) for e in across], needed)]
    written = {e.buffer for e in stores}
    if any(isinstance(e, Reduce) or (isinstance(e, Load) and e.buffer in written) for e in taken):
        return None
    return Late(across, needed)


def _goes_across(nest: Nest, store: Store, reads: set[str], buffers: Mapping[str, Buffer]) -> bool:
    """Whether what varies along the axis that is read is stored with another axis innermost."""
    along = {name for i in store.index for name in i.axes()}
    return reads <= along and bool(runs := long_runs(nest, [store], buffers)) and runs.isdisjoint(reads)


def _needed(nest: Nest, across: Iterable[Store], early: Iterable[int], reduced: set[str]) -> tuple[str, ...]:
    """What rows are reduced to, and costly values that are reduced: these are kept, others are computed again."""
    varies = axes_of_values(nest)
    follows = {n for e in nest.body if isinstance(e, Reduce) for n in defined(e)}
    costly = {
        n for p in early if isinstance(e := nest.body[p], Compute) and OPS[e.op].cost >= COSTLY for n in defined(e)
    }
    for eqn in nest.body:
        if isinstance(eqn, Compute) and not follows.isdisjoint(operands(eqn)) and not varies[eqn.out] & reduced:
            follows.add(eqn.out)
    wanted = {n for e in across for n in operands(e)}
    needed: dict[str, None] = {}
    for eqn in reversed(nest.body):
        for name in defined(eqn):
            if name in wanted and name in follows | costly:
                needed[name] = None
            elif name in wanted:
                wanted.update(operands(eqn))
    return tuple(needed)


def long_runs(nest: Nest, accesses: Iterable[Load | Store], buffers: Mapping[str, Buffer]) -> set[str]:
    """Axes along which an access to several rows goes on in memory, for a vector's elements or more."""
    found: set[str] = set()
    for eqn in accesses:
        strides = buffers[eqn.buffer].strides
        place = sum((i * s for i, s in zip(eqn.index, strides, strict=True)), as_expr(0))
        steps = {place.coefficient(a): a for a in nest.axes if a.name in place.axes() and a.extent.const > 1}
        run = 1
        while run < LANES and (axis := steps.get(as_expr(run))) is not None:
            run *= axis.extent.const
        if len(steps) > 1 and run >= LANES:
            found.add(steps[as_expr(1)].name)
    return found
