"""Use-def view of a nest's body: where each value is defined, what uses it, and what it is computed from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

from lamina.ir.loops import Check, Compute, Constant, Equation, Store, defined, operands

__all__ = ["UseDef"]


class UseDef:
    """Definitions and users of the values of ``body``, by name. Positions are those of equations in ``body``.

    Each value is defined once, as in any nest. Nothing is computed before it is asked for, and then once: ``body``
    must not change.
    """

    def __init__(self, body: Sequence[Equation]) -> None:
        self.body = body

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """For each value, in the order of the body, the position of the equation that defines it."""
        return {name: p for p, eqn in enumerate(self.body) for name in defined(eqn)}

    @cached_property
    def dtypes(self) -> Mapping[str, str]:
        """For each value, in the order of the body, its dtype."""
        return {n: e.dtype for e in self.body if not isinstance(e, Store | Check) for n in defined(e)}

    @cached_property
    def _users(self) -> Mapping[str, list[int]]:
        found: dict[str, list[int]] = {}
        for p, eqn in enumerate(self.body):
            for name in operands(eqn):
                known = found.setdefault(name, [])
                if not known or known[-1] != p:
                    known.append(p)
        return found

    def __contains__(self, name: str) -> bool:
        return name in self.positions

    def definition(self, name: str) -> Equation:
        """The equation that defines a value. Raises ``KeyError`` for a value that the body does not define."""
        return self.body[self.positions[name]]

    def _found(self, name: str) -> Equation | None:
        position = self.positions.get(name)
        return None if position is None else self.body[position]

    def compute(self, name: str, *ops: str) -> Compute | None:
        """The operation, one of ``ops`` if there are any, that a value is the result of; ``None`` where the body has
        no such.
        """
        eqn = self._found(name)
        return eqn if isinstance(eqn, Compute) and (not ops or eqn.op in ops) else None

    def constant(self, name: str) -> Constant | None:
        """The literal that a value is; ``None`` where the body has no such."""
        eqn = self._found(name)
        return eqn if isinstance(eqn, Constant) else None

    def users(self, name: str) -> Sequence[int]:
        """Positions of the equations that use a value, in order, each once; none for a value that nothing uses."""
        return self._users.get(name, ())

    def last_use(self, name: str) -> int:
        """Position of the last equation that uses a value; -1 for a value that nothing uses."""
        found = self.users(name)
        return found[-1] if found else -1

    def user_equations(self, name: str) -> list[Equation]:
        """The equations that use a value, in order, each once."""
        return [self.body[p] for p in self.users(name)]

    def backward_slice(self, goals: Iterable[int], known: Collection[str] = ()) -> list[int]:
        """Positions of the goals and of all that they are computed from beyond the values ``known``, in order."""
        found = set(goals)
        pending = list(found)
        while pending:
            for name in operands(self.body[pending.pop()]):
                if name not in known and (position := self.positions[name]) not in found:
                    found.add(position)
                    pending.append(position)
        return sorted(found)
