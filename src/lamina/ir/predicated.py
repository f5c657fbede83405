"""Predicated branches: loads and arithmetic that a nest needs only in rows for which a reduction says so."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lamina.ir.loops import Compute, Equation, Load, Nest, Reduce, axes_of_values, defined, operands

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
    made = {name: eqn for eqn in nest.body for name in defined(eqn)}
    found = []
    for choice in wheres:
        condition, other, root = choice.ins
        if other == root or not axes[condition] < axes[choice.out] or not _reduced(condition, made):
            continue
        private = [e for e in _private(nest.body, choice, _above(root, made)) if axes[e.out] == axes[choice.out]]
        if any(isinstance(e, Load) for e in private):
            found.append(PredicatedBranch(choice, tuple(private)))
    return found


def _reduced(name: str, made: Mapping[str, Equation]) -> bool:
    """Whether a value is computed from a reduction."""
    return any(isinstance(made[n], Reduce) for n in _above(name, made))


def _private(body: Sequence[Equation], choice: Compute, above: set[str]) -> list[Load | Compute]:
    """Of the values ``above`` those that are loaded or computed for ``choice`` alone."""
    users: dict[str, list[Equation]] = defaultdict(list)
    for eqn in body:
        for name in operands(eqn):
            users[name].append(eqn)
    found: set[int] = set()
    kept: list[Load | Compute] = []
    for eqn in reversed(body):  # so that a value comes after all of its users
        if not isinstance(eqn, Load | Compute) or eqn.out not in above or eqn.out in choice.ins[:2]:
            continue
        if all(user is choice or id(user) in found for user in users[eqn.out]):
            found.add(id(eqn))
            kept.append(eqn)
    return kept[::-1]


def _above(name: str, made: Mapping[str, Equation]) -> set[str]:
    """The values that one is computed from, and itself."""
    seen, pending = {name}, [name]
    while pending:
        fresh = [n for n in operands(made[pending.pop()]) if n not in seen]
        seen.update(fresh)
        pending += fresh
    return seen
