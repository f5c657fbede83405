"""Which nests may use the hardware's approximate functions although not all they store is rounded to 16 bits.

A reduction that is cut stores parts in float32, which other nests join and round at the end; that rounding hides the
approximation as it does where everything is one kernel. Numbers that no approximated function went into do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lamina.base.dtypes import DTYPES
from lamina.ir.access import reads
from lamina.ir.loops import Buffer, Check, Compute, Load, LoopProgram, Nest, Store, defined, operands

__all__ = ["approximates", "lost_to_rounding"]

_APPROXIMATED = frozenset({"erf", "exp", "sigmoid", "tanh"})
"""Operations with an approximation."""


def lost_to_rounding(program: LoopProgram, temporary: Iterable[str]) -> frozenset[str]:
    """Names of the nests whose approximated values all end in 16 bits, there or by way of the ``temporary`` buffers."""
    buffers = program.buffer_map()
    fine = {name for name in temporary if buffers[name].kind != "input"}
    for step in program.steps:
        if not isinstance(step, Nest):
            fine -= reads(step)
    nests = [step for step in program.steps if isinstance(step, Nest)]
    readers: dict[str, list[Nest]] = {b: [] for b in fine}
    for nest in nests:
        for b in reads(nest) & fine:
            readers[b].append(nest)
    while lost := {b for b in fine if not all(_ends(nest, {b}, fine, buffers) for nest in readers[b])}:
        fine -= lost
    return frozenset(n.name for n in nests if approximates(n) and _ends(n, set(), fine, buffers))


def approximates(nest: Nest) -> bool:
    """Whether a nest has operations with an approximation."""
    return any(isinstance(e, Compute) and e.op in _APPROXIMATED for e in nest.body)


def _ends(nest: Nest, loaded: set[str], fine: set[str], buffers: Mapping[str, Buffer]) -> bool:
    """Whether what is made of these buffers, or without one of approximated functions, is rounded in the end."""
    names: set[str] = set()
    for eqn in nest.body:
        if isinstance(eqn, Store):
            held = DTYPES[buffers[eqn.buffer].dtype]
            if eqn.value in names and held.is_float and held.size > 2 and eqn.buffer not in fine:
                return False
        elif not isinstance(eqn, Check):
            starts = isinstance(eqn, Load) and eqn.buffer in loaded
            approximated = not loaded and isinstance(eqn, Compute) and eqn.op in _APPROXIMATED
            if starts or approximated or any(n in names for n in operands(eqn)):
                names.update(defined(eqn))
    return True
