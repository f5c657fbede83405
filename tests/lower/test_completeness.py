"""Every operation that a graph in normal form may hold has a lowering rule or a stated reason to have none."""

from __future__ import annotations

import pytest

from lamina.lower import families
from lamina.lower.library_reasons import REASONS
from lamina.lower.rules import RULES

from .torch_private import tagged_operations


@pytest.mark.parametrize("tag", ["core", "pointwise", "reduction"])
def test_every_tagged_operation_is_lowered_or_has_a_reason(tag: str) -> None:
    assert families.LOADED
    operations = tagged_operations(tag)
    assert len(operations) > 25
    assert [op for op in operations if op not in RULES and op not in REASONS] == []


def test_no_operation_has_both() -> None:
    assert [op for op in REASONS if op in RULES] == []
