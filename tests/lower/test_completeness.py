"""The table of operations: every one that a graph in normal form may hold has a row, and the row answers each stage."""

from __future__ import annotations

import operator

import pytest
import torch

import lamina
from lamina.lower import families
from lamina.lower.rules import RULES, rule
from lamina.ops import OPERATIONS, Row, composites, rows_named
from lamina.ops.calls import ANY, FUNCTIONS, HOLDS
from lamina.ops.row import ARRANGEMENTS, EFFECT, KINDS, NEVER_AGAIN, RANDOM, VIEW

from .torch_private import defined_operations, tagged_operations

NEWER = ("aten._foreach_clone.default",)
"""Operations that the oldest torch that is supported does not have."""

assert families.LOADED
assert lamina.lamina_backend  # which loads every operation of the package


@pytest.mark.parametrize("tag", ["core", "pointwise", "reduction"])
def test_every_tagged_operation_is_lowered_or_has_a_reason(tag: str) -> None:
    operations = tagged_operations(tag)
    assert len(operations) > 25
    assert [op for op in operations if op not in OPERATIONS] == []


def _places(row: Row) -> int:
    """How many stages take the operation."""
    return (row.overload in RULES) + bool(row.reason) + (bool(row.becomes) and not row.reason)


def test_each_row_is_lowered_or_taken_apart_or_has_a_reason_to_be_neither() -> None:
    assert [op for op, row in OPERATIONS.items() if _places(row) != 1] == []


def test_rows_are_of_operations_and_kinds_that_exist() -> None:
    assert {row.kind for row in OPERATIONS.values()} == set(KINDS)
    for op in OPERATIONS:
        space, name, overload = op.split(".")
        found = getattr(getattr(torch.ops, space), name, None)
        assert op in NEWER if found is None else hasattr(found, overload), op


def test_every_operation_of_the_package_has_a_row() -> None:
    assert len(defined_operations("lamina")) > 20
    assert [op for op in defined_operations("lamina") if op not in OPERATIONS and not op.endswith(".out")] == []


def test_facts_of_rows_are_of_each_other() -> None:
    for row in OPERATIONS.values():
        assert row.elements in ("", *ARRANGEMENTS)
        assert row.work is None or not row.reason or row.reason == composites.REASON, row
        if row.same_as:
            assert not OPERATIONS[row.same_as].same_as, row
            assert OPERATIONS[row.same_as].kind == row.kind, row


def test_every_lowered_operation_has_a_cost_or_is_of_a_kind_that_is_never_computed_again() -> None:
    lowered = [row for op, row in OPERATIONS.items() if op in RULES and row.kind != VIEW]
    assert [row.overload for row in lowered if (row.work is None) != (row.kind in NEVER_AGAIN)] == []


def test_a_rule_for_an_operation_without_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="no row"):
        rule("aten.no_such_operation.default")(lambda low, node: None)


PRIVATE = ("getattr", "_unwrap_for_grad", "_wrap_for_grad")
"""Captured calls that are Python's, or of torch's own ``vmap`` and ``grad``."""


def test_functions_are_names_that_captured_graphs_may_have() -> None:
    homes = (torch, torch.Tensor, torch.nn.functional, operator, torch.ops.aten)
    assert [name for name in FUNCTIONS if name not in PRIVATE and not any(hasattr(one, name) for one in homes)] == []


def test_facts_of_functions_are_those_of_the_rows_of_their_operations() -> None:
    for name, function in FUNCTIONS.items():
        assert function.holds in ("", *HOLDS), name
        found = rows_named(function.operation or name)
        assert found or not function.operation, name
        if function.holds and any(row.kind == VIEW for row in found) and not function.returns_operand:
            assert function.holds == ANY, name
        if function.constant:
            assert not any(row.kind in (RANDOM, EFFECT) for row in found), name
        assert function.constant or function.filled is None, name
