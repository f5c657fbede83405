"""Matrix products among nests: one sum over the products of two operands, each with axes that the other lacks.

    axes (i, j, k)   a = Load(A, [i, k])   b = Load(B, [k, j])   c = Reduce(sum, a * b over k)   Store(C, [i, j], c)

What computes an operand is its prologue, what computes on the sum is the epilogue, which may add up its values over
all rows (a bias's gradient). Such a nest is evaluated as any other; where both operands have half precision a
GPU's tensor cores can evaluate it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lamina.ir.index import Expr
from lamina.ir.loops import (
    Check,
    Equation,
    Index,
    Load,
    Nest,
    Random,
    Reduce,
    Scan,
    Store,
    axes_of_values,
    defined,
    operands,
)
from lamina.ir.use_def import UseDef

__all__ = ["HALVES", "Product", "as_product"]

HALVES = ("bfloat16", "float16")
"""Element types of operands that tensor cores multiply exactly."""


@dataclass(frozen=True, slots=True)
class Product:
    """The parts of a product nest. ``rows`` are axes of the left operand only, ``columns`` of the right one only.

    ``left`` and ``right`` name the operands' values, of ``dtype`` or float32, which is then rounded to ``dtype``;
    ``prologues`` are the equations that they come from, ``total`` is the sum, ``epilogue`` what is left. Of that,
    ``sums`` go over all rows; ``after`` is what they alone and columns are needed for, with what that needs.
    """

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    inner: tuple[str, ...]
    left: str
    right: str
    dtype: str
    total: Reduce
    prologues: tuple[tuple[Equation, ...], tuple[Equation, ...]]
    epilogue: tuple[Equation, ...]
    sums: tuple[Reduce, ...] = ()
    after: tuple[Equation, ...] = ()


def as_product(nest: Nest) -> Product | None:
    """The nest as a product, or ``None`` where it is none that tensor cores can evaluate."""
    sums = [e for e in nest.body if isinstance(e, Reduce)]
    if not sums or any(isinstance(e, Scan | Check) for e in nest.body):
        return None
    total, *others = sums
    use_def = UseDef(nest.body)
    term = use_def.compute(total.value, "mul")
    if total.op != "sum" or total.dtype != "float32" or term is None:
        return None
    names = [_unwidened(use_def, name) for name in term.ins]
    found = [dtype for n in names if (dtype := use_def.dtypes[n]) in HALVES]
    if not found or any(use_def.dtypes[n] not in (found[0], "float32") for n in names) or names[0] == names[1]:
        return None
    varies, inner = axes_of_values(nest), frozenset(total.axes)
    left, right = (varies[n] for n in names)
    if not inner <= left & right or not left - right or not right - left or left | right != {a.name for a in nest.axes}:
        return None
    fast = _fast(nest, total, varies)
    if others[0].axes[0] in right - left if others else fast in left - right:
        names, left, right = names[::-1], right, left
    if any(not _sums_columns(e, left - right, varies) for e in others) or (others and (left & right) - inner):
        return None
    prologues = tuple(_needed(use_def, [name]) for name in names)
    stores = [e for e in nest.body if isinstance(e, Store)]
    goals = [name for e in stores for name in operands(e)]
    epilogue = (*_needed(use_def, goals, total.outs), *stores)
    if any(varies[n] & inner for e in epilogue for n in (*defined(e), *operands(e))):
        return None
    if any(inner & _axes(e) for e in stores) or any(e.mode != "set" for e in stores):
        return None
    after = _after(use_def, epilogue, others)
    if any(varies[n] & (left - right) for e in after for n in (*defined(e), *operands(e))):
        return None
    if any(_axes(e) & (left - right) for e in after):
        return None

    def ordered(axes: Iterable[str]) -> tuple[str, ...]:
        wanted = set(axes)
        return tuple(a.name for a in nest.axes if a.name in wanted)

    return Product(
        ordered((left & right) - inner),
        ordered(left - right),
        ordered(right - left),
        ordered(inner),
        names[0],
        names[1],
        found[0],
        total,
        (prologues[0], prologues[1]),
        epilogue,
        tuple(others),
        after,
    )


def _sums_columns(eqn: Reduce, rows: frozenset[str], varies: dict[str, frozenset[str]]) -> bool:
    """Whether a reduction of an epilogue adds up all rows of something that varies over them."""
    return eqn.op == "sum" and eqn.dtype == "float32" and frozenset(eqn.axes) == rows <= varies[eqn.value]


def _after(use_def: UseDef, epilogue: tuple[Equation, ...], sums: list[Reduce]) -> tuple[Equation, ...]:
    """The equations of the stores that need sums over rows."""
    if not sums:
        return ()
    known = {name for e in sums for name in e.outs}
    given = tuple(known)
    stores: list[Store] = []
    for eqn in epilogue:
        if eqn not in sums and known & set(operands(eqn)):
            known |= set(defined(eqn))
            if isinstance(eqn, Store):
                stores.append(eqn)
    return (*_needed(use_def, [n for e in stores for n in operands(e)], given), *stores)


def _unwidened(use_def: UseDef, name: str) -> str:
    """The value of half precision that ``name`` is the float32 copy of, else ``name``."""
    cast = use_def.compute(name, "cast")
    return cast.ins[0] if cast is not None and use_def.dtypes[cast.ins[0]] in HALVES else name


def _needed(use_def: UseDef, goals: Iterable[str], given: tuple[str, ...] = ()) -> tuple[Equation, ...]:
    """The equations that the goals come from, in order, beyond what is given."""
    own = [use_def.positions[name] for name in goals if name not in given]
    return tuple(use_def.body[p] for p in use_def.backward_slice(own, given))


def _axes(eqn: Equation) -> set[str]:
    """The axes in an equation's own indices."""
    found: tuple[Expr, ...] = ()
    if isinstance(eqn, Load | Store):
        found = eqn.index
    elif isinstance(eqn, Index):
        found = (eqn.expr,)
    elif isinstance(eqn, Random):
        found = (eqn.index,)
    return {name for e in found for name in e.axes()}


def _fast(nest: Nest, total: Reduce, varies: dict[str, frozenset[str]]) -> str | None:
    """The axis along which the largest result is contiguous, in a nest with flat indices."""
    stores = [e for e in nest.body if isinstance(e, Store)]
    if not stores:
        return None
    store = max(stores, key=lambda e: len(_axes(e)))
    index = store.index[-1]
    for axis in reversed(nest.axes):
        if index.coefficient(axis) == 1 and axis.name in varies[total.outs[0]]:
            return axis.name
    return None
