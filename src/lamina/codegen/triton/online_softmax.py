"""Sums of exp(x - max of x), which a loop takes together with the maximum: one pass instead of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lamina.ir.loops import Compute, Equation, Reduce
from lamina.ir.use_def import UseDef

__all__ = ["Online", "online_sums"]


@dataclass(frozen=True, slots=True)
class Online:
    """A sum of exp(value - shift) taken beside the maximum of ``value``.

    ``guarded``: the shift is 0 where the maximum is infinite.
    """

    maximum: str
    value: str
    guarded: bool


def online_sums(body: Sequence[Equation]) -> dict[int, Online]:
    """The sums of a nest that stand on the maximum of the same values, by position."""
    return _Finder(body).run()


class _Finder:
    def __init__(self, body: Sequence[Equation]) -> None:
        self.body, self.use_def = body, UseDef(body)

    def run(self) -> dict[int, Online]:
        """Sums of exp(x - max of x), by position."""
        found: dict[int, Online] = {}
        for p, eqn in enumerate(self.body):
            if not isinstance(eqn, Reduce) or eqn.op != "sum":
                continue
            power = self.use_def.compute(eqn.value, "exp")
            away = self.use_def.compute(power.ins[0], "sub") if power is not None else None
            if away is None:
                continue
            value, shift = away.ins
            guarded = self.use_def.compute(shift, "where")
            top = guarded.ins[2] if guarded is not None and self._guard(guarded) else shift
            peak = self.use_def.definition(top)
            if isinstance(peak, Reduce) and peak.op == "max" and peak.value == value and peak.axes == eqn.axes:
                found[p] = Online(top, value, guarded is not None)
        tops = [o.maximum for o in found.values()]
        return {p: o for p, o in found.items() if tops.count(o.maximum) == 1}

    def _guard(self, where: Compute) -> bool:
        """Whether ``where`` gives 0 for an infinite third operand."""
        infinite = self.use_def.compute(where.ins[0], "isinf")
        zero = self.use_def.constant(where.ins[1])
        return infinite is not None and infinite.ins[0] == where.ins[2] and zero is not None and zero.value == 0
