"""Attention of a single query on a GPU, by its parts: a decoder's step for one more token.

With one query nothing of keys and values is used twice, the time is that of reading them once. The library's kernels
share work by rows of queries: with one row a head has one program, which goes through all keys alone, or they take
the way by products of copies in float32. The parts become kernels that all of the GPU works on, in which heads
that share keys (``enable_gqa``, ``repeat_interleave``, ``expand``) read them where they lie.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from lamina.base.decision import Decision
from lamina.base.devices import kind_of
from lamina.base.source import source_of
from lamina.rewrite.reasons import PASS_CHANGED
from lamina.rewrite.rules.attention_call import LIBRARY, OPERANDS, arguments_of
from lamina.rewrite.rules.editing import Replacement, Writer, replaced
from lamina.rewrite.rules.layout import with_layout_of
from lamina.rewrite.rules.spelling import fake_of, number
from lamina.rewrite.torch_private import SAFE_SOFTMAX, plain_dispatch

__all__ = ["open_attention_of_one_query"]

_LEAST_KEYS = 256
"""With fewer the library's one launch takes no longer than the three or four of the parts."""
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def open_attention_of_one_query(gm: GraphModule, decisions: list[Decision]) -> GraphModule:
    """Each ``scaled_dot_product_attention`` of one query that needs no gradient by its parts; else ``gm`` itself."""
    if not plain_dispatch():
        return gm
    found: dict[Node, Replacement] = {}
    for node in gm.graph.nodes:
        if node.target not in LIBRARY:
            continue
        call = _call(node)
        if call is None:
            continue
        found[node] = call.write
        subject = ("open_attention_of_one_query", source_of(node))
        reason = PASS_CHANGED(what="one query: kernels that read keys and values once")
        decisions.append(Decision("rewrite", subject, True, reason))
    return replaced(gm, found)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that can be written by its parts; ``shared`` query heads read one head of keys."""

    node: Node
    query: Node
    key: Node
    value: Node
    mask: Node | None
    scale: float
    shared: int

    def write(self, write: Writer) -> Node:
        """Scores, softmax and mixing in float32; a row whose keys are all masked gives zeros, as the library does."""
        before = fake_of(self.query)
        assert before is not None
        query = write.call(torch.mul, write.method("float", write.old(self.query)), self.scale)
        key, value = (write.method("float", self._repeated(write, write.old(n))) for n in (self.key, self.value))
        scores = write.call(torch.matmul, query, write.call(torch.transpose, key, -2, -1))
        if self.mask is None:
            weights = write.call(torch.softmax, scores, -1)
        else:
            mask, fake = write.old(self.mask), fake_of(self.mask)
            assert fake is not None
            if fake.dtype == torch.bool:
                scores = write.call(torch.where, mask, scores, -math.inf)
            else:
                scores = write.call(torch.add, scores, write.method("float", mask))
            weights = write.call(SAFE_SOFTMAX, scores, -1)
        result = write.method("to", write.call(torch.matmul, weights, value), before.dtype)
        return with_layout_of(write, result, self.node)

    def _repeated(self, write: Writer, node: Node) -> Node:
        return node if self.shared == 1 else write.call(torch.repeat_interleave, node, self.shared, -3)


def _call(node: Node) -> _Call | None:
    """The call's operands, where the parts are faster and mean the same."""
    given = arguments_of(node)
    if given is None:
        return None
    nodes = [given[name] for name in OPERANDS if isinstance(given[name], Node)]
    fakes = [f for f in map(fake_of, nodes) if f is not None]
    mask, scale = given["attn_mask"], given["scale"]
    if len(fakes) != 3 or given["is_causal"] is not False or number(given["dropout_p"]) != 0.0:
        return None
    if not (mask is None or isinstance(mask, Node)) or (scale is not None and number(scale) is None):
        return None
    query, key, value = fakes
    if not _suits(query, key, value) or any(f.requires_grad for f in fakes):
        return None
    shared = query.shape[-3] // key.shape[-3] if given["enable_gqa"] else 1
    heads = (*query.shape[:-3], query.shape[-3] // max(shared, 1))
    if shared * key.shape[-3] != query.shape[-3] or not heads == key.shape[:-2] == value.shape[:-2]:
        return None
    if mask is not None and not _masks(fake_of(mask), query, key.shape[-2]):
        return None
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    return _Call(node, nodes[0], nodes[1], nodes[2], mask, factor, shared)


def _suits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether the three are on a GPU, of sizes that fit one another, with one query and enough keys."""
    fakes = (query, key, value)
    if not all(kind_of(f).grids and f.dtype == query.dtype and f.dim() == query.dim() for f in fakes):
        return False
    sizes = [n for f in fakes for n in f.shape]
    if query.dtype not in _FLOATS or query.dim() < 3 or any(type(n) is not int or n == 0 for n in sizes):
        return False
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        return False
    return query.shape[-2] == 1 and key.shape[-2] >= _LEAST_KEYS


def _masks(mask: Tensor | None, query: Tensor, keys: int) -> bool:
    """Whether the mask is one that the library takes, for scores of this shape, without a gradient."""
    if mask is None or mask.requires_grad or mask.dtype not in (torch.bool, query.dtype):
        return False
    whole = (*query.shape[:-1], keys)
    fits = all(type(a) is int and a in (1, b) for a, b in zip(reversed(mask.shape), reversed(whole), strict=False))
    return mask.device == query.device and mask.dim() <= len(whole) and fits
