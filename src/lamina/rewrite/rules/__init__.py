"""Lamina's own rules, by subject. ``Rewriting`` runs what is listed here, except with ``numerics="eager"``."""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import GraphModule

from lamina.base.decision import Decision
from lamina.base.rule import Rule

__all__ = ["CAPTURED", "RULES"]

CAPTURED: tuple[Callable[[GraphModule, list[Decision]], GraphModule], ...] = ()
"""Rewrites of the graph of the user's calls that are more than a rule can say, run before the rules, in order. Each
notes in the list what it did or not, as ``Decision("rewrite", (its name, ...), ...)``."""

RULES: tuple[Rule, ...] = ()
"""Rules, tried after the user's."""
