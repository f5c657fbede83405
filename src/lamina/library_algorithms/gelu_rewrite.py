"""Products and the tanh form of GELU around them as one call of the library, in a region of a GPU.

A training forward keeps what GELU is applied to, and its backward takes a product for GELU's gradient: calls of
``library_algorithms/gelu_operations.py`` do both while the library has the product at hand. Each is asked for.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from lamina.base.devices import Where, kind_of, with_cublas
from lamina.base.fx.copying import Write
from lamina.base.fx.editing import call_for, used_once, written_anew
from lamina.base.symbolic.torch_private import contiguous
from lamina.library_algorithms.gelu_operations import addmm_gelu, mm_gelu_backward
from lamina.ops import overloads
from lamina.ops.row import PERMUTED, RESHAPED

__all__ = ["Ask", "gelu_products"]

aten = torch.ops.aten

Ask = Callable[[Node, Any, Sequence[Tensor], bool], int | None]
"""Given the product, the operation that could be called instead, its operands' values, and whether the sum of its
result over all rows is needed too: the number of the library's algorithm, or None for what there is."""

_RESHAPES = overloads(lambda row: row.elements == RESHAPED)
_VIEWS = overloads(lambda row: row.elements in (RESHAPED, PERMUTED))
_READERS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.sum.dim_IntList)
_MULTIPLE = 8
"""Columns of which an auxiliary matrix of cuBLASLt's GELU must have a multiple; it refuses others."""


def gelu_products(gm: GraphModule, ask: Ask, where: Where = with_cublas) -> GraphModule:
    """Call the library for products with GELU on devices ``where`` that pays; ``gm`` itself if nothing changes."""
    returned = set(gm.graph.output_node().all_input_nodes)
    found: dict[Node, Write] = {}
    for node in gm.graph.find_nodes(op="call_function", target=aten.gelu.default):
        _forward(node, ask, where, found)
    for node in gm.graph.find_nodes(op="call_function", target=aten.gelu_backward.default):
        _backward(node, ask, where, returned, found)
    return written_anew(gm, found)


def _forward(node: Node, ask: Ask, where: Where, found: dict[Node, Write]) -> None:
    """GELU of a product with a bias for each column, where the product is needed besides."""
    product, chain = _opened(node.args[0])
    if not _is_tanh(node) or not _is_stored(node) or not _is_call(product, aten.addmm.default) or product in found:
        return
    bias, left, right = product.args
    if not all(_suits(n, where) for n in (product, bias, left, right)) or bias.meta["val"].dim() != 1:
        return
    if bias.meta["val"].shape[0] != product.meta["val"].shape[1] or not _is_kept(product, node, chain):
        return
    algorithm = ask(product, addmm_gelu, [n.meta["val"] for n in (bias, left, right)], False)
    if algorithm is None:
        return
    found[product] = functools.partial(_write_product, product, algorithm)
    found[node] = functools.partial(_write_gelu, node, product)


def _backward(node: Node, ask: Ask, where: Where, returned: set[Node], found: dict[Node, Write]) -> None:
    """GELU's gradient of a product that nothing else needs, and the sum over all rows, where there is one."""
    product, chain = _opened(node.args[0])
    kept: Any = node.args[1]
    if not _is_tanh(node) or not _is_stored(node) or not _is_call(product, aten.mm.default):
        return
    if not all(used_once(n, returned) for n in (product, *chain)):
        return
    left, right = product.args
    if not all(_suits(n, where) for n in (product, left, right, kept)) or not contiguous(kept.meta["val"]):
        return
    value = product.meta["val"]
    operands = [left.meta["val"], right.meta["val"], kept.meta["val"].reshape(value.shape)]
    algorithm = ask(product, mm_gelu_backward, operands, _is_summed(node, value))
    if algorithm is not None:
        found[node] = functools.partial(_write_backward, node, product, algorithm)


def _opened(source: Any) -> tuple[Any, list[Node]]:
    """What the value is a reshaped form of, and the calls that reshape it."""
    chain: list[Node] = []
    while isinstance(source, Node) and source.target in _RESHAPES:
        chain.append(source)
        source = source.args[0]
    return source, chain


def _is_call(node: Any, target: Any) -> bool:
    return isinstance(node, Node) and node.target is target and not node.kwargs


def _is_tanh(node: Node) -> bool:
    return node.kwargs.get("approximate") == "tanh"


def _is_stored(node: Node) -> bool:
    """Whether only products, sums and the caller read the value: no kernel that would compute it on the way."""
    users = list(node.users)
    return all(_is_stored(u) if u.target in _VIEWS else u.op == "output" or u.target in _READERS for u in users)


def _suits(node: Any, where: Where) -> bool:
    """Whether the value is a tensor of half precision and known size there, in rows of eights."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(value, Tensor) or not where(kind_of(value)) or value.dim() == 0:
        return False
    if value.dtype not in (torch.bfloat16, torch.float16) or not all(isinstance(n, int) for n in value.shape):
        return False
    return value.shape[-1] % _MULTIPLE == 0


def _is_kept(product: Node, node: Node, chain: Sequence[Node]) -> bool:
    """Whether the product is needed for something else than this GELU."""
    return any(
        user is not after for n, after in zip((*chain, product), (node, *chain), strict=True) for user in n.users
    )


def _is_summed(node: Node, value: Tensor) -> bool:
    """Whether the sum of a gradient, as a matrix shaped like ``value``, over all rows is needed."""
    matrices = [n for n in (node, *node.users) if n is node or n.target in _RESHAPES]
    users = [u for n in matrices if n.meta["val"].shape == value.shape for u in n.users]
    return any(u.target is aten.sum.dim_IntList and list(u.args[1]) == [0] for u in users)  # type: ignore[arg-type]


def _reshaped(graph: Graph, node: Node, matrix: Node) -> Node:
    """``matrix`` in the shape of ``node``."""
    shape = list(node.meta["val"].shape)
    if list(matrix.meta["val"].shape) == shape:
        return matrix
    return call_for(graph, node, aten.view.default, matrix, shape)


def _write_product(product: Node, algorithm: int, graph: Graph, made: Mapping[Node, Node]) -> Node:
    operands = (made[n] for n in cast("tuple[Node, ...]", product.args))
    return call_for(graph, product, operator.getitem, call_for(graph, product, addmm_gelu, *operands, algorithm), 1)


def _write_gelu(node: Node, product: Node, graph: Graph, made: Mapping[Node, Node]) -> Node:
    pair: Any = made[product].args[0]
    return _reshaped(graph, node, call_for(graph, node, operator.getitem, pair, 0))


def _write_backward(node: Node, product: Node, algorithm: int, graph: Graph, made: Mapping[Node, Node]) -> Node:
    left, right, kept = (made[cast("Node", n)] for n in (*product.args, node.args[1]))
    result = call_for(graph, node, mm_gelu_backward, left, right, _reshaped(graph, product, kept), algorithm)
    return _reshaped(graph, node, result)
