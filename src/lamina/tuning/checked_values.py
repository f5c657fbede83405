"""Whether a nest may be run on integers that are made up: its checks hold of them, and its places are in its buffers.

Both are decided from the ranges of all that it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from lamina.base.dtypes import DTYPES
from lamina.ir.index import Axis, Expr, Loaded, Size
from lamina.ir.loops import Check, Compute, Constant, Equation, Index, Load, Nest, Store, defined, operands

__all__ = ["checks_hold", "places_hold"]

_Range = tuple[int, int]
"""The least and the greatest value; truth values are 0 and 1."""


def checks_hold(nest: Nest, highest: int, sizes: Mapping[str, int]) -> bool:
    """Whether every check of the nest holds where loaded integers are in ``[0, highest)``.

    True only where the ranges prove it: what is computed of floats or by an operation without a rule here is anywhere
    in its type. ``sizes``: those of the launch, by name.
    """
    known = _ranges(nest, highest, sizes)
    return all(known.get(eqn.cond, (0, 1))[0] == 1 for eqn in nest.body if isinstance(eqn, Check))


def places_hold(nest: Nest, highest: int, sizes: Mapping[str, int]) -> bool:
    """Whether all that the nest reads and writes at places that it loads or computes is in the buffer, likewise.

    Lowering knows that of the program's values, by a check in another kernel or by a mask that another has made, say.
    Of others only the ranges prove it, and the comparisons that must hold where memory is touched. What is computed of
    nothing that is loaded is as in the program.
    """
    known = _ranges(nest, highest, sizes)
    made = {name: eqn for eqn in nest.body for name in defined(eqn)}
    for eqn in nest.body:
        if not isinstance(eqn, Load | Store):
            continue
        for atom in _places(eqn.index):
            if not _loads(atom.name, made):
                continue
            bound = _sized(atom.bound, sizes)
            found = None if bound is None else _where(atom.name, eqn.mask, known, made)
            if bound is None or found is None or (found[0] <= found[1] and not 0 <= found[0] <= found[1] < bound):
                return False
    return True


def _places(index: tuple[Expr, ...]) -> Iterator[Loaded]:
    for expr in index:
        yield from (atom for atom in expr.atoms() if isinstance(atom, Loaded))


def _loads(name: str, made: Mapping[str, Equation]) -> bool:
    """Whether a value depends on memory; unknown ones do."""
    left, seen = [name], set[str]()
    while left:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        eqn = made.get(one)
        if eqn is None or isinstance(eqn, Load):
            return True
        left.extend(operands(eqn))
    return False


def _where(name: str, mask: str | None, known: Mapping[str, _Range], made: Mapping[str, Equation]) -> _Range | None:
    """The range of a value where ``mask`` holds; ``None`` where nothing is known of it."""
    if name not in known:
        return None
    low, high = known[name]
    for one in _conjuncts(mask, made):
        for value, op, other in ((one.ins[0], one.op, one.ins[-1]), (one.ins[-1], _TURNED.get(one.op, ""), one.ins[0])):
            if value == name and op in _NARROWED and other in known:
                low, high = _NARROWED[op]((low, high), known[other])
    eqn = made.get(name)
    if isinstance(eqn, Compute) and eqn.op in ("cast", "identity"):
        inner = _where(eqn.ins[0], mask, known, made)
        if inner is not None and _fits(inner, eqn.dtype):
            low, high = max(low, inner[0]), min(high, inner[1])
    return low, high


def _conjuncts(mask: str | None, made: Mapping[str, Equation]) -> Iterator[Compute]:
    """The comparisons of which a mask is the conjunction."""
    left = [] if mask is None else [mask]
    while left:
        eqn = made.get(left.pop())
        if isinstance(eqn, Compute) and eqn.op == "and" and eqn.dtype == "bool":
            left.extend(eqn.ins)
        elif isinstance(eqn, Compute) and len(eqn.ins) == 2:
            yield eqn


_NARROWED: dict[str, Callable[[_Range, _Range], _Range]] = {
    "lt": lambda a, b: (a[0], min(a[1], b[1] - 1)),
    "le": lambda a, b: (a[0], min(a[1], b[1])),
    "gt": lambda a, b: (max(a[0], b[0] + 1), a[1]),
    "ge": lambda a, b: (max(a[0], b[0]), a[1]),
    "eq": lambda a, b: (max(a[0], b[0]), min(a[1], b[1])),
}
"""What is left of a range where it compares so to another."""
_TURNED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq"}
"""The comparison that says the same with its sides exchanged."""


def _ranges(nest: Nest, highest: int, sizes: Mapping[str, int]) -> dict[str, _Range]:
    """The ranges of all integers and truth values of a nest."""
    extents = {a.name: n for a in nest.axes if (n := _sized(a.extent, sizes)) is not None}
    known: dict[str, _Range] = {}
    for eqn in nest.body:
        if isinstance(eqn, Store | Check):
            continue
        found = _range(eqn, known, {**extents, **sizes}, highest)
        for k, name in enumerate(defined(eqn)):
            dtype = eqn.dtype if k == 0 else "int64"  # the place of a maximum, say
            if found is not None:
                known[name] = found
            elif DTYPES[dtype].is_integer or DTYPES[dtype].kind == "bool":
                known[name] = _whole(dtype)
    return known


def _whole(dtype: str) -> _Range:
    """All that a type can hold."""
    if DTYPES[dtype].kind == "bool":
        return 0, 1
    bits = 8 * DTYPES[dtype].size
    low = 0 if dtype.startswith("u") else -(1 << bits - 1)
    return low, low + (1 << bits) - 1


def _sized(expr: Expr, sizes: Mapping[str, int]) -> int | None:
    """The number that an expression of sizes is."""
    made = expr.substitute({a: sizes[a.name] for a in expr.atoms() if isinstance(a, Size) and a.name in sizes})
    return made.const if made.is_int else None


def _range(eqn: Equation, known: Mapping[str, _Range], names: Mapping[str, int], highest: int) -> _Range | None:
    """The range of an equation's value, ``None`` where nothing is known of it."""
    if isinstance(eqn, Load):
        return _of_load(eqn, highest)
    if isinstance(eqn, Constant):
        about = DTYPES[eqn.dtype]
        return (int(eqn.value),) * 2 if about.is_integer or about.kind == "bool" else None
    if isinstance(eqn, Index):
        return _of_index(eqn.expr, names)
    if not isinstance(eqn, Compute) or DTYPES[eqn.dtype].is_float:
        return None
    if eqn.op == "where":
        return _of_where([known.get(name) for name in eqn.ins])
    ins = [known[name] for name in eqn.ins if name in known]
    if len(ins) < len(eqn.ins):
        # One side of a conjunction or an alternative may decide it.
        sides = ins[:1] or [(0, 1)]
        return _RULES[eqn.op](sides[0], (0, 1)) if eqn.op in ("and", "or") and eqn.dtype == "bool" else None
    if eqn.op in ("cast", "identity"):
        return ins[0] if _fits(ins[0], eqn.dtype) else None
    if eqn.op == "not":
        return (1 - ins[0][1], 1 - ins[0][0]) if eqn.dtype == "bool" else None
    if eqn.op not in _RULES or (eqn.op in ("and", "or") and eqn.dtype != "bool"):
        return None
    found = _RULES[eqn.op](*ins)
    return found if _fits(found, eqn.dtype) else None


