"""Matrix products whose rows do not start at 16 bytes, on padded operands, where the vendor's library is slow for them.

cuBLAS has tensor-core kernels for half precision only where the rows of operands and result are multiples of eight
elements long; a vocabulary of 50257 columns costs a multiple of one of 50264. The zeros added to an operand add
nothing to a sum, and what they make of the result is cut off again. On the joint graph, so that it is the padded result
that is kept for the backward and not a copy of a part of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from lamina.base.decision import Decision
from lamina.base.devices import Where, kind_of, with_cublas
from lamina.base.fx.copying import Write
from lamina.base.fx.editing import call_for, written_anew
from lamina.ops import overloads
from lamina.ops.row import PERMUTED
from lamina.rewrite import reasons
from lamina.rewrite.odd_rows import ALIGNED, escapes, mm_odd_rows, suits

__all__ = ["align_products"]

aten = torch.ops.aten

_TURNS = overloads(lambda row: row.elements == PERMUTED)
"""What a matrix whose rows run down its columns can be made by."""
_RATE, _COPY = 600e12, 3e12
"""Operations and bytes a second of a large GPU."""
_LOST = 2.0
"""What a product of odd rows takes longer at least, in times of an aligned one. (GPT-2 on an H100, vocabulary and
all: 12.6 ms beside 6.0 with padding, of which the aligned product is about 1.)"""

Note = Callable[[Decision], None]


def align_products(gm: GraphModule, note: Note = lambda decision: None, where: Where = with_cublas) -> GraphModule:
    """Pad the half-precision products on devices ``where`` it is asked for and pays; ``gm`` itself if none is.

    ``note`` is told of each product of odd rows, with what it would lose and what the padding moves, in microseconds.
    """
    chosen: dict[Node, Write] = {}
    for target in (aten.mm.default, aten.addmm.default):
        for node in gm.graph.find_nodes(op="call_function", target=target):
            padding = _padding(node, where)
            if padding and _by_eighths(node, gm.graph):
                note(Decision("align product", (node.name,), True, reasons.ROWS_BY_EIGHTHS()))
                chosen[node] = functools.partial(_odd_rows, node)
            elif padding and _pays(node, padding, note):
                chosen[node] = functools.partial(_padded, node, padding)
    return written_anew(gm, chosen)


def _factors(node: Node) -> tuple[Any, Any]:
    left, right = node.args[-2:]
    return left, right


def _padding(node: Node, where: Where) -> tuple[int, int, int] | None:
    """What rows, inner size and columns of a product lack to eight elements, where memory rows run along them."""
    factors: list[Any] = [n.meta.get("val") if isinstance(n, Node) else None for n in _factors(node)]
    if len(node.args) > 3 or node.kwargs or not all(_known_half(value, where) for value in factors):
        return None
    left, right = factors
    (m, k), n = left.shape, right.shape[1]
    if min(m, k, n) < ALIGNED:
        return None
    along = {"n": n}
    along |= {"k": k} if left.stride(1) == 1 or right.stride(0) == 1 else {}
    along |= {"m": m} if left.stride(0) == 1 else {}
    lacking = tuple(-along.get(name, 0) % ALIGNED for name in "mkn")
    return (lacking[0], lacking[1], lacking[2]) if any(lacking) else None


def _known_half(value: Any, where: Where) -> bool:
    """Whether a matrix is of half precision on such a device, of known sizes and with contiguous rows or columns."""
    if not isinstance(value, Tensor) or not where(kind_of(value)) or value.dim() != 2:
        return False
    if value.dtype not in (torch.bfloat16, torch.float16):
        return False
    sizes = (*value.shape, *value.stride())
    return all(isinstance(size, int) for size in sizes) and 1 in value.stride()


def _pays(node: Node, padding: tuple[int, int, int], note: Note) -> bool:
    left, right = (factor.meta["val"] for factor in _factors(node))
    (m, k), n = left.shape, right.shape[1]
    rows, inner, columns = padding
    moved = 2 * m * k * bool(rows or inner) + 2 * k * n * bool(inner or columns) + 2 * m * n * bool(rows or columns)
    lost_us = _LOST * 2 * m * k * n / _RATE * 1e6
    copy_us = moved * left.element_size() / _COPY * 1e6
    pays = bool(copy_us < lost_us)
    reason = reasons.ROWS_PADDED() if pays else reasons.PADDING_COSTS_MORE()
    facts = (("lost_us", round(lost_us, 1)), ("copies_us", round(copy_us, 1)))
    note(Decision("align product", (node.name,), pays, reason, facts))
    return pays


def _by_eighths(node: Node, graph: Graph) -> bool:
    """Whether the padded result would only be copied to be returned, and ``lamina::mm_odd_rows`` needs no copy."""
    left, right = (factor.meta["val"] for factor in _factors(node))
    for bias in node.args[:-2]:
        value = bias.meta["val"] if isinstance(bias, Node) else None
        if value is None or value.shape != right.shape[1:] or value.dtype != right.dtype:
            return False
    return suits(left, right) and escapes(node, graph)


def _odd_rows(node: Node, graph: Graph, made: Mapping[Node, Node]) -> Node:
    bias: Any = node.args[:-2]
    return call_for(graph, node, mm_odd_rows, *(made[n] for n in (*_factors(node), *bias)))


def _transposed_from(factor: Node) -> Node | None:
    """The matrix whose transpose the factor is, where the graph has it."""
    back = factor.args[0] if factor.op == "call_function" and factor.target in _TURNS else None
    if not isinstance(back, Node):
        return None
    value, transposed = factor.meta["val"], back.meta["val"].t() if back.meta["val"].dim() == 2 else None
    same = transposed is not None and (transposed.shape, transposed.stride()) == (value.shape, value.stride())
    return back if same else None


def _padded(node: Node, padding: tuple[int, int, int], graph: Graph, made: Mapping[Node, Node]) -> Node:
    call = functools.partial(call_for, graph, node)

    def wider(factor: Node, rows: int, columns: int) -> Node:
        """A factor with zeros after its rows and columns, in memory laid out as it was."""
        if not rows and not columns:
            return factor
        if factor.meta["val"].stride(1) == 1:
            return call(aten.constant_pad_nd.default, factor, [0, columns, 0, rows])
        # A matrix that is a factor of two products, in one of them turned over, is padded once.
        transposed = _transposed_from(factor) or call(aten.permute.default, factor, [1, 0])
        return call(aten.permute.default, call(aten.constant_pad_nd.default, transposed, [0, rows, 0, columns]), [1, 0])

    rows, inner, columns = padding
    left, right = (made[factor] for factor in _factors(node))
    factors = wider(left, rows, inner), wider(right, inner, columns)
    if node.target is aten.mm.default:
        result = call(aten.mm.default, *factors)
    else:
        bias = made[node.args[0]]  # type: ignore[index]
        shape = bias.meta["val"].shape
        lacking = [columns if shape[-1:] != (1,) else 0, rows if len(shape) == 2 and shape[0] != 1 else 0]
        if len(shape) and any(lacking[: len(shape)]):
            bias = call(
                aten.constant_pad_nd.default, bias, [0, lacking[0], *([0, lacking[1]] if len(shape) == 2 else [])]
            )
        result = call(aten.addmm.default, bias, *factors)
    m, n = node.meta["val"].shape
    if rows:
        result = call(aten.slice.Tensor, result, 0, 0, m)
    if columns:
        result = call(aten.slice.Tensor, result, 1, 0, n)
    return call(aten.clone.default, result, memory_format=torch.contiguous_format)
