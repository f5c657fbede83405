"""Choices between two results of one function, made between its operands: a concatenation that was computed from.

What reads the parts of a concatenation is fused with each of them, and chosen from at the end: ``where(c, f(a), f(b))``
computes ``f`` twice at every point. ``f(where(c, a, b))`` is the same number. Two loads of one place, each where the
other is not, are one load.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lamina.ir.loops import (
    Check,
    Compute,
    Constant,
    Equation,
    Load,
    Nest,
    Store,
    axes_of,
    axes_of_values,
    defined,
    operands,
)
from lamina.ir.ops import OPS
from lamina.ir.use_def import UseDef

__all__ = ["with_choices_of_operands"]

_CHOICE = 1.0
"""Instructions of a choice."""
_LOAD = 2.0
"""Instructions that one load less saves, at least."""
_COMMUTES = frozenset({"add", "mul", "and", "or", "eq", "ne"})


def with_choices_of_operands(nest: Nest) -> Nest:
    """The nest with choices moved to where fewest instructions are left."""
    if not any(isinstance(e, Compute) and e.op == "where" for e in nest.body):
        return nest
    body = _Merged(nest).run()
    goals = [p for p, e in enumerate(body) if isinstance(e, Store | Check)]
    return Nest(nest.name, nest.axes, tuple(body[p] for p in UseDef(body).backward_slice(goals)))


Pair = tuple[str, str]
"""A value where the condition holds, and one where it does not."""


class _Merged:
    """The equations of a nest with its choices moved."""

    def __init__(self, nest: Nest) -> None:
        self.body = body = nest.body
        self.axes = axes_of_values(nest)
        self.made: dict[str, Equation] = {name: e for e in body for name in defined(e)}
        self.users: dict[str, set[str]] = {}  # by what they define; stores define nothing
        for eqn in body:
            self._use(eqn)
        self.result: list[Equation] = []
        self.count = 0

    def run(self) -> list[Equation]:
        for eqn in self.body:
            if isinstance(eqn, Compute) and eqn.op == "where":
                self._choice(eqn)
            else:
                self.result.append(eqn)
        return self.result

    def _use(self, eqn: Equation) -> None:
        for name in operands(eqn):
            self.users.setdefault(name, set()).update(defined(eqn) or ("",))

    def _add(self, eqn: Compute | Load) -> None:
        self.made[eqn.out] = eqn
        self.axes[eqn.out] = axes_of(eqn, self.axes)
        self._use(eqn)
        self.result.append(eqn)

    def _choice(self, eqn: Compute) -> None:
        """Writes the choice, or the function of choices that it is."""
        condition, x, y = eqn.ins
        gone = {eqn.out}
        x, y = self._taken(condition, x, True, gone), self._taken(condition, y, False, gone)
        found = _Common(self, condition, (x, y), gone)
        if x == y or not found.pays():
            self._add(replace(eqn, ins=(condition, x, y)))
            return
        written: dict[Pair, str] = {}
        self._write(found, condition, (x, y), written, eqn.out)

    def _write(self, found: _Common, condition: str, pair: Pair, written: dict[Pair, str], name: str = "") -> str:
        """Adds what a pair is, and gives its name."""
        x, y = pair
        if self.same(x, y):
            return x
        if pair in written:
            return written[pair]
        a = self.made[x]
        out = name or f"{x}_or{self.count}"
        self.count += 1
        if pair in found.inner and isinstance(a, Compute):
            self._add(
                replace(a, out=out, ins=tuple(self._write(found, condition, p, written) for p in found.inner[pair]))
            )
        elif pair in found.loads and isinstance(a, Load):
            self._add(replace(a, out=out, mask=None))
        else:
            self._add(Compute(out, "where", (condition, x, y), self.dtype(x)))
        written[pair] = out
        return out

    def _taken(self, condition: str, name: str, holds: bool, gone: set[str]) -> str:
        """What a value is where ``condition`` has this truth: the side of another choice by it, or by its opposite.
        ``gone``: the choices that nobody needs then.
        """
        while isinstance(e := self.made.get(name), Compute) and e.op == "where":
            if e.ins[0] == condition:
                taken = e.ins[1 if holds else 2]
            elif self.opposite(e.ins[0], condition):
                taken = e.ins[2 if holds else 1]
            else:
                break
            if self.users[name] <= gone:
                gone.add(name)
            name = taken
        return name

    def opposite(self, one: str, other: str) -> bool:
        """Whether one of two conditions holds where the other does not."""
        a, b = self.made.get(one), self.made.get(other)
        if not isinstance(a, Compute) or not isinstance(b, Compute):
            return False
        if {a.op, b.op} in ({"lt", "ge"}, {"eq", "ne"}):
            integers = all(self.dtype(n).startswith("int") for n in a.ins)  # of a NaN both are false
            return integers and len(a.ins) == len(b.ins) and all(map(self.same, a.ins, b.ins))
        return (a.op == "not" and a.ins[0] == other) or (b.op == "not" and b.ins[0] == one)

    def dtype(self, name: str) -> str:
        """The dtype of a value."""
        return getattr(self.made.get(name), "dtype", "")

    def same(self, x: str, y: str) -> bool:
        """Whether two values are one, or equal numbers."""
        a, b = self.made.get(x), self.made.get(y)
        return x == y or (
            isinstance(a, Constant) and isinstance(b, Constant) and (repr(a.value), a.dtype) == (repr(b.value), b.dtype)
        )


class _Common:
    """The largest function that both values of a pair are, each of values of its own, which nobody else uses.

    ``inner``: pairs that are the same operation, with the pairs of their operands. ``loads``: pairs of loads of one
    place, one where the condition holds and the other elsewhere. All other pairs that these need are chosen from.
    """

    def __init__(self, nest: _Merged, condition: str, root: Pair, gone: set[str]) -> None:
        self.nest, self.condition, self.root, self.gone = nest, condition, root, gone
        self.inner: dict[Pair, tuple[Pair, ...]] = {}
        self.loads: set[Pair] = set()
        self._visit(root)
        while self._used_elsewhere() or self._too_dear():
            self._reachable()

    def pays(self) -> bool:
        """Whether fewer instructions are left than by a choice of results."""
        saved = sum(self._cost(pair) for pair in self.inner) + _LOAD * len(self.loads)
        return self.root in self.inner and saved + _CHOICE > _CHOICE * len(self._chosen())

    def _cost(self, pair: Pair) -> float:
        eqn = self.nest.made[pair[0]]
        return OPS[eqn.op].cost if isinstance(eqn, Compute) else _LOAD

    def _visit(self, pair: Pair) -> None:
        nest, (x, y) = self.nest, pair
        a, b = nest.made.get(x), nest.made.get(y)
        if pair in self.inner or nest.same(x, y):
            return
        if isinstance(a, Load) and isinstance(b, Load):
            if self._complete(a, b):
                self.loads.add(pair)
        elif isinstance(a, Compute) and isinstance(b, Compute) and (pairs := self._operands(a, b)):
            if not nest.axes[self.condition] <= nest.axes[x] or nest.axes[x] != nest.axes[y]:
                return  # it would be computed at more points
            self.inner[pair] = pairs
            for operand in pairs:
                self._visit(operand)

    def _operands(self, a: Compute, b: Compute) -> tuple[Pair, ...]:
        """The pairs of operands of one operation; those of a sum or a product in the order in which more are alike."""
        if (a.op, a.dtype, len(a.ins)) != (b.op, b.dtype, len(b.ins)):
            return ()
        orders = [b.ins, b.ins[::-1]] if a.op in _COMMUTES else [b.ins]
        ways = [tuple(zip(a.ins, ins, strict=True)) for ins in orders]
        ways = [way for way in ways if all(self.nest.dtype(p) == self.nest.dtype(q) for p, q in way)]
        return max(ways, key=lambda way: sum(self._alike(*pair) for pair in way), default=())

    def _alike(self, x: str, y: str) -> bool:
        a, b = self.nest.made.get(x), self.nest.made.get(y)
        if isinstance(a, Compute) and isinstance(b, Compute):
            return a.op == b.op
        return self.nest.same(x, y) or (isinstance(a, Load) and isinstance(b, Load) and self._complete(a, b))

    def _complete(self, a: Load, b: Load) -> bool:
        return (
            (a.buffer, a.index, a.dtype) == (b.buffer, b.index, b.dtype)
            and a.mask == self.condition
            and b.mask is not None
            and self.nest.opposite(b.mask, self.condition)
        )

    def _used_elsewhere(self) -> bool:
        """Takes out pairs of which somebody else uses a value, which is then computed anyway."""
        ends = self.gone.union(*self.inner)
        lost = [p for p in (*self.inner, *self.loads) if not all(self.nest.users[n] <= ends for n in p)]
        self._drop(lost)
        return bool(lost)

    def _too_dear(self) -> bool:
        """Takes out pairs that save less than choices of their operands take, which nobody else needs."""
        uses: dict[Pair, int] = {}
        for pairs in self.inner.values():
            for pair in set(pairs):
                uses[pair] = uses.get(pair, 0) + 1
        chosen = self._chosen()
        lost = [
            pair
            for pair, pairs in self.inner.items()
            if sum(uses[p] == 1 for p in set(pairs) & chosen) * _CHOICE > self._cost(pair) + _CHOICE
        ]
        self._drop(lost)
        return bool(lost)

    def _drop(self, lost: Iterable[Pair]) -> None:
        for pair in lost:
            self.inner.pop(pair, None)
            self.loads.discard(pair)

    def _reachable(self) -> None:
        """Leaves out what nothing that is left needs."""
        found: set[Pair] = set()
        waiting = [self.root]
        while waiting:
            pair = waiting.pop()
            if pair not in found:
                found.add(pair)
                waiting += self.inner.get(pair, ())
        self._drop([p for p in (*self.inner, *self.loads) if p not in found])

    def _chosen(self) -> set[Pair]:
        """The pairs that are chosen from."""
        needed = {p for pairs in self.inner.values() for p in pairs}
        return {p for p in needed if p not in self.inner and p not in self.loads and not self.nest.same(*p)}
