"""Masked rows of attention are put right in the library's own results, without a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from lamina.lower.context import Lowering
from lamina.lower.custom_memory import writable
from lamina.lower.values import TensorValue
from lamina.masked_rows.operations import IN_PLACE

__all__ = ["IN_PLACE", "put_right"]

_REASON = "most often no row is masked, and a kernel of its own leaves at once"


def put_right(low: Lowering, env: Mapping[Node, Any], node: Node, args: Sequence[Any]) -> Any:
    """Append the form of the operation that writes, on its operands themselves where nothing else needs them."""
    op, count = IN_PLACE[str(node.target)]
    operands = [a for a in node.args if isinstance(a, Node)]
    vals = node.meta["val"] if isinstance(node.meta["val"], tuple | list) else (node.meta["val"],)
    new = [_memory(low, env, node, operands, k, vals[k]) for k in range(count)]
    more = [low.result(node, k) for k in range(count, len(vals))]
    low.library(node, op, [*new, *args[count:]], {}, more, _REASON, mutates=tuple(t.buffer for t in new))
    return [*new, *more] if len(vals) > 1 else new[0]


def _memory(
    low: Lowering, env: Mapping[Node, Any], node: Node, operands: Sequence[Node], place: int, result: torch.Tensor
) -> TensorValue:
    """The operand at ``place``, laid out as ``result``: itself, if it may be overwritten, or a copy."""
    operand = operands[place]
    if operand.meta["val"].stride() == result.stride():
        return writable(low, env, node, operand, [n for k, n in enumerate(operands) if k != place])
    out = low.like(node.name, result)
    b = low.nest(node, out.shape)
    b.store(out, b.load(env[operand]))
    low.finish(b)
    return out
