"""``lamina::mm_odd_rows``: a product whose result has odd rows, written by aligned kernels without a copy.

Where rows of a matrix are not a multiple of 16 bytes long, every eighth row of it, from an aligned column on, is a
matrix whose rows are: eight products make all of the result but fewer than eight columns at each edge. Padding the
product instead needs its result a second time, and a pass over both. (Logits of GPT-2, 8192 x 50257; of BERT, 16384 x
30522, with a bias.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from lamina.ops.aliasing import makes_view

__all__ = ["ALIGNED", "escapes", "mm_odd_rows", "suits"]

ALIGNED = 8
"""Elements of half precision in 16 bytes."""
_FEWEST_ROWS = 2048
"""Rows of a result from which an eighth of them is work enough for a GPU."""

torch.library.define("lamina::mm_odd_rows", "(Tensor left, Tensor right, Tensor? bias=None) -> Tensor")


@torch.library.impl("lamina::mm_odd_rows", "default")
def _product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """``left @ right``, plus a ``bias`` for each column, contiguous; at least eight columns."""
    (m, _), n = left.shape, right.shape[1]
    out = left.new_empty(m, n)

    def product(rows: Tensor, columns: Tensor, added: Tensor | None, into: Tensor) -> None:
        if added is None:
            torch.mm(rows, columns, out=into)
        else:
            torch.addmm(added, rows, columns, out=into)

    for first in range(min(ALIGNED, m)):
        start = -first * n % ALIGNED
        end = n - (n - start) % ALIGNED
        if start < end:
            own = None if bias is None else bias[start:end]
            product(left[first::ALIGNED], right[:, start:end], own, out[first::ALIGNED, start:end])
    edges = left.new_empty(m, 2 * ALIGNED)
    both = None if bias is None else torch.cat([bias[:ALIGNED], bias[n - ALIGNED :]])
    product(left, torch.cat([right[:, :ALIGNED], right[:, n - ALIGNED :]], 1), both, edges)
    out[:, :ALIGNED] = edges[:, :ALIGNED]
    out[:, n - ALIGNED :] = edges[:, ALIGNED:]
    return out


def _fake(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[1])


torch.library.register_fake("lamina::mm_odd_rows", _fake)

mm_odd_rows: Any = torch.ops.lamina.mm_odd_rows.default


def suits(left: Tensor, right: Tensor) -> bool:
    """Whether only the rows of the result are odd, and there are many of them."""
    return (
        left.shape[0] >= _FEWEST_ROWS
        and right.shape[1] % ALIGNED != 0
        and (left.stride(1), right.stride(0)) == (1, 1)
        and left.stride(0) % ALIGNED == 0
        and right.stride(1) % ALIGNED == 0
    )


def escapes(node: Node, graph: Graph) -> bool:
    """Whether what ``node`` makes, or a view of it, is returned, and read by nothing else."""
    returned = set(graph.output_node().all_input_nodes)
    while True:
        users = [user for user in node.users if user.op != "output"]
        if node in returned:
            return not users
        if len(users) != 1 or users[0].op != "call_function" or not makes_view(users[0].target):
            return False
        node = users[0]
