"""Errors of steps, and what is written to inputs before them.

A step raises for its data: an index outside of a dimension, a division by zero, a matrix without an inverse. Where such
an error leaves inputs as they were, the program's captured form can be run in its place, which leaves them as eager
does. So inputs in a CPU's memory are written to after all that may raise, where that is possible.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from lamina.base.user_kernels import is_user_kernel
from lamina.ir.access import writes
from lamina.ir.loops import (
    Buffer,
    Check,
    Equation,
    LibraryCall,
    Nest,
    Reduce,
    Scan,
    Step,
    axes_of_values,
    defined,
    operands,
)
from lamina.schedule.accesses import loaded

__all__ = ["adds_to", "checked_first", "inputs_in_memory", "may_raise", "repeatable", "writes_after_errors"]

_NEVER_RAISES = re.compile(
    r"aten\.(_?addm[mv]_?|addbmm|baddbmm|bmm|mm|mv|dot|vdot|_?convolution(_backward)?|_softmax|_log_softmax|sort|topk"
    r"|_scaled_dot_product\w*|native_(batch|layer|group)_norm(_backward)?|native_dropout|rand\w*|normal\w*|uniform|copy"
    r"|\w*_pool\dd\w*|cum(sum|prod)|clone|empty\w*|full\w*|zeros\w*|ones\w*)\."
    r"|mkldnn\.|lamina\."
)
"""Library calls that raise for the shapes and types of their operands only, which are checked when they are traced."""


def inputs_in_memory(buffers: Iterable[Buffer]) -> frozenset[str]:
    """The inputs in a CPU's memory: a GPU tells of errors when it is asked, and its context ends with them."""
    return frozenset(b.name for b in buffers if b.kind == "input" and b.on_cpu)


def may_raise(step: Step) -> bool:
    """Whether ``step`` may end in an error that its data decides."""
    if isinstance(step, Nest):
        return any(isinstance(e, Check) for e in step.body)
    return is_user_kernel(step.op) or _NEVER_RAISES.match(step.op) is None


def writes_after_errors(steps: Sequence[Step], inputs: frozenset[str]) -> list[set[int]]:
    """For each of the steps, the earlier ones that may raise and so are to be run before it writes to an input."""
    found: list[set[int]] = []
    raising: set[int] = set()
    for at, step in enumerate(steps):
        found.append(set(raising) if raising and not inputs.isdisjoint(writes(step)) else set())
        if may_raise(step):
            raising.add(at)
    return found


def checked_first(steps: Sequence[Step], inputs: frozenset[str]) -> list[Step]:
    """``steps`` with a nest before each that adds to one of ``inputs`` and may raise, which raises in its place.

    What was added before the error would be added again by whoever runs the program again.
    """
    result: list[Step] = []
    for step in steps:
        if isinstance(step, Nest) and may_raise(step) and adds_to(step, inputs):
            result.append(_checks_of(step))
        result.append(step)
    return result


def adds_to(nest: Nest, inputs: frozenset[str]) -> bool:
    """Whether ``nest`` reads what it overwrites in one of ``inputs``."""
    return not inputs.isdisjoint({*loaded(nest)} & writes(nest))


def _checks_of(nest: Nest) -> Nest:
    """A nest that only checks what ``nest`` checks, over the axes that this depends on."""
    needed: set[str] = set()
    body: list[Equation] = []
    for eqn in reversed(nest.body):
        if isinstance(eqn, Check) or not needed.isdisjoint(defined(eqn)):
            needed.update(operands(eqn))
            body.append(eqn)
    varies = axes_of_values(nest)
    used = {axis for eqn in body for name in (*defined(eqn), *operands(eqn)) for axis in varies[name]}
    whole = any(isinstance(eqn, Reduce | Scan) for eqn in body)
    axes = tuple(a for a in nest.axes if whole or a.name in used)
    return Nest(f"{nest.name}_checks", axes, tuple(reversed(body)))


def repeatable(groups: Iterable[Sequence[Step]], buffers: Mapping[str, Buffer]) -> bool:
    """Whether an error of any step leaves inputs so that running the whole program again, on them, is running it once.

    ``groups`` are the steps in the order in which they run, with those of one kernel together: any of them may have
    been done in part. An input may have been written to by then if nothing read what was there before.
    """
    inputs = frozenset(b.name for b in buffers.values() if b.kind == "input")
    read: set[str] = set()
    changed: set[str] = set()
    held: set[tuple[Equation, ...]] = set()
    """The checks that were made by then."""
    for group in groups:
        raising = [s for s in group if may_raise(s) and not (isinstance(s, Nest) and _checks_of(s).body in held)]
        held.update(_checks_of(step).body for step in raising if isinstance(step, Nest))
        for step in group:
            read.update(loaded(step))
            changed |= {name for name in writes(step) & inputs if name in read or isinstance(step, LibraryCall)}
        if changed and raising:
            return False
    return True
