"""Values stored in 16 bits or fewer only: functions with errors of a few float32 units are exact enough for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.codegen.cpp.expressions import WIDENED
from lamina.ir.loops import Check, Equation, Load, Store, defined, operands

__all__ = ["COARSE", "kept_in_16_bits"]

COARSE = ("cos", "erf", "sin")
"""Operations with a vector form ``coarse_..._`` that takes about half the time of the one for float32."""


def kept_in_16_bits(body: Sequence[Equation], dtypes: Mapping[str, str]) -> frozenset[str]:
    """Values that go into nothing but stores of 16 bits: no wider store, no check and no place depends on them."""
    fine: set[str] = set()
    values: set[str] = set()
    for eqn in reversed(body):
        used = set(operands(eqn))
        if isinstance(eqn, Store):
            fine |= used - {eqn.value} if dtypes[eqn.buffer] in WIDENED else used
        elif isinstance(eqn, Check):
            fine |= used
        else:
            values |= set(defined(eqn))
            if isinstance(eqn, Load) or not fine.isdisjoint(defined(eqn)):
                fine |= used
    return frozenset(values - fine)
