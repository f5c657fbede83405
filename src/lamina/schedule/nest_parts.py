"""Parts of a nest that become nests of their own, and the memory between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lamina.ir.index import Axis
from lamina.ir.loops import (
    Buffer,
    Check,
    Compute,
    Constant,
    Equation,
    Index,
    Load,
    Nest,
    Store,
    defined,
    operands,
    row_major_strides,
)

__all__ = ["COSTLY", "FEW", "LEAST_POINTS", "Late", "cone_of", "dense_buffer", "is_free", "live_equations"]

COSTLY = 12
"""Instructions of a function that takes much longer for one number than for an element of a vector, or than a load."""
FEW = 8
"""How often an element that lies far from others is read where a copy of it, or another order, gains nothing yet; and
how many vectors are summed up where it takes as long again to sum up the lanes of the last.
"""
LEAST_POINTS = 1 << 14
"""Points of a nest below which one more nest costs more than it gains."""


@dataclass(frozen=True, slots=True)
class Late:
    """Stores of a nest that are moved to a nest after it, and the values they depend on that it keeps for them."""

    stores: tuple[Store, ...]
    needed: tuple[str, ...]


def dense_buffer(label: str, dtype: str, axes: Sequence[Axis]) -> Buffer:
    """Dense memory for a value of each point of ``axes``."""
    shape = tuple(axis.extent for axis in axes)
    return Buffer(label, dtype, shape, row_major_strides(shape))


def is_free(nest: Nest, store: Store, buffers: Mapping[str, Buffer]) -> bool:
    """Whether nothing else in the nest has to do with what is stored, and it is no input, which errors leave alone."""
    others = [e for e in nest.body if isinstance(e, Load | Store) and e.buffer == store.buffer]
    return store.mode == "set" and len(others) == 1 and buffers[store.buffer].kind != "input"


def cone_of(nest: Nest, names: Sequence[str]) -> list[Equation]:
    """What the values depend on, in order; nothing where that is more than loads and plain operations on them."""
    wanted = set(names)
    cone: list[Equation] = []
    for eqn in reversed(nest.body):
        if wanted.isdisjoint(defined(eqn)):
            continue
        if not isinstance(eqn, Load | Constant | Compute | Index):
            return []
        cone.append(eqn)
        wanted.update(operands(eqn))
    return cone[::-1]


def live_equations(body: Sequence[Equation]) -> tuple[Equation, ...]:
    """The equations that a store or check needs, and these themselves, in order."""
    wanted: set[str] = set()
    kept: list[Equation] = []
    for eqn in reversed(body):
        if isinstance(eqn, Store | Check) or not wanted.isdisjoint(defined(eqn)):
            wanted.update(operands(eqn))
            kept.append(eqn)
    return tuple(reversed(kept))
