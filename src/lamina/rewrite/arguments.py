"""Arguments of a call, wherever they are written, and its dimensions, counted from the last."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

__all__ = ["Dimension", "argument", "from_last", "rank_of"]


class Dimension(int):
    """A dimension counted from the last: a number that no scalar or size of a pattern stands for."""


def rank_of(node: Any) -> int:
    """The number of a tensor's dimensions."""
    return int(node.meta["val"].dim())


def argument(node: Node, place: int, name: str, default: Any = None) -> Any:
    """The argument at ``place`` of a call, or by its name."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def from_last(value: Any, rank: int) -> Any:
    """A dimension, or several, of a tensor of ``rank`` as negative numbers; anything else as it is."""
    if type(value) is int:
        return Dimension(value - rank if value >= 0 else value)
    if isinstance(value, (list, tuple)) and all(type(v) is int for v in value):
        return [from_last(v, rank) for v in value]
    return value
