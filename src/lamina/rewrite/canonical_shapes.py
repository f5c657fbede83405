"""Canonical forms of views and casts: transpositions, reshapes, expansions, slices, conversions."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from lamina.rewrite.arguments import argument, from_last, rank_of
from lamina.rewrite.terms import Form, Term, form_of

__all__ = ["FORMS"]

aten = torch.ops.aten

FORMS: dict[Any, Form] = {}
"""By operation. Filled when this file is imported, then only read."""


@form_of(FORMS, aten.transpose.int, aten.swapaxes.default, aten.swapdims.default)
def _transposition(node: Node) -> Term:
    rank = rank_of(node.args[0])
    pair = sorted(from_last(d, rank) for d in node.args[1:3])
    return Term("transpose", (node.args[0], *pair))


@form_of(FORMS, aten.mT.default, aten.t.default, aten.numpy_T.default)
def _last_two(node: Node) -> Term | None:
    return Term("transpose", (node.args[0], -2, -1)) if node.target is aten.mT.default or rank_of(node) == 2 else None


@form_of(FORMS, aten.permute.default)
def _permutation(node: Node) -> Term:
    rank = rank_of(node)
    dims = [from_last(d, rank) for d in node.args[1]]  # type: ignore[union-attr]
    moved = [d - rank for d in range(rank) if dims[d] != d - rank]
    if len(moved) == 2:
        return Term("transpose", (node.args[0], *moved))
    return Term("permute", (node.args[0], tuple(dims)))


@form_of(
    FORMS,
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.view_as.default,
    aten.reshape_as.default,
)
def _reshaped(node: Node) -> Term:
    return Term("reshape", (node.args[0], tuple(node.meta["val"].shape)))


@form_of(FORMS, aten.expand.default, aten.expand_as.default, aten.broadcast_to.default)
def _expanded(node: Node) -> Term:
    return Term("expand", (node.args[0], tuple(node.meta["val"].shape)))


@form_of(FORMS, aten.slice.Tensor)
def _slice(node: Node) -> Term:
    """With the end cut to the size where it is beyond it."""
    source: Any = node.args[0]
    dim = from_last(argument(node, 1, "dim", 0), rank_of(source))
    start, end, step = (argument(node, 2, "start"), argument(node, 3, "end"), argument(node, 4, "step", 1))
    size = source.meta["val"].shape[dim]
    if type(size) is int:
        start = _bounded(0 if start is None else start, size)
        end = _bounded(size if end is None else end, size)
    return Term(aten.slice.Tensor, (source, dim, 0 if start is None else start, end, step))


def _bounded(place: Any, size: int) -> Any:
    return min(max(place + size if place < 0 else place, 0), size) if type(place) is int else place


@form_of(FORMS, aten._to_copy.default)
def _conversion(node: Node) -> Term | None:
    if set(node.kwargs) - {"dtype"}:
        return None
    return Term("cast", (node.args[0], node.kwargs.get("dtype")))
