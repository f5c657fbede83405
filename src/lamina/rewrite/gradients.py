"""Whether the right side of a rule hands gradients on to the operands that its left side hands them on to.

What is traced does not tell: a call of ``detach`` computes what its operand is, and an operation without a derivative
is one like any other until something is differentiated. So both sides are run and differentiated once on fakes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from lamina.base.rule import Match
from lamina.rewrite.torch_private import fake_mode_of, flatten

__all__ = ["lost_gradient"]


def lost_gradient(match: Match, taken: list[str]) -> str:
    """What is wrong with the gradients of the right side, which takes the parameters ``taken``; "" if nothing is."""
    try:
        wanted = _reached(match.rule.before, match, list(match.values))
    except Exception:  # the left side has none here, or only for other operands
        return ""
    try:
        found = _reached(match.rule.after, match, taken)
    except Exception as error:
        return f"its right side has no derivative: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    for place, (before, after) in enumerate(zip(wanted, found, strict=False)):
        lost = sorted(before - after)
        if lost:
            which = "" if len(wanted) == 1 else f" from result {place}"
            return f"its right side gives {' and '.join(lost)} no gradient{which}, where its left side does"
    return ""


def _reached(side: Callable[..., Any], match: Match, names: list[str]) -> list[frozenset[str]]:
    """For each result of a side the parameters that get a gradient from it."""
    fakes = [v for v in match.values.values() if isinstance(v, Tensor)]
    with torch.enable_grad(), fake_mode_of(fakes):
        leaves: dict[str, Tensor] = {}
        values: dict[str, Any] = {}
        for name in names:
            value = match.values[name]
            if isinstance(value, Tensor):
                differentiable = value.is_floating_point() or value.is_complex()
                value = torch.empty_like(value).requires_grad_(differentiable)
                leaves |= {name: value} if differentiable else {}
            values[name] = value
        results, _ = flatten(side(**values))
        return [_from(result, leaves) for result in results if isinstance(result, Tensor)]


def _from(result: Tensor, leaves: Mapping[str, Tensor]) -> frozenset[str]:
    if not result.requires_grad or not leaves:
        return frozenset()
    tangent = torch.ones_like(result)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of operations without a derivative, as is said here
        found = torch.autograd.grad(result, list(leaves.values()), tangent, retain_graph=True, allow_unused=True)
    return frozenset(name for name, gradient in zip(leaves, found, strict=True) if gradient is not None)
