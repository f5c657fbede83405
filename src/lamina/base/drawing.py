"""Which functions of torch's may draw random numbers, by their names."""

from __future__ import annotations

import functools
import re

import torch

from lamina.base.overloads import overloads_named

__all__ = ["may_draw"]

_DRAWS = re.compile(
    "drop|rand|normal(?!i)|noulli|nomial|uniform|exponential|poisson|cauchy|geometric|rrelu|gumbel|(?<![a-z])gamma$"
    "|dirichlet|fractional|lowrank|lobpcg|multi_head"
)
"""Names of functions that draw; what ATen tags is found without."""


@functools.lru_cache(maxsize=4096)
def may_draw(name: str) -> bool:
    """Whether the function or method of torch's called ``name`` may draw."""
    tagged = (torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads_named(name))
    return bool(_DRAWS.search(name)) or any(tagged)
