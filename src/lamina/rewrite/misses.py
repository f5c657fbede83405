"""Near misses: how far a pattern came that was expected to be found and was not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch.fx import Node

__all__ = ["Cause", "Miss", "Misses"]

Cause = Literal["differs", "needed", "condition"]


@dataclass(frozen=True, slots=True)
class Miss:
    """How far a match came: nodes that fitted, the node that did not, and why.

    ``vague`` is one that says no more than that the operands of the node do not fit. ``cause`` tells a node that
    "differs" from a value that is "needed" elsewhere and from the rule's own "condition" that said no.
    """

    fitted: int
    node: Node
    why: str
    vague: bool = False
    cause: Cause = "differs"

    @property
    def nearness(self) -> tuple[int, bool, bool]:
        """Larger for a nearer miss."""
        return self.fitted, not self.vague, self.node.op.startswith("call")


class Misses:
    """Remembers the nearest miss, if misses are ``wanted``."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.nearest: Miss | None = None

    def note(
        self, fitted: int, node: Any, why: str, *about: Any, vague: bool = False, cause: Cause = "differs"
    ) -> None:
        """Note a miss at ``node``; ``why`` has a place for each of ``about``, which are only named if somebody asks."""
        if self.wanted and isinstance(node, Node):
            miss = Miss(fitted, node, why.format(*about), vague, cause)
            old = self.nearest
            # Of misses as near as each other the later node is told: the earlier ones are its operands.
            if old is None or (miss.nearness, miss.node) > (old.nearness, old.node):
                self.nearest = miss
