"""One tile of attention with functions of scores as a graph for our kernels.

A tile is some heads, some rows of queries and a range of keys. What eager does to the whole matrix of scores
(``math_attention``) is done here to a tile: the functions that the user wrote for one score are mapped
over the tile, its places being counted from ``first``, the tile's first head, row and key. Scores, logarithms and sums
are of float32, as eager's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from lamina.backends.torch_private import places_as_indices, symbolic_trace

__all__ = ["Example", "Scores", "attention_tile", "visible_keys"]

_KEYS, _ROWS = 59, 37
"""Sizes of examples of what may have any size."""
_FIRST = ((5, 0), (7, 0), (11, 0))
"""Examples of a first head, row and key, and the least that they are."""
_SIZES = (3, _ROWS, _KEYS)
"""Examples of the numbers of batches, rows and keys."""
_CONSTANT = (torch.ops.aten.new_ones.default, torch.ops.aten.ones.default)
"""What a mask that hides nothing comes to."""

Example = tuple[Tensor, tuple[int, ...]] | tuple[int, None]
"""A tensor in the place of another, and those of its dimensions that may have any size; or one of any numbers."""


@dataclass(frozen=True, slots=True)
class Scores:
    """How scores are made of products: what node ``flex_attention`` holds, and the tensors that its functions read.

    ``score`` and ``mask`` are the graphs of the user's functions. ``heads`` is the number of heads of queries in a
    batch; ``keys`` and ``rows`` are how many a tile has, where that is one number.
    """

    score: GraphModule
    mask: GraphModule
    scale: float
    heads: int
    score_reads: Sequence[Example]
    mask_reads: Sequence[Example]
    dtype: torch.dtype
    keys: int | None
    rows: int | None
    decompositions: Mapping[Any, Callable[..., Any]]

    def masks(self) -> bool:
        """Whether the mask hides anything, as far as its text tells."""
        (result,) = self.mask.graph.output_node().all_input_nodes
        return result.target not in _CONSTANT

    def places(self, first: Sequence[Any], shape: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Batch, head, row and key of each element of a tile, one dimension after the other."""
        (head, row, key), (heads, rows, keys) = first, shape
        number = torch.arange(heads, dtype=torch.int64) + head
        return (
            number // self.heads,
            number % self.heads,
            torch.arange(rows, dtype=torch.int64) + row,
            torch.arange(keys, dtype=torch.int64) + key,
        )

    def mapped(self, graph: GraphModule, scores: int, reads: int) -> Callable[..., Any]:
        """``graph``, of one place, for a tile. It takes ``scores`` scores, four numbers of the place and ``reads``."""
        made: Callable[..., Any] = graph
        for places in ((None, None, None, 0), (None, None, 0, None), (0, 0, None, None)):
            made = torch.vmap(made, in_dims=(*(0,) * scores, *places, *(None,) * reads))
        return made

    def of(self, query: Tensor, key: Tensor, first: Sequence[Any], reads: Sequence[Tensor]) -> Any:
        """The scores of a tile, minus infinity where they are hidden."""
        products = torch.bmm(query.float(), key.float().transpose(1, 2)) * self.scale
        places = self.places(first, products.shape)
        mine, masks = reads[: len(self.score_reads)], reads[len(self.score_reads) :]
        scores = self.mapped(self.score, 1, len(mine))(products, *places, *mine)
        if not self.masks():
            return scores
        seen = self.mapped(self.mask, 0, len(masks))(*places, *masks)
        return torch.where(seen, scores, torch.full((), -math.inf))


def attention_tile(of: Scores, heads: int, sizes: tuple[int, int], statistics: bool) -> GraphModule:
    """Graph of (first head, row and key, queries, keys, values, *reads) to the result.

    With ``statistics`` it gives the logarithms of the sums and the greatest scores of rows as well, in base 2.
    """

    def tile(head: Any, row: Any, place: Any, query: Tensor, key: Tensor, value: Tensor, *reads: Tensor) -> Any:
        scores = of.of(query, key, (head, row, place), reads)
        greatest = scores.amax(-1, keepdim=True)
        taken = torch.where(greatest.abs() == math.inf, 0.0, greatest)
        weights = torch.exp(scores - taken)
        total = weights.sum(-1, keepdim=True)
        mixed = torch.bmm(weights.to(query.dtype), value).float()
        out = (mixed / torch.where(total == 0, 1.0, total)).to(query.dtype)
        if not statistics:
            return (out,)
        logarithm = (total.log() + taken).squeeze(-1)
        return out, logarithm / math.log(2), greatest.squeeze(-1) / math.log(2)

    rows, keys = of.rows or _ROWS, of.keys or _KEYS
    free_rows, free_keys = (() if of.rows else (1,)), (() if of.keys else (1,))
    query = torch.empty(heads, rows, sizes[0], dtype=of.dtype)
    key, value = (torch.empty(heads, keys, size, dtype=of.dtype) for size in sizes)
    operands = (query, free_rows), (key, free_keys), (value, free_keys)
    with torch.no_grad(), places_as_indices():
        return symbolic_trace(tile, (*_FIRST, *operands, *of.score_reads, *of.mask_reads), of.decompositions)


def visible_keys(of: Scores, sizes: Sequence[int | None]) -> GraphModule:
    """Graph of (*reads of the mask) to the first visible key of each row, and the one after the last.

    For all heads and batches if the mask depends on neither; the number of keys and 0 where a row sees none. ``sizes``
    are the numbers of batches, rows and keys. Those that are None the graph takes before what it reads; from 2 on.
    """
    batch, head, *_ = of.mask.graph.find_nodes(op="placeholder")
    free = [(example, 2) for example, size in zip(_SIZES, sizes, strict=True) if size is None]

    def find(*given: Any) -> Any:
        numbers = iter(given)
        batches, rows, keys = (next(numbers) if size is None else size for size in sizes)
        heads = batches * of.heads if batch.users or head.users else 1
        reads = given[len(free) :]
        seen = of.mapped(of.mask, 0, len(reads))(*of.places((0, 0, 0), (heads, rows, keys)), *reads)
        places = torch.arange(keys, dtype=torch.int32)
        first = torch.where(seen, places, keys).amin(-1)
        return first, torch.where(seen, places + 1, 0).amax(-1)

    with torch.no_grad(), places_as_indices():
        return symbolic_trace(find, (*free, *of.mask_reads), of.decompositions)
