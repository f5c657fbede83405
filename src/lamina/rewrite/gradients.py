"""Whether the right side of a rule hands gradients on to the operands that its left side hands them on to.

What is traced does not tell: a call of ``detach`` computes what its operand is, and an operation without a derivative
is one like any other until something is differentiated. So both sides are run and differentiated once on fakes. A right
side that detaches one of two terms still gives its operands some gradient: where it computes from a differentiable
value something that is not, and the left side does not, both are differentiated once with random numbers too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lamina.base.fx.torch_private import flatten
from lamina.base.rule import Match
from lamina.base.symbolic.torch_private import hint
from lamina.rewrite.torch_private import fake_mode_of, outside_fake_mode

__all__ = ["lost_gradient"]

TOLERANCE = 2e-2
"""Of a gradient's largest element: a right side may round to bfloat16 on the way; a term that is lost is more."""

LARGEST = 1 << 24
"""Elements of all operands together, above which no numbers are tried."""


def lost_gradient(match: Match, taken: list[str]) -> str:
    """What is wrong with the gradients of the right side, which takes the parameters ``taken``; "" if nothing is."""
    try:
        left = _Cuts()
        wanted = _reached(match.rule.before, match, list(match.values), left)
    except Exception:  # the left side has none here, or only for other operands
        return ""
    try:
        right = _Cuts()
        found = _reached(match.rule.after, match, taken, right)
    except Exception as error:
        return f"its right side has no derivative: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    for place, (before, after) in enumerate(zip(wanted, found, strict=False)):
        lost = sorted(before - after)
        if lost:
            which = "" if len(wanted) == 1 else f" from result {place}"
            return f"its right side gives {' and '.join(lost)} no gradient{which}, where its left side does"
    return _unlike(match, taken, right.cuts[0]) if right.cuts and not left.cuts else ""


class _Cuts(TorchFunctionMode):
    """Notes calls that take something differentiable and give a floating-point tensor that is not: ``detach``, say."""

    def __init__(self) -> None:
        super().__init__()
        self.cuts: list[str] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call ``function`` as without the mode."""
        result = function(*args, **(kwargs or {}))
        given, _ = flatten((args, dict(kwargs or {})))
        if any(isinstance(value, Tensor) and value.requires_grad for value in given):
            made, _ = flatten(result)
            real = [one for one in made if isinstance(one, Tensor) and (one.is_floating_point() or one.is_complex())]
            if any(not one.requires_grad for one in real):
                self.cuts.append(str(getattr(function, "__name__", function)))
        return result


def _unlike(match: Match, taken: list[str], cut: str) -> str:
    """What is wrong with the numbers of the right side's gradients, in which ``cut`` stops some; "" if nothing is."""
    operands = {name: value for name, value in match.values.items() if isinstance(value, Tensor)}
    shapes = {name: [hint(size, 3) for size in value.shape] for name, value in operands.items()}
    if sum(torch.Size(shape).numel() for shape in shapes.values()) > LARGEST:
        return f"its right side stops gradients ({cut}), and its operands are too large to compare them"
    try:
        with outside_fake_mode(), torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            numbers = {n: _numbers(value, shapes[n]) for n, value in operands.items()}
            wanted = _differentiated(match.rule.before, {**match.values, **numbers})
            found = _differentiated(match.rule.after, {n: numbers.get(n, match.values[n]) for n in taken})
    except Exception as error:
        return f"its right side stops gradients ({cut}), and comparing them failed: {type(error).__name__}: {error}"
    for name in taken:
        for before, after in zip(wanted.get(name, ()), found.get(name, ()), strict=False):
            if not torch.allclose(before, after, rtol=0, atol=TOLERANCE * float(before.abs().amax()), equal_nan=True):
                return f"its right side stops gradients ({cut}): {name} gets another gradient than from its left side"
    return ""


def _numbers(value: Tensor, shape: Sequence[int]) -> Tensor:
    """Random numbers for an operand, in float64 where it is real; zeros and ones where it holds integers."""
    if value.is_complex():
        return torch.randn(shape, dtype=torch.complex128, device=value.device).requires_grad_()
    if value.is_floating_point():
        return torch.randn(shape, dtype=torch.float64, device=value.device).requires_grad_()
    return torch.randint(0, 2, shape, device=value.device).to(value.dtype)


def _differentiated(side: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, list[Tensor]]:
    """For each differentiable operand its gradients from each result that has any, with tangents that are not alike."""
    leaves = {name: v for name, v in values.items() if isinstance(v, Tensor) and v.requires_grad}
    with torch.enable_grad():
        results, _ = flatten(side(**values))
    gradients: dict[str, list[Tensor]] = {name: [] for name in leaves}
    for result in results:
        if not isinstance(result, Tensor) or not result.requires_grad:
            continue
        tangent = torch.linspace(0.5, 1.5, result.numel(), device=result.device).reshape(result.shape).to(result.dtype)
        found = torch.autograd.grad(result, list(leaves.values()), tangent, retain_graph=True, allow_unused=True)
        for (name, leaf), gradient in zip(leaves.items(), found, strict=True):
            gradients[name].append(torch.zeros_like(leaf) if gradient is None else gradient.to(leaf.dtype))
    return gradients


def _reached(side: Callable[..., Any], match: Match, names: list[str], cuts: _Cuts) -> list[frozenset[str]]:
    """For each result of a side the parameters that get a gradient from it; ``cuts`` notes what stops gradients."""
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
        with cuts:
            given = side(**values)
        results, _ = flatten(given)
        return [_from(result, leaves) for result in results if isinstance(result, Tensor)]


def _from(result: Tensor, leaves: Mapping[str, Tensor]) -> frozenset[str]:
    if not result.requires_grad or not leaves:
        return frozenset()
    tangent = torch.ones_like(result)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of operations without a derivative, as is said here
        found = torch.autograd.grad(result, list(leaves.values()), tangent, retain_graph=True, allow_unused=True)
    return frozenset(name for name, gradient in zip(leaves, found, strict=True) if gradient is not None)
