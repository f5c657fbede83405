"""Keeping a result's strides where the rest of a captured graph can tell."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from lamina.rewrite.rules.editing import Writer
from lamina.rewrite.rules.spelling import fake_of, spelled
from lamina.rewrite.torch_private import same_size

__all__ = ["with_layout_of"]


def with_layout_of(write: Writer, made: Node, old: Node) -> Node:
    """``made``, or a copy of it laid out as ``old``, if something that uses ``old`` would notice."""
    before, after = fake_of(old), fake_of(made)
    assert before is not None
    assert after is not None
    if _alike(before, after) or not _noticed(old, after):
        return made
    order = sorted(range(before.dim()), key=lambda d: _step(before, d), reverse=True)
    dense = write.method("contiguous", write.call(torch.permute, made, tuple(order)))
    return write.call(torch.permute, dense, tuple(order.index(d) for d in range(before.dim())))


def _step(value: Tensor, dim: int) -> int:
    step = value.stride(dim)
    return step if isinstance(step, int) else 1 << 30  # symbols: the leading dimensions, in their order


def _alike(before: Tensor, after: Tensor) -> bool:
    return all(same_size(a, b) for a, b in zip(before.stride(), after.stride(), strict=True))


def _noticed(node: Node, after: Tensor) -> bool:
    """Whether a call that reads ``node`` fails or gives other strides for ``after``."""
    for user in node.users:
        call = spelled(user)
        before = fake_of(user)
        if call is None or call.writes or before is None:
            return True
        result = _result(user, node, after)
        if result is None:
            return True
        if not _alike(before, result) and (call.name not in _VIEWS or _noticed(user, result)):
            return True
    return False


_VIEWS = ("transpose", "permute", "reshape", "contiguous", "unsqueeze", "squeeze", "expand")


def _result(user: Node, node: Node, value: Tensor) -> Tensor | None:
    """What ``user`` gives for ``value`` in the place of ``node``."""

    def fake(item: Any) -> Any:
        return value if item is node else item.meta["example_value"] if isinstance(item, Node) else item

    args, kwargs = torch.fx.node.map_arg((user.args, user.kwargs), fake)
    try:
        if user.op == "call_method":
            found = getattr(args[0], str(user.target))(*args[1:], **kwargs)
        else:
            found = user.target(*args, **kwargs)  # type: ignore[operator]
    except RuntimeError:  # a view that these strides do not allow
        return None
    return found if isinstance(found, Tensor) else None
