"""Rows of casts, views and permutations as one, and none where they lead back to where they began.

They cost nothing inside a kernel, where a view is index arithmetic. What this saves is nodes for all later passes,
and calls in graphs that go to other backends. Graphs are in normal form: functional, each node with ``meta["val"]``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from lamina.base.decision import Decision
from lamina.base.fx.editing import Substitution, erase_dead, substitute
from lamina.base.fx.torch_private import graph_module
from lamina.base.source import source_of
from lamina.ops import overloads
from lamina.ops.row import PERMUTED, REPEATED, RESHAPED, UNIT
from lamina.rewrite.passes import calls_of, escaping, same_layout
from lamina.rewrite.reasons import PASS_CHANGED
from lamina.rewrite.torch_private import same_size

__all__ = ["join_casts", "join_permutations", "join_views"]

aten = torch.ops.aten

_PERMUTATIONS = overloads(lambda row: row.elements == PERMUTED)
_RESHAPING = overloads(lambda row: row.elements in (RESHAPED, UNIT))
_EXPANSIONS = overloads(lambda row: row.elements == REPEATED)
_VIEWS = _PERMUTATIONS | _RESHAPING | _EXPANSIONS
_CASTS = frozenset((aten._to_copy.default,))

_BITS = {
    torch.bool: (1, 0),
    torch.uint8: (8, 0),
    torch.int8: (7, 0),
    torch.int16: (15, 0),
    torch.int32: (31, 0),
    torch.int64: (63, 0),
    torch.bfloat16: (8, 8),
    torch.float16: (11, 5),
    torch.float32: (24, 8),
    torch.float64: (53, 11),
}
"""Binary digits of a number, and of its exponent, by dtype."""
_SIGNED_WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64)

_Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""A target and its arguments."""


def join_casts(gm: GraphModule, decisions: list[Decision]) -> GraphModule:
    """Casts through a dtype that holds every value of the one before: ``x.float().double()`` is ``x.double()``.

    ``x.bfloat16().float()`` of a float32 stays: it rounds. So do casts from numbers with a fraction to whole ones:
    of those that do not fit, the result depends on the dtype between.
    """
    gm = _without(gm, decisions, "join_casts", _leading_back(gm.graph, _CASTS, _cast_back))
    return _joined(gm, decisions, "join_casts", _CASTS, _cast)


def join_permutations(gm: GraphModule, decisions: list[Decision]) -> GraphModule:
    """``permute``, ``transpose`` and ``t`` of one another as one ``permute``."""
    return _joined(gm, decisions, "join_permutations", _PERMUTATIONS, _permuted)


def join_views(gm: GraphModule, decisions: list[Decision]) -> GraphModule:
    """``view``, ``squeeze`` and ``unsqueeze`` of one another as one ``view``, ``expand`` of ``expand`` as one.

    A row of views of any kind that ends in the shape and the strides of a tensor it passed is that tensor, unless
    the caller can tell the two apart.
    """
    gm = _without(gm, decisions, "join_views", _leading_back(gm.graph, _VIEWS, same_layout))
    gm = _joined(gm, decisions, "join_views", _RESHAPING, _viewed)
    return _joined(gm, decisions, "join_views", _EXPANSIONS, _expanded)


def _leading_back(graph: Graph, targets: frozenset[Any], same: Callable[[Node, Node], bool]) -> Substitution:
    """Calls in a row of ``targets`` that give what the row began with, or passed, as ``same`` tells."""
    found: Substitution = {}
    seen: set[Node] | None = None
    for node in calls_of(graph, targets):
        source: Any = node.args[0]
        if not isinstance(source, Node) or source.target not in targets:  # a number may be cast as well
            continue
        seen = escaping(graph) if seen is None else seen
        while node not in seen and source.target in targets and isinstance(source.args[0], Node):
            source = source.args[0]
            if same(node, source):
                found[node] = found.get(source, source)
                break
    return found


def _without(gm: GraphModule, decisions: list[Decision], name: str, found: Substitution) -> GraphModule:
    for node, source in found.items():
        _note(decisions, name, node, f"{node.name} leads back to {source.name}")
    return substitute(gm, found)


