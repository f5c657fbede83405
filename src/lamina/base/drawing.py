"""Which functions of torch's may draw random numbers, by their names, and which calls of them do not."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lamina.base.overloads import overloads_named

__all__ = ["call_may_draw", "may_draw"]

_DRAWS = re.compile(
    "drop|rand|normal(?!i)|noulli|nomial|uniform|exponential|poisson|cauchy|geometric|rrelu|gumbel|(?<![a-z])gamma$"
    "|dirichlet|fractional|lowrank|lobpcg|multi_head"
)
"""Names of functions that draw; what ATen tags is found without."""
_DROPOUT = re.compile(r"(native_|alpha_|feature_|feature_alpha_)?dropout([123]d)?_?")
"""Dropouts, whose third argument says whether they do anything."""


@functools.lru_cache(maxsize=4096)
def may_draw(name: str) -> bool:
    """Whether the function or method of torch's called ``name`` may draw."""
    tagged = (torch.Tag.nondeterministic_seeded in overload.tags for overload in overloads_named(name))
    return bool(_DRAWS.search(name)) or any(tagged)


def call_may_draw(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """The same of a call with these arguments: a dropout that is told not to train draws nothing."""
    if _DROPOUT.fullmatch(name):
        trains = args[2] if len(args) > 2 else kwargs.get("training", kwargs.get("train"))
        return trains is not False
    return may_draw(name)
