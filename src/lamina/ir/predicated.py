"""Predicated branches: loads and arithmetic that a nest needs only in rows for which a reduction says so."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.ir.loops import Compute, Load, Nest, Reduce, axes_of_values
from lamina.ir.use_def import UseDef

__all__ = ["PredicatedBranch", "predicated_branches"]


@dataclass(frozen=True, slots=True)
class PredicatedBranch:
    """``choice``, a where, and in order the loads and arithmetic that only its last operand needs, as wide as it."""

    choice: Compute
    private: tuple[Load | Compute, ...]

    @property
    def condition(self) -> str:
        """The value that says where the branch is not taken."""
        return self.choice.ins[0]


def predicated_branches(nest: Nest) -> list[PredicatedBranch]:
    """The choices between what is at hand and what would have to be loaded.

    The condition comes from a reduction and varies over fewer axes than what it chooses: a row is decided as one, by
    what had to be read first. Only then does it pay to wait for it.
    """
    wheres = [e for e in nest.body if isinstance(e, Compute) and e.op == "where"]
    if not wheres:
        return []
    axes = axes_of_values(nest)
    use_def = UseDef(nest.body)
    found = []
    for choice in wheres:
        condition, other, root = choice.ins
        if other == root or not axes[condition] < axes[choice.out] or not _reduced(condition, use_def):
            continue
        private = [e for e in _private(use_def, choice, root) if axes[e.out] == axes[choice.out]]
        if any(isinstance(e, Load) for e in private):
            found.append(PredicatedBranch(choice, tuple(private)))
    return found


def _reduced(name: str, use_def: UseDef) -> bool:
    """Whether a value is computed from a reduction."""
    return any(isinstance(use_def.body[p], Reduce) for p in use_def.backward_slice([use_def.positions[name]]))


def _private(use_def: UseDef, choice: Compute, root: str) -> list[Load | Compute]:
    """Of ``root`` and what it is computed from, what is loaded or computed for ``choice`` alone."""
    found = {use_def.positions[choice.out]}
    kept: list[Load | Compute] = []
    for p in reversed(use_def.backward_slice([use_def.positions[root]])):  # so that a value comes after all its users
        eqn = use_def.body[p]
        if not isinstance(eqn, Load | Compute) or eqn.out in choice.ins[:2]:
            continue
        if found.issuperset(use_def.users(eqn.out)):
            found.add(p)
            kept.append(eqn)
    return kept[::-1]
