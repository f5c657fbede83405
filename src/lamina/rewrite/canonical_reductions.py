"""Canonical forms of reductions and softmaxes: dimensions in order, from the last, and casts before them as casts."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

from lamina.rewrite.arguments import argument, from_last, rank_of
from lamina.rewrite.terms import Form, Term, form_of

__all__ = ["FORMS"]

aten = torch.ops.aten

FORMS: dict[Any, Form] = {}
"""By operation. Filled when this file is imported, then only read."""


def _cast(value: Any, dtype: Any) -> Any:
    """``value`` in another dtype; itself where that is what it has."""
    return value if dtype is None or value.meta["val"].dtype == dtype else Term("cast", (value, dtype))


@form_of(FORMS, aten.softmax.int, aten.log_softmax.int)
def _softmax(node: Node) -> Term:
    source: Any = node.args[0]
    dim = from_last(node.args[1], rank_of(source))
    name = "softmax" if node.target is aten.softmax.int else "log_softmax"
    return Term(name, (_cast(source, argument(node, 2, "dtype")), dim))


@form_of(FORMS, aten._softmax.default, aten._log_softmax.default)
def _inner_softmax(node: Node) -> Term:
    source: Any = node.args[0]
    name = "softmax" if node.target is aten._softmax.default else "log_softmax"
    dtype = torch.float32 if node.args[2] else None
    return Term(name, (_cast(source, dtype), from_last(node.args[1], rank_of(source))))


@form_of(FORMS, aten.mean.dim, aten.sum.dim_IntList)
def _reduction(node: Node) -> Term:
    source: Any = node.args[0]
    rank = rank_of(source)
    dims = argument(node, 1, "dim")
    chosen = tuple(sorted(from_last(d, rank) for d in dims)) if dims else tuple(range(-rank, 0))
    name = "mean" if node.target is aten.mean.dim else "sum"
    return Term(name, (_cast(source, node.kwargs.get("dtype")), chosen, bool(argument(node, 2, "keepdim", False))))


@form_of(FORMS, aten.mean.default, aten.sum.default)
def _whole_reduction(node: Node) -> Term:
    source: Any = node.args[0]
    name = "mean" if node.target is aten.mean.default else "sum"
    return Term(name, (_cast(source, node.kwargs.get("dtype")), tuple(range(-rank_of(source), 0)), False))


@form_of(FORMS, aten.amax.default, aten.amin.default)
def _extreme(node: Node) -> Term:
    source: Any = node.args[0]
    rank = rank_of(source)
    dims = argument(node, 1, "dim") or list(range(rank))
    name = "amax" if node.target is aten.amax.default else "amin"
    chosen = tuple(sorted(from_last(d, rank) for d in ([dims] if isinstance(dims, int) else dims)))
    return Term(name, (source, chosen, bool(argument(node, 2, "keepdim", False))))


@form_of(FORMS, operator.getitem)
def _first_of_max(node: Node) -> Term | None:
    """The values of ``x.max(dim)`` are those of ``x.amax(dim)``."""
    source, place = node.args
    if not isinstance(source, Node) or source.target not in _WITH_PLACES or place != 0:
        return None
    operand: Any = source.args[0]
    dim = from_last(source.args[1], rank_of(operand))
    return Term(_WITH_PLACES[source.target], (operand, (dim,), bool(argument(source, 2, "keepdim", False))), (source,))


_WITH_PLACES: dict[Any, str] = {aten.max.dim: "amax", aten.min.dim: "amin"}


@form_of(FORMS, aten.var.dim, aten.var.correction)
def _variance(node: Node) -> Term | None:
    source: Any = node.args[0]
    rank = rank_of(source)
    dims = argument(node, 1, "dim")
    chosen = tuple(sorted(from_last(d, rank) for d in dims)) if dims else tuple(range(-rank, 0))
    if node.target is aten.var.dim:
        correction: Any = 1 if argument(node, 2, "unbiased", True) else 0
        keepdim = argument(node, 3, "keepdim", False)
    else:
        correction, keepdim = node.kwargs.get("correction"), node.kwargs.get("keepdim", False)
        correction = 1 if correction is None else correction
    return Term("var", (source, chosen, correction, bool(keepdim)))
