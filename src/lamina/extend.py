"""What a program needs to extend Lamina: rules, passes, backends, lowerings and kernels of its own."""

from __future__ import annotations

from lamina.base.passes import Passes
from lamina.base.rule import Match, Rule, nest_rule, rule, scalar, tensor

__all__ = ["Match", "Passes", "Rule", "nest_rule", "rule", "scalar", "tensor"]
