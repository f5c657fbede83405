"""Matrix products and convolutions of half-precision operands in float32, where the processor has no faster way.

Without instructions for products of bfloat16 or float16, ATen's CPU kernels for them run 10 to 150 times slower than
the float32 ones (an EPYC with AVX2, 512x512x512: 217 ms and 2.2 ms). Operands are exact in float32 and both ways
accumulate in float32, so only the order of additions differs. The conversions fuse with what is around them.
"""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from lamina.base.devices import ONEDNN, kind_of
from lamina.base.fx.copying import Made, Write, copy_nodes
from lamina.base.fx.torch_private import graph_module
from lamina.ops import overloads, row_of
from lamina.rewrite.torch_private import has_half_products

__all__ = ["widen_products"]

aten = torch.ops.aten

_MATRIX = overloads(lambda row: row.factors is not None)
"""Matrix products."""
_OTHERS = (
    aten.convolution.default,
    aten.convolution_backward.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
)

# Measured on two cores with AVX2: multiplications a nanosecond of ATen's half-precision kernels where the columns of
# the right factor are contiguous and where they are not, of its float32 kernels, and elements converted a nanosecond.
_COLUMNS_RATE, _ROWS_RATE, _WIDE_RATE, _CONVERSION_RATE = 9.0, 0.5, 75.0, 2.5
_UNKNOWN = 4096
"""A size that is a symbol counts as this."""


def widen_products(gm: GraphModule) -> GraphModule:
    """Compute half-precision products of CPU tensors in float32 where that is faster; ``gm`` itself if none is."""
    chosen = {
        node
        for target in (*_MATRIX, *_OTHERS)
        for node in gm.graph.find_nodes(op="call_function", target=target)
        if _half_dtype(node) is not None and (target in _OTHERS or _pays(node))
    }
    return _Widening(gm, chosen).run() if chosen else gm


def _half_dtype(node: Node) -> torch.dtype | None:
    """The half dtype of the CPU tensors a product takes, if the processor has no instructions for it."""
    found = None
    for operand in node.all_input_nodes:
        value = operand.meta.get("val")
        if not isinstance(value, Tensor) or not kind_of(value).has(ONEDNN):
            return None
        if value.dtype in (torch.bfloat16, torch.float16):
            found = value.dtype
    return None if found is None or has_half_products(found) else found


def _pays(node: Node) -> bool:
    """Whether a matrix product in float32, conversions included, is faster than in half precision."""
    row = row_of(node.target)
    assert row is not None
    assert row.factors is not None
    factors: Any = node.args[row.factors : row.factors + 2]
    left, right = (factor.meta["val"] for factor in factors)
    *batch, m, k = (_size(n) for n in left.shape)
    n = _size(right.shape[-1])
    batches = batch[0] if batch else 1
    step = right.stride(-2)
    columns = isinstance(step, int) and step == 1  # comparing a symbol would add a guard
    work = batches * m * k * n
    direct = work / (_COLUMNS_RATE if columns else _ROWS_RATE)
    converted = batches * (m * k + k * n + m * n)
    return direct > work / _WIDE_RATE + converted / _CONVERSION_RATE


def _size(size: int | torch.SymInt) -> int:
    return size if isinstance(size, int) else _UNKNOWN


def _wide(value: Any) -> Any:
    """What a value becomes: half-precision tensors float32, with the same strides; the rest as it is."""
    if isinstance(value, (tuple, list)):
        return type(value)(_wide(v) for v in value)
    return value.to(torch.float32) if _is_half(value) else value


def _is_half(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)


class _Widening:
    """The new graph, under construction."""

    def __init__(self, gm: GraphModule, chosen: set[Node]) -> None:
        self.gm, self.chosen = gm, chosen
        self.graph = Graph()
        self.made: dict[Node, Node] = {}
        self.widened: dict[Node, Node] = {}

    def run(self) -> GraphModule:
        writes: dict[Node, Write] = {node: partial(self.product, node) for node in self.chosen}
        for product in self.chosen:
            writes |= {user: partial(self.part, user) for user in product.users if user.target is operator.getitem}
        copy_nodes(self.graph, self.gm.graph.nodes, self.made, writes=writes)
        return graph_module(self.gm, self.graph)

    def part(self, node: Node, graph: Graph, made: Made) -> Node:
        """One of a product's several results, rounded back."""
        result = graph.node_copy(node, made.__getitem__)
        result.meta["val"] = _wide(node.meta.get("val"))
        return self.narrowed(result, node)

    def product(self, node: Node, graph: Graph, made: Made) -> Node:
        """The product in float32; with one result, rounded back."""
        call = graph.node_copy(node, self.operand)
        call.meta["val"] = _wide(node.meta["val"])
        return self.narrowed(call, node) if isinstance(node.meta["val"], Tensor) else call

    def operand(self, node: Node) -> Node:
        """The float32 copy of an operand, made once."""
        if not _is_half(node.meta.get("val")):
            return self.made[node]
        if node not in self.widened:
            self.widened[node] = self.cast(self.made[node], node, torch.float32)
        return self.widened[node]

    def narrowed(self, result: Node, node: Node) -> Node:
        """The result in the dtype that ``node`` had."""
        value = node.meta.get("val")
        if not isinstance(value, Tensor) or not _is_half(value):
            return result
        return self.cast(result, node, value.dtype)

    def cast(self, result: Node, node: Node, dtype: torch.dtype) -> Node:
        made = self.graph.call_function(aten._to_copy.default, (result,), {"dtype": dtype})
        made.meta = {**node.meta, "val": result.meta["val"].to(dtype)}
        return made
