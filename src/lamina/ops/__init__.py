"""What is known of operations: a row for each overload, which every stage asks instead of keeping lists of its own."""

from __future__ import annotations

from lamina.ops.row import Row
from lamina.ops.table import OPERATIONS, operator_of, overloads, row_of, rows_named

__all__ = ["OPERATIONS", "Row", "operator_of", "overloads", "row_of", "rows_named"]
