"""Layer norm and RMS norm taken apart.

Whole they keep two numbers a row for the backward pass, and their backward is one kernel with row results and column
sums. Half precision is left alone: taken apart each part rounds, and eager's whole norm sums gradients in half
precision. People widen first, and then it is float32 that is found here. A variance from two moments may come out
negative, and its root then is not a number: that form is a layer norm only where no NaN is known to come up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.base.devices import kind_of
from lamina.base.rule import Match, Rule, rule, scalar, tensor
from lamina.rewrite.rules.places import CAPTURED

__all__ = ["NORMS", "NORMS_OF_FINITE"]

_WIDE = (torch.float32, torch.float64)
_X = tensor(..., "d", dtype=_WIDE)
_W = tensor("d", dtype=_WIDE)
_EPS = scalar()


def _one_dtype(match: Match) -> bool:
    """The whole norm takes its operands in one dtype. (A row of one element has no variance.)"""
    found = {match[name].dtype for name in ("x", "w", "b") if name in match.values}
    columns = match["x"].shape[-1]
    return len(found) == 1 and (type(columns) is not int or columns > 1)


def _standardised() -> Iterator[tuple[str, Callable[[Tensor, Any], Tensor]]]:
    def by_var(x: Tensor, eps: Any) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + eps)

    def by_square(x: Tensor, eps: Any) -> Tensor:
        near = x - x.mean(-1, keepdim=True)
        return near / torch.sqrt(near.pow(2).mean(-1, keepdim=True) + eps)

    def by_separate_square(x: Tensor, eps: Any) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt((x - mean).pow(2).mean(-1, keepdim=True) + eps)

    def by_moments(x: Tensor, eps: Any) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(x.pow(2).mean(-1, keepdim=True) - mean.pow(2) + eps)

    yield from (("var", by_var), ("square", by_square), ("squares twice", by_separate_square), ("moments", by_moments))


def _layer_norms(how: str, norm: Callable[[Tensor, Any], Tensor]) -> Iterator[Rule]:
    def bare(x: Tensor = _X, eps: Any = _EPS) -> Tensor:
        return norm(x, eps)

    def scaled(x: Tensor = _X, w: Tensor = _W, eps: Any = _EPS) -> Tensor:
        return norm(x, eps) * w

    def affine(x: Tensor = _X, w: Tensor = _W, b: Tensor = _W, eps: Any = _EPS) -> Tensor:
        return norm(x, eps) * w + b

    yield rule(affine, _affine, name=f"layer norm by {how}, affine", where=_one_dtype, at=CAPTURED)
    yield rule(scaled, _scaled, name=f"layer norm by {how}, scaled", where=_one_dtype, at=CAPTURED)
    yield rule(bare, _bare, name=f"layer norm by {how}", where=_one_dtype, at=CAPTURED)


def _affine(x: Tensor, w: Tensor, b: Tensor, eps: Any) -> Tensor:
    return F.layer_norm(x, w.shape, w, b, eps)


def _scaled(x: Tensor, w: Tensor, eps: Any) -> Tensor:
    return F.layer_norm(x, w.shape, w, _nothing(x), eps)


def _bare(x: Tensor, eps: Any) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], None, _nothing(x), eps)


def _nothing(x: Tensor) -> Tensor | None:
    """The bias of a norm that adds none. Without one eager's kernel for CPUs adds 0.0, after which no zero is -0.0;
    -0.0 changes no number that it is added to, and C++ compilers leave it out.
    """
    return x.new_full(x.shape[-1:], -0.0) if kind_of(x).host else None


def _rms_scaled(x: Tensor = _X, w: Tensor = _W, eps: Any = _EPS) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def _rms_bare(x: Tensor = _X, eps: Any = _EPS) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def _rms_norm_scaled(x: Tensor, w: Tensor, eps: Any) -> Tensor:
    return F.rms_norm(x, w.shape, w, eps)


def _rms_norm_bare(x: Tensor, eps: Any) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], None, eps)


NORMS: tuple[Rule, ...] = (
    *(one for how, norm in _standardised() for one in _layer_norms(how, norm)),
    rule(_rms_scaled, _rms_norm_scaled, name="rms norm, scaled", where=_one_dtype, at=CAPTURED),
    rule(_rms_bare, _rms_norm_bare, name="rms norm", where=_one_dtype, at=CAPTURED),
)

NORMS_OF_FINITE: tuple[Rule, ...] = tuple(one for one in NORMS if "by moments" in one.name)
"""Those of them that may give a number where eager does not."""
