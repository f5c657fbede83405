"""The term of a call: the canonical form of its operation, or the call as it is with every argument in its place."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch.fx import Node

from lamina.base.torch_private import OpOverload, schema_of
from lamina.ops import OPERATIONS, operator_of
from lamina.rewrite import canonical_arithmetic, canonical_reductions, canonical_shapes
from lamina.rewrite.arguments import from_last, rank_of
from lamina.rewrite.terms import Form, Term, is_tensor

__all__ = ["key_of", "term_of"]

aten = torch.ops.aten

_FORMS: dict[Any, Form] = {**canonical_arithmetic.FORMS, **canonical_shapes.FORMS, **canonical_reductions.FORMS}
"""The operations with canonical forms."""

_SYNONYMS: dict[Any, Any] = {
    operator_of(row.overload): operator_of(row.same_as) for row in OPERATIONS.values() if row.same_as
}
"""Operations that torch has under two names."""


def term_of(node: Node) -> Term:
    """The term of a call."""
    rule = _FORMS.get(node.target)
    found = None if rule is None else rule(node)
    return _plain(node) if found is None else found


def key_of(node: Node) -> Hashable:
    """The operation of the node's term."""
    return term_of(node).op if node.target in _FORMS else _SYNONYMS.get(node.target, node.target)


_DIMENSIONS = {"dim", "dim0", "dim1", "dims", "start_dim", "end_dim", "axis"}
_NEW_DIMENSION = (aten.unsqueeze.default, aten.stack.default)


def _plain(node: Node) -> Term:
    """The call as it is, with every argument in its place, defaults written out, and dimensions from the last."""
    target = node.target
    if not isinstance(target, OpOverload):
        return Term(target, (_plain_value(node.args), _plain_value(node.kwargs)))
    first = next((a for a in node.all_input_nodes if is_tensor(a)), None)
    rank = 0 if first is None else rank_of(first) + (target in _NEW_DIMENSION)
    args: list[Any] = []
    for place, parameter in enumerate(schema_of(target).arguments):
        if place < len(node.args):
            value = node.args[place]
        elif parameter.name in node.kwargs:
            value = node.kwargs[parameter.name]
        else:
            value = parameter.default_value
        if parameter.name in _DIMENSIONS:
            value = from_last(value, rank)
        args.append(_plain_value(value))
    return Term(_SYNONYMS.get(target, target), tuple(args))


def _plain_value(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_plain_value(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, _plain_value(v)) for k, v in sorted(value.items()))
    return value
