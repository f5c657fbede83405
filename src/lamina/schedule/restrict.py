"""Domain restriction: nests that change a part of a buffer iterate over that part only."""

from __future__ import annotations

from lamina.ir.index import Atom, Axis, Expr, Loaded, as_expr
from lamina.ir.loops import Buffer, Compute, Constant, Equation, Index, Load, Nest, Store
from lamina.ir.use_def import UseDef
from lamina.schedule.align import bare_axis
from lamina.schedule.simplify import rename, simplify

__all__ = ["restricted", "whole"]


def whole(nest: Nest, store: Store, buffer: Buffer) -> bool:
    """Whether ``store`` writes each element of ``buffer`` at a point of its own, and the nest has no other points."""
    found: list[Axis] = []
    for expr, extent in zip(store.index, buffer.shape, strict=True):
        axis = bare_axis(expr)
        if axis is not None and axis.extent == extent and axis not in found:
            found.append(axis)
        elif not (extent == 1 and expr == 0):
            return False
    return all(axis in found or axis.extent == 1 for axis in nest.axes)


def restricted(nest: Nest, name: str, buffer: Buffer, numerics: str) -> tuple[str, Nest] | None:
    """The buffer that ``name`` equals except in a box, and the nest that stores only the box.

    ``None`` unless ``nest`` does nothing but store, in all of ``name``, the choice between a new value inside the box
    and the other buffer's element at the same place outside.
    """
    body = simplify(nest.body, numerics)
    use_def = UseDef(body)
    stores = [eqn for eqn in body if isinstance(eqn, Store)]
    if len(stores) != 1 or stores[0].mask is not None or stores[0].mode != "set":
        return None
    store = stores[0]
    choice = use_def.compute(store.value, "where")
    if not whole(nest, store, buffer) or choice is None:
        return None
    condition, _, outside = choice.ins
    old = use_def.definition(outside)
    if not isinstance(old, Load) or old.mask is not None or old.index != store.index:
        return None
    box = _box(condition, use_def, nest)
    if box is None:
        return None
    axes = tuple(Axis(a.name, high - low) for a in nest.axes for low, high in (box[a],))
    moved: dict[Atom, Expr | int] = {
        a: as_expr(new) + box[a][0] for a, new in zip(nest.axes, axes, strict=True) if new is not a
    }
    inside = [rename(eqn, {}, moved) for eqn in _taken(body, condition)]
    return old.buffer, Nest(nest.name, axes, simplify(inside, numerics))


def _taken(body: tuple[Equation, ...], condition: str) -> list[Equation]:
    """The body where ``condition`` holds."""
    names: dict[str, str] = {}
    result: list[Equation] = []
    for eqn in body:
        eqn = rename(eqn, names) if names else eqn
        if isinstance(eqn, Compute) and eqn.op == "where" and eqn.ins[0] == condition:
            names[eqn.out] = eqn.ins[1]
        elif isinstance(eqn, Compute) and eqn.op == "and" and condition in eqn.ins:
            (names[eqn.out],) = [v for v in eqn.ins if v != condition] or [condition]
        elif isinstance(eqn, Load) and eqn.mask == condition:
            result.append(Load(eqn.out, eqn.buffer, eqn.index, eqn.dtype, None, 0, eqn.origin))
        else:
            result.append(eqn)
    return result


def _box(condition: str, use_def: UseDef, nest: Nest) -> dict[Axis, tuple[Expr, Expr]] | None:
    """For each axis the first point where ``condition`` holds and the one after the last; None if it is no box."""
    box = {a: (as_expr(0), a.extent) for a in nest.axes}
    for leaf in _conjuncts(condition, use_def):
        bound = _bound(leaf, use_def)
        if bound is None:
            return None
        axis, low, high = bound
        first, end = box[axis]
        if low is not None:
            if not (low - first).nonnegative():
                low = first if (first - low).nonnegative() else None
            if low is None:
                return None
            first = low
        if high is not None:
            if not (end - high).nonnegative():
                high = end if (high - end).nonnegative() else None
            if high is None:
                return None
            end = high
        box[axis] = first, end
    return box if all((end - first).nonnegative() for first, end in box.values()) else None


def _conjuncts(name: str, use_def: UseDef) -> list[Equation]:
    both = use_def.compute(name, "and")
    if both is None:
        return [use_def.definition(name)]
    return [leaf for operand in both.ins for leaf in _conjuncts(operand, use_def)]


def _bound(leaf: Equation, use_def: UseDef) -> tuple[Axis, Expr | None, Expr | None] | None:
    """(axis, first, end) of a comparison of one axis, shifted, with a number; None where there is no such bound."""
    if not isinstance(leaf, Compute) or leaf.op not in ("ge", "gt", "lt", "le", "eq"):
        return None
    left, right = (_number(use_def.definition(v)) for v in leaf.ins)
    if left is None or right is None or right.axes():
        return None
    axes = [a for a in left.atoms() if isinstance(a, Axis)]
    if len(axes) != 1 or left.coefficient(axes[0]) != 1:
        return None
    limit = right - (left - as_expr(axes[0]))
    if limit.axes() or any(isinstance(a, Loaded) for a in limit.atoms()):
        return None
    first = {"ge": limit, "gt": limit + 1, "eq": limit}.get(leaf.op)
    end = {"lt": limit, "le": limit + 1, "eq": limit + 1}.get(leaf.op)
    return axes[0], first, end


def _number(eqn: Equation) -> Expr | None:
    """The integer that an equation gives, as an index expression."""
    if isinstance(eqn, Index):
        return eqn.expr
    if isinstance(eqn, Constant) and type(eqn.value) is int:
        return as_expr(eqn.value)
    return None