def _joined(
    gm: GraphModule,
    decisions: list[Decision],
    name: str,
    targets: frozenset[Any],
    join: Callable[[Node, Node], _Call | None],
) -> GraphModule:
    """Each call of ``targets`` on another as the call that ``join`` says, on the operand of that other, in place."""
    before = len(decisions)
    for node in calls_of(gm.graph, targets):
        while node.target in targets:
            inner: Any = node.args[0]
            if not (isinstance(inner, Node) and inner.target in targets and isinstance(inner.args[0], Node)):
                break
            call = join(node, inner)
            if call is None:
                break
            _note(decisions, name, node, f"{node.name} of {inner.name} as one call")
            node.target, node.args, node.kwargs = call[0], (inner.args[0], *call[1]), call[2]
    return gm if len(decisions) == before else graph_module(gm, erase_dead(gm).graph)


def _cast(node: Node, inner: Node) -> _Call | None:
    source, between, result = (_value(n) for n in (inner.args[0], inner, node))
    if set(node.kwargs) != {"dtype"} or set(inner.kwargs) != {"dtype"} or not _holds(between.dtype, source.dtype):
        return None
    if not (_is_inexact(result.dtype) or (not _is_inexact(source.dtype) and not _is_inexact(between.dtype))):
        return None
    return (node.target, (), {"dtype": result.dtype}) if _same_strides(result, between) else None


def _cast_back(node: Node, source: Node) -> bool:
    """Whether a row of two casts gives the very values that it began with."""
    inner: Any = node.args[0]
    plain = set(node.kwargs) == {"dtype"} == set(inner.kwargs)
    return (
        plain
        and inner.args[0] is source
        and _holds(_value(inner).dtype, _value(source).dtype)
        and same_layout(node, source)
    )


def _holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether every number of one dtype is one of the other, infinities and NaN included."""
    if wide not in _BITS or narrow not in _BITS:
        return False
    if _is_inexact(narrow) and not _is_inexact(wide):
        return False
    if narrow in _SIGNED_WHOLE and not (_is_inexact(wide) or wide in _SIGNED_WHOLE):
        return False
    return all(a >= b for a, b in zip(_BITS[wide], _BITS[narrow], strict=True))


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point


def _permuted(node: Node, inner: Node) -> _Call:
    first, second = _permutation(inner), _permutation(node)
    return aten.permute.default, ([first[d] for d in second],), {}


def _permutation(node: Node) -> list[int]:
    """Which dimension of the operand each dimension of the result is."""
    rank = _value(node).dim()
    args: tuple[Any, ...] = node.args
    if node.target is aten.permute.default:
        return [d % rank for d in args[1]]
    order = list(range(rank))
    if node.target is aten.transpose.int and rank:
        a, b = (d % rank for d in args[1:3])
        order[a], order[b] = order[b], order[a]
    return order if node.target is aten.transpose.int else order[::-1]


def _viewed(node: Node, inner: Node) -> _Call | None:
    source, result = _value(inner.args[0]), _value(node)
    sizes = (*source.shape, *source.stride(), *result.shape)
    if not all(type(n) is int for n in sizes) or not source.is_contiguous() or not result.is_contiguous():
        return None
    return aten.view.default, (list(result.shape),), {}


def _expanded(node: Node, inner: Node) -> _Call | None:
    given: tuple[Any, Any] = (inner.args[1], node.args[1])
    first, second = map(list, given)
    if node.kwargs or inner.kwargs:
        return None
    kept = [-1] * (len(second) - len(first)) + first
    return node.target, ([a if isinstance(b, int) and b == -1 else b for a, b in zip(kept, second, strict=True)],), {}


def _same_strides(a: Tensor, b: Tensor) -> bool:
    return all(same_size(x, y) for x, y in zip(a.stride(), b.stride(), strict=True))


def _value(node: Any) -> Tensor:
    value: Tensor = node.meta["val"]
    return value


def _note(decisions: list[Decision], name: str, node: Node, what: str) -> None:
    decisions.append(Decision("rewrite", (name, source_of(node)), True, PASS_CHANGED(what=what)))


def _word(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target)).partition(".")[0]
