"""Bags of embeddings that are all of one size, as from a matrix of indices: sums of the rows that each bag names.

Others are ragged, and the library's. So are maxima, whose places gradients ask for, and bags with an index for padding.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from lamina.ir.index import as_expr
from lamina.lower.builder import opmath
from lamina.lower.context import Lowering
from lamina.lower.library import is_read
from lamina.lower.positions import bounded_index
from lamina.lower.rules import Decline, rule
from lamina.lower.values import TensorValue

__all__: list[str] = []

_MODES = ("sum", "mean", "max")
_WRONG_INDEX = "embedding_bag: Expected idx >= 0 && idx < num_embeddings"


@rule("aten._embedding_bag_forward_only.default")
def embedding_bag(
    low: Lowering,
    node: Node,
    weight: TensorValue,
    indices: TensorValue,
    offsets: TensorValue,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    factors: TensorValue | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> list[TensorValue | None]:
    """Sums or means, the other results being for gradients only."""
    size = _bag_size(node, indices)
    if not size or _MODES[mode] == "max" or include_last_offset or padding_idx >= 0 or low.numerics != "fast":
        raise Decline("bags are ragged: each row gathers another number of rows")
    if any(is_read(node, k) for k in (1, 2, 3)):
        raise Decline("its gradient takes what the library notes of bags")
    low.plain(weight.dtype)
    out = low.result(node, 0)
    kin = opmath(weight.dtype)
    b = low.nest(node, [out.shape[0], as_expr(size), out.shape[1]])
    bag, number, column = b.axes
    place = bag * size + number
    row = bounded_index(b, b.load(indices, [place]), weight.shape[0], _WRONG_INDEX, "RuntimeError")
    value = b.load(weight, [row, column]).to(kin)
    if factors is not None:
        value = value * b.load(factors, [place]).to(kin)
    total = b.reduce("sum", value, [1])
    b.store(out, total / size if _MODES[mode] == "mean" else total, [bag, column])
    low.finish(b)
    return [out, None, None, None]


def _bag_size(node: Node, indices: TensorValue) -> int:
    """How many indices each bag has, if they have all as many as the offsets say, in numbers; else 0."""
    offsets: Any = node.args[2]
    if not isinstance(offsets, Node) or offsets.target is not torch.ops.aten.arange.start_step:
        return 0
    start, end, step = offsets.args
    if not isinstance(step, int) or not isinstance(end, int) or step <= 0:
        return 0
    return step if start == 0 and end % step == 0 and indices.numel() == end else 0
