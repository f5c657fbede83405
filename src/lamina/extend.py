"""What a program needs to extend Lamina: rules, passes, backends, lowerings and kernels of its own."""

from __future__ import annotations

from lamina.backends.api import Backend
from lamina.backends.compose import compose
from lamina.backends.registry import register_backend
from lamina.base.lowering import lowering
from lamina.base.passes import Passes
from lamina.base.rule import Match, Rule, dimension, nest_rule, rule, scalar, tensor

__all__ = [
    "Backend",
    "Match",
    "Passes",
    "Rule",
    "compose",
    "dimension",
    "lowering",
    "nest_rule",
    "register_backend",
    "rule",
    "scalar",
    "tensor",
]
