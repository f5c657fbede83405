"""Masked loads that read what the nest loads without a mask as well, and are needed only where their mask is true.

The gradient of a slice is zero beside it, so that what computes it reads its operands under a mask. Where the nest
reads the same elements for other gradients too, one load is enough, and what is computed from the two is equal where it
is needed: of ``where(m, f(load(b, m)), 0) + f(load(b))`` one ``f`` is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Expr
from lamina.ir.loops import Compute, Equation, Load, Store, defined
from lamina.ir.use_def import UseDef

__all__ = ["without_needless_masks"]

_DIVIDES = ("floor_div", "trunc_div", "div", "mod", "fmod")
"""Operations that end the process where integers are divided by zero: a mask may keep zeros from them."""
_Place: TypeAlias = tuple[str, tuple[Expr, ...], str, int]
"""A buffer, an index, a dtype, and how many stores to the buffer come before."""


def without_needless_masks(body: Sequence[Equation]) -> Sequence[Equation]:
    """The body with such loads taken without their mask; the same object where there are none."""
    if not any(isinstance(e, Load) and e.mask is not None for e in body):
        return body
    places = _places(body)
    plain = {places[e.out]: e for e in reversed(body) if isinstance(e, Load) and e.mask is None}
    masked = [e for e in body if isinstance(e, Load) and e.mask is not None and places[e.out] in plain]
    need = _Need(body) if masked else None
    changed = {e.out: plain[places[e.out]] for e in masked if need and e.mask and need.only_under(e.out, e.mask)}
    return [_taken(e, changed) for e in body] if changed else body


def _taken(eqn: Equation, changed: Mapping[str, Load]) -> Equation:
    """A load that is in ``changed`` as the other one; its own name stays, and equal loads are merged later."""
    if not isinstance(eqn, Load) or eqn.out not in changed:
        return eqn
    other = changed[eqn.out]
    return Load(eqn.out, eqn.buffer, eqn.index, eqn.dtype, None, other.fill, eqn.origin)


def _places(body: Sequence[Equation]) -> dict[str, _Place]:
    """What each load reads."""
    stores: dict[str, int] = {}
    found: dict[str, _Place] = {}
    for eqn in body:
        if isinstance(eqn, Store):
            stores[eqn.buffer] = stores.get(eqn.buffer, 0) + 1
        elif isinstance(eqn, Load):
            found[eqn.out] = eqn.buffer, eqn.index, eqn.dtype, stores.get(eqn.buffer, 0)
    return found


class _Need:
    """Where the values of a body are needed."""

    def __init__(self, body: Sequence[Equation]) -> None:
        self.body, self.use_def = body, UseDef(body)
        self.hidden: dict[str, set[str]] = {}

    def only_under(self, name: str, mask: str) -> bool:
        """Whether nothing depends on a value's points at which ``mask`` is false."""
        if mask not in self.hidden:
            self.hidden[mask] = self._hidden(mask)
        return name in self.hidden[mask]

    def _hidden(self, mask: str) -> set[str]:
        """The values on whose points at which ``mask`` is false nothing depends: users come before what they use."""
        found: set[str] = set()
        for eqn in reversed(self.body):
            for name in defined(eqn):
                users = self.use_def.user_equations(name)
                if users and all(self.hides(user, name, mask, found) for user in users):
                    found.add(name)
        return found

    def hides(self, eqn: Equation, name: str, mask: str, hidden: set[str]) -> bool:
        """Whether ``eqn``, or all that depends on it, takes no notice of the value where ``mask`` is false."""
        if not isinstance(eqn, Compute) or (eqn.op in _DIVIDES and DTYPES[eqn.dtype].is_integer):
            return False
        if eqn.op == "where" and eqn.ins[1] == name and name not in (eqn.ins[0], eqn.ins[2]):
            return self.implies(eqn.ins[0], mask) or eqn.out in hidden
        return eqn.out in hidden

    def implies(self, condition: str, mask: str) -> bool:
        """Whether ``mask`` is true wherever ``condition`` is."""
        if condition == mask:
            return True
        both = self.use_def.compute(condition, "and")
        return both is not None and any(self.implies(one, mask) for one in both.ins)
