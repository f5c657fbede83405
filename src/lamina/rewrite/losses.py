"""Cross entropy without its matrix of log-probabilities.

``nll_loss`` reads one column of each row that ``log_softmax`` writes. With the row's maximum and the logarithm of its
sum as values of their own, that column is computed where it is read, and the backward pass computes the rest again
from the scores: what is written in the forward and kept for the backward is two numbers a row.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
from torch.fx import Graph, GraphModule, Node

from lamina.base.fx.editing import call_for, written_anew
from lamina.base.symbolic.torch_private import is_positive, is_zero
from lamina.ops import overloads
from lamina.ops.row import KEPT, PERMUTED, RESHAPED, UNIT

__all__ = ["open_log_softmax"]

aten = torch.ops.aten

_LOSSES = (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
_READERS = (
    *_LOSSES,
    aten.nll_loss_backward.default,
    aten.nll_loss2d_backward.default,
    aten._log_softmax_backward_data.default,
)
_PASSED = overloads(lambda row: row.elements in (KEPT, RESHAPED, UNIT, PERMUTED)) - {aten._to_copy.default}
"""What may stand between a log-softmax and its loss: scores of more than two dimensions are laid out anew."""


def open_log_softmax(gm: GraphModule) -> GraphModule:
    """Each log-softmax that only losses read, as reductions and a difference; ``gm`` itself if there is none."""
    chosen = {n for n in gm.graph.find_nodes(op="call_function", target=aten._log_softmax.default) if _for_losses(n)}
    return written_anew(gm, {node: functools.partial(_opened, node) for node in chosen})


def _for_losses(node: Node) -> bool:
    targets, shape = _read_by(node), node.meta["val"].shape
    if not (targets <= set(_READERS) and targets & set(_LOSSES)):
        return False
    return is_positive(shape[node.args[1]]) and not any(is_zero(size) for size in shape)


def _read_by(node: Node) -> set[object]:
    """What reads the values of ``node``, itself or laid out anew."""
    found: set[object] = set()
    for user in node.users:
        found |= _read_by(user) if user.target in _PASSED else {user.target}
    return found


def _opened(node: Node, graph: Graph, made: Mapping[Node, Node]) -> Node:
    """``(x - max) - log(sum(exp(x - max)))`` as in eager's kernel, in float32 or wider."""
    call = functools.partial(call_for, graph, node)
    scores, dim = made[node.args[0]], node.args[1]  # type: ignore[index]
    value = node.meta["val"]
    wide = torch.float64 if value.dtype == torch.float64 else torch.float32
    if scores.meta["val"].dtype != wide:
        scores = call(aten._to_copy.default, scores, dtype=wide)
    shifted = call(aten.sub.Tensor, scores, call(aten.amax.default, scores, [dim], True))
    total = call(aten.sum.dim_IntList, call(aten.exp.default, shifted), [dim], True)
    result = call(aten.sub.Tensor, shifted, call(aten.log.default, total))
    return result if value.dtype == wide else call(aten._to_copy.default, result, dtype=value.dtype)
