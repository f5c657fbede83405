"""Rules of operations whose rows say what an element of their result is, and of those that are another by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torch.fx import Node

from lamina.lower.builder import Value
from lamina.lower.context import Lowering
from lamina.lower.rules import RULES, Decline, rule
from lamina.lower.values import TensorValue
from lamina.ops import OPERATIONS

__all__ = ["formula_of", "rules_of_rows"]

Rule: TypeAlias = Callable[..., Any]


def formula_of(overload: str) -> Callable[..., Value]:
    """What an element of the result of a pointwise operation ("aten.sin.default") is."""
    found: Callable[..., Any] | None = OPERATIONS[overload].formula
    if found is None:
        raise KeyError(f"the row of {overload} has no formula")
    return found


def rules_of_rows() -> tuple[str, ...]:
    """Enter the rules that follow from rows; those written by hand, which are there before, count."""
    made = [op for op, row in OPERATIONS.items() if row.formula is not None and op not in RULES]
    for op in made:
        rule(op)(_by_formula(op))
    named = {op: row.same_as for op, row in OPERATIONS.items() if row.same_as in RULES and op not in RULES}
    for op, other in named.items():
        rule(op)(RULES[other])
    return (*made, *named)


def _by_formula(op: str) -> Rule:
    formula = formula_of(op)

    def lowered(low: Lowering, node: Node, *args: Any, **kwargs: Any) -> TensorValue:
        places = [place for place, value in enumerate(args) if isinstance(value, TensorValue)]
        numbers = (*(value for value in args if not isinstance(value, TensorValue)), *kwargs.values())
        if not all(value is None or isinstance(value, bool | int | float | str) for value in numbers):
            raise Decline("a number that only a run tells")

        def body(*elements: Value) -> Value:
            given = list(args)
            for place, element in zip(places, elements, strict=True):
                given[place] = element
            return formula(*given, **kwargs)

        return low.pointwise(node, body, *(args[place] for place in places))

    return lowered
