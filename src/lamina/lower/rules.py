"""The table of lowering rules: one row for each core operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from lamina.ops import OPERATIONS

__all__ = ["RULES", "CannotLower", "Decline", "rule"]

Rule = Callable[..., Any]
R = TypeVar("R", bound=Rule)

RULES: dict[str, Rule] = {}
"""Operation name ("aten.add.Tensor") to rule. Filled when the rule files are imported, then only read."""


class CannotLower(Exception):
    """A graph that holds something no loop program can express; it runs as ATen calls instead.

    ``nodes`` are the nodes at fault and why, where it is known that the rest can be lowered without them.
    """

    def __init__(self, why: str, nodes: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(why)
        self.nodes = nodes


class Decline(Exception):
    """Raised by a rule that does not cover this use of its operation; the use becomes a library call."""


def rule(*names: str) -> Callable[[R], R]:
    """Register a function ``(low: Lowering, node: Node, *args, **kwargs) -> value`` for the operations ``names``."""

    def register(function: R) -> R:
        for name in names:
            if name in RULES:
                raise ValueError(f"two rules for {name}")
            if name not in OPERATIONS:
                raise ValueError(f"{name} has no row in the table of operations")
            RULES[name] = function
        return function

    return register
