"""Conditions on the vector axis that are decided by where in the loop one is: concatenation, padding, halves.

The loop is cut where such a condition changes. Within a segment the condition is a constant, so that masks vanish and
only the operand that is taken is read.
"""

from __future__ import annotations

from collections.abc import Iterable

from lamina.codegen.cpp.nest_analysis import NestAnalysis
from lamina.ir.index import Axis, as_expr
from lamina.ir.loops import Compute, Index

__all__ = ["cuts", "decided"]

_FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def cuts(facts: NestAnalysis, positions: Iterable[int]) -> list[int]:
    """Points of the vector axis, strictly inside it, at which a comparison of it with a number changes."""
    extent = facts.extent[facts.vector or ""]
    if not extent.is_int:
        return []
    found = set()
    for position in positions:
        compared = _comparison(facts, position)
        if compared is not None:
            op, limit = compared
            found.add(limit if op in ("lt", "ge") else limit + 1)
    return sorted(c for c in found if 0 < c < extent.const)


def decided(facts: NestAnalysis, positions: Iterable[int], point: int) -> dict[str, bool]:
    """Bool values that are the same from ``point`` to the next cut."""
    known: dict[str, bool] = {}
    for position in sorted(positions):
        eqn = facts.body[position]
        if not isinstance(eqn, Compute) or eqn.dtype != "bool":
            continue
        compared = _comparison(facts, position)
        ins = [known.get(v) for v in eqn.ins]
        if compared is not None:
            op, limit = compared
            known[eqn.out] = {"lt": point < limit, "le": point <= limit, "gt": point > limit, "ge": point >= limit}[op]
        elif eqn.op == "not" and ins[0] is not None:
            known[eqn.out] = not ins[0]
        elif eqn.op == "and" and (False in ins or None not in ins):
            known[eqn.out] = False not in ins
        elif eqn.op == "or" and (True in ins or None not in ins):
            known[eqn.out] = True in ins
    return known


def _comparison(facts: NestAnalysis, position: int) -> tuple[str, int] | None:
    """``axis op limit`` for a comparison of the vector axis, shifted by a number, with a number."""
    eqn = facts.body[position]
    if not isinstance(eqn, Compute) or eqn.op not in _FLIPPED:
        return None
    left, right = eqn.ins
    op = eqn.op
    if facts.constant(left) is not None:
        left, right, op = right, left, _FLIPPED[op]
    constant = facts.constant(right)
    index = facts.use_def.definition(left)
    if constant is None or not isinstance(index, Index) or not index.dtype.startswith("int"):
        return None
    if not isinstance(constant.value, int) or facts.vector is None:
        return None
    rest = index.expr - as_expr(Axis(facts.vector, facts.extent[facts.vector]))
    return (op, constant.value - rest.const) if rest.is_int else None
