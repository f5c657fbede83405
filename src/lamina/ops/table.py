"""The one table of operations, by overload."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from lamina.base.torch_private import OpOverload
from lamina.ops import (
    activations,
    arithmetic,
    comparison,
    composites,
    creation,
    effects,
    foreach,
    functions,
    gradients,
    library,
    losses,
    movement,
    norms,
    products,
    random,
    reductions,
    special,
    views,
    windows,
)
from lamina.ops.row import KINDS, Row

__all__ = ["OPERATIONS", "operator_of", "overloads", "row_of", "rows_named"]

_FAMILIES = (
    *(activations, arithmetic, comparison, composites, creation, effects, foreach, functions, gradients, library),
    *(losses, movement, norms, products, random, reductions, special, views, windows),
)


def _assembled() -> Mapping[str, Row]:
    table: dict[str, Row] = {}
    for row in (row for family in _FAMILIES for row in family.ROWS):
        if row.overload in table:
            raise ValueError(f"two rows for {row.overload}")
        if row.kind not in KINDS:
            raise ValueError(f"{row.overload} is of the unknown kind {row.kind!r}")
        table[row.overload] = row
    named = {op: _named(row, table[row.same_as]) for op, row in table.items() if row.same_as}
    return MappingProxyType(table | named)


def _named(row: Row, other: Row) -> Row:
    """The row of another name of an operation: all that is known of it."""
    if row != Row(row.overload, row.kind, same_as=row.same_as) or row.kind != other.kind or other.same_as:
        raise ValueError(f"{row.overload} is {other.overload}, whose facts it has")
    return replace(other, overload=row.overload, same_as=row.same_as)


OPERATIONS: Mapping[str, Row] = _assembled()
"""Rows by overload ("aten.add.Tensor")."""


def _by_name() -> Mapping[str, tuple[Row, ...]]:
    found: dict[str, tuple[Row, ...]] = {}
    for row in sorted(OPERATIONS.values(), key=lambda row: not row.overload.endswith(".default")):
        if row.overload.startswith("aten."):
            found[row.name] = (*found.get(row.name, ()), row)
    return MappingProxyType(found)


_BY_NAME = _by_name()


def row_of(target: Any) -> Row | None:
    """The row of a call's target; None for what is no operator, and for operators of others."""
    return _row_of(target) if isinstance(target, OpOverload) else None


@functools.lru_cache(maxsize=4096)
def _row_of(target: OpOverload) -> Row | None:
    return OPERATIONS.get(str(target))


def rows_named(name: str) -> tuple[Row, ...]:
    """The rows of ATen's operations of a name ("add"), by which captured calls go; that of "add.default" first."""
    return _BY_NAME.get(name, ())


def overloads(holds: Callable[[Row], bool]) -> frozenset[Any]:
    """The operators whose rows meet a condition, as graphs call them."""
    return frozenset(operator_of(row.overload) for row in OPERATIONS.values() if holds(row))


def operator_of(overload: str) -> Any:
    """The operator called ``overload`` ("aten.add.Tensor"), as graphs call it. ``AttributeError`` if there is none."""
    space, name, which = overload.split(".")
    return getattr(getattr(getattr(torch.ops, space), name), which)
