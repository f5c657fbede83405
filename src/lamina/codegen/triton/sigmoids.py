"""GELU's tanh as a sigmoid, where approximations will do: ``1 + tanh(u)`` is ``2 * sigmoid(2 u)``.

A tangent near 0 needs a series of its own, or its relative error grows; what is added to 1 does not, and the sigmoid is
half as many instructions. Twice and half of a number are exact, so that they cancel where GELU has both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.ir.loops import Compute, Constant, Equation, Nest, defined, operands
from lamina.ir.use_def import UseDef

__all__ = ["with_sigmoids"]


def with_sigmoids(nest: Nest) -> Nest:
    """The nest with each tangent gone of which only ``tanh(u) + 1`` or ``1 - tanh(u) ** 2`` are used."""
    found = {e.out for e in nest.body if isinstance(e, Compute) and e.op == "tanh" and e.dtype == "float32"}
    if not found:
        return nest
    use_def, body = UseDef(nest.body), list(nest.body)
    for name in sorted(found):
        users = use_def.user_equations(name)
        sums = [e for e in users if _adds_one(e, name, use_def)]
        squares = [e for e in users if isinstance(e, Compute) and e.op == "mul" and e.ins == (name, name)]
        rests = [e for square in squares for e in use_def.user_equations(square.out)]
        if len(sums) + len(squares) != len(users) or not sums:
            continue
        if all(_from_one(e, {s.out for s in squares}, use_def) for e in rests):
            body = _changed(body, use_def.definition(name), sums, squares, rests)
    return Nest(nest.name, nest.axes, tuple(_halved(body)))


def _changed(
    body: list[Equation],
    tangent: Equation,
    sums: Sequence[Equation],
    squares: Sequence[Equation],
    rests: Sequence[Equation],
) -> list[Equation]:
    """The equations with a tangent's sigmoid in its place."""
    assert isinstance(tangent, Compute)
    out, (inner,), origin = tangent.out, tangent.ins, tangent.origin
    share = f"{out}_share"

    def add(to: str, a: str, b: str, like: Compute) -> Compute:
        return Compute(to, "add", (a, b), "float32", like.origin)

    result: list[Equation] = []
    for eqn in body:
        if eqn is tangent:
            result += [
                Compute(f"{out}_twice", "add", (inner, inner), "float32", origin),
                Compute(share, "sigmoid", (f"{out}_twice",), "float32", origin),
            ]
        elif any(eqn is e for e in sums) and isinstance(eqn, Compute):
            result.append(add(eqn.out, share, share, eqn))
        elif any(eqn is e for e in rests) and isinstance(eqn, Compute):
            # 1 - tanh(u) ** 2 = 4 s (1 - s)
            result += [
                Compute(f"{eqn.out}_one", "sub", (eqn.ins[0], share), "float32", eqn.origin),
                Compute(f"{eqn.out}_both", "mul", (share, f"{eqn.out}_one"), "float32", eqn.origin),
                add(f"{eqn.out}_half", f"{eqn.out}_both", f"{eqn.out}_both", eqn),
                add(eqn.out, f"{eqn.out}_half", f"{eqn.out}_half", eqn),
            ]
        elif not any(eqn is e for e in squares):
            result.append(eqn)
    return result


def _halved(body: Sequence[Equation]) -> list[Equation]:
    """The equations without halves of what was doubled: ``(v / 2) * (s + s)`` is ``v * s``."""
    made = {name: e for e in body for name in defined(e)}
    result: list[Equation] = []
    for eqn in body:
        changed = eqn
        if isinstance(eqn, Compute) and eqn.op == "mul" and eqn.dtype == "float32":
            for a, b in (eqn.ins, eqn.ins[::-1]):
                doubled = _doubled(made[b])
                half = None if doubled is None else _half(made[a], made)
                if doubled is not None and _is_number(made[a], 0.5):
                    changed = Compute(eqn.out, "identity", (doubled,), "float32", eqn.origin)
                elif doubled is not None and half is not None:
                    changed = Compute(eqn.out, "mul", (half, doubled), "float32", eqn.origin)
            made[eqn.out] = changed
        result.append(changed)
    return _used(result)


def _used(body: Sequence[Equation]) -> list[Equation]:
    """The equations without computations that nothing reads."""
    wanted: set[str] = set()
    result: list[Equation] = []
    for eqn in reversed(body):
        if not isinstance(eqn, Compute) or eqn.out in wanted:
            wanted.update(operands(eqn))
            result.append(eqn)
    return result[::-1]


def _doubled(eqn: Equation) -> str | None:
    same = isinstance(eqn, Compute) and eqn.op == "add" and eqn.dtype == "float32" and eqn.ins[0] == eqn.ins[1]
    return eqn.ins[0] if same and isinstance(eqn, Compute) else None


def _half(eqn: Equation, made: Mapping[str, Equation]) -> str | None:
    """What an equation takes half of."""
    if isinstance(eqn, Compute) and eqn.op == "mul" and eqn.dtype == "float32":
        for a, b in (eqn.ins, eqn.ins[::-1]):
            if _is_number(made[b], 0.5):
                return a
    return None


def _adds_one(eqn: Equation, name: str, use_def: UseDef) -> bool:
    if not isinstance(eqn, Compute) or eqn.op != "add" or eqn.dtype != "float32":
        return False
    others = [n for n in eqn.ins if n != name]
    return len(others) == 1 and _is_number(use_def.constant(others[0]), 1.0)


def _from_one(eqn: Equation, squares: set[str], use_def: UseDef) -> bool:
    """Whether an equation takes one of the squares from 1."""
    sub = isinstance(eqn, Compute) and eqn.op == "sub" and eqn.dtype == "float32"
    return sub and isinstance(eqn, Compute) and eqn.ins[1] in squares and _is_number(use_def.constant(eqn.ins[0]), 1.0)


def _is_number(eqn: Equation | None, value: float) -> bool:
    return isinstance(eqn, Constant) and eqn.value == value
