"""Whether two nodes of a graph compute one value."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from lamina.base.torch_private import OpOverload

__all__ = ["SameValue"]

_DEEPEST = 6
"""Two values are recognised as one through so many calls on each other."""


@dataclass(frozen=True, slots=True)
class SameValue:
    """Recognises values computed twice. ``training`` tells of a node whether gradients are recorded there.

    Of memory that is written to (``untouchable``) no two reads are taken for the same.
    """

    training: Callable[[Node], bool]
    untouchable: frozenset[Node]

    def holds(self, a: Any, b: Any, depth: int = _DEEPEST) -> bool:
        """Whether two nodes have one value: they are one, or the same call of the same operands."""
        if a is b:
            return True
        if not (isinstance(a, Node) and isinstance(b, Node)):
            if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)) and len(a) == len(b):
                return all(self.holds(x, y, depth) for x, y in zip(a, b, strict=True))
            return type(a) is type(b) and repr(a) == repr(b)
        if a.target is not b.target or a.op != "call_function" or depth == 0 or not _is_pure(a.target):
            return False
        if a in self.untouchable or b in self.untouchable or self.training(a) != self.training(b):
            return False
        if a.kwargs.keys() != b.kwargs.keys():
            return False
        pairs = [(a.args, b.args), *((a.kwargs[k], b.kwargs[k]) for k in a.kwargs)]
        return all(self.holds(x, y, depth - 1) for x, y in pairs)


@functools.lru_cache(maxsize=4096)
def _is_pure(target: Any) -> bool:
    """Whether two calls with the same operands give the same."""
    if target is operator.getitem:
        return True
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded not in target.tags