def _of_load(eqn: Load, highest: int) -> _Range | None:
    about = DTYPES[eqn.dtype]
    if about.kind == "bool":
        return 0, 1
    if not about.is_integer:
        return None
    least, most = 0, max(highest - 1, 0)
    if eqn.mask is not None:
        least, most = min(least, int(eqn.fill)), max(most, int(eqn.fill))
    return least, most


def _of_index(expr: Expr, names: Mapping[str, int]) -> _Range | None:
    """The range of a sum of axes with factors, of which ``names`` gives the extents, and the sizes of the launch."""
    expr = expr.substitute({a: names[a.name] for a in expr.atoms() if isinstance(a, Size) and a.name in names})
    least = most = expr.const
    for mono, factor in expr.terms:
        if len(mono) != 1 or not isinstance(mono[0], Axis) or mono[0].name not in names:
            return None
        end = factor * (names[mono[0].name] - 1)
        least, most = least + min(end, 0), most + max(end, 0)
    return least, most


def _of_where(ins: list[_Range | None]) -> _Range | None:
    cond, one, other = ins
    if cond is not None and cond[0] == cond[1]:
        return one if cond[0] else other
    return (min(one[0], other[0]), max(one[1], other[1])) if one is not None and other is not None else None


def _fits(found: _Range, dtype: str) -> bool:
    """Whether an integer type holds the range, so that nothing wraps around."""
    whole = _whole(dtype)
    return whole[0] <= found[0] and found[1] <= whole[1]


def _truth(sure: bool, possible: bool) -> _Range:
    return int(sure), int(possible)


_RULES: dict[str, Callable[[_Range, _Range], _Range]] = {
    "and": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "or": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "lt": lambda a, b: _truth(a[1] < b[0], a[0] < b[1]),
    "le": lambda a, b: _truth(a[1] <= b[0], a[0] <= b[1]),
    "gt": lambda a, b: _truth(a[0] > b[1], a[1] > b[0]),
    "ge": lambda a, b: _truth(a[0] >= b[1], a[1] >= b[0]),
    "eq": lambda a, b: _truth(a[0] == a[1] == b[0] == b[1], a[0] <= b[1] and b[0] <= a[1]),
    "ne": lambda a, b: _truth(a[1] < b[0] or b[1] < a[0], not a[0] == a[1] == b[0] == b[1]),
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": lambda a, b: (min(x * y for x in a for y in b), max(x * y for x in a for y in b)),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
}
"""The range of an operation on two ranges, for values that do not depend on each other or do."""
