"""Activations taken apart, as the function they are.

The whole function keeps only its operand for the backward pass, where its parts may keep more, rounds once, and has
library epilogues. That is a gain where memory is the limit. On a CPU with AVX2 it is not: GELU's backward computes erf
again (1.3 times as long as by parts), and softplus calls log1p where the parts have a polynomial (1.8 times). There
GELU is only made whole where nothing is differentiated, which costs nothing, and softplus is left alone. SiLU costs the
same either way, and is made whole so that other rules need to know one form only.

The parts of a sigmoid by ``exp`` overflow where their result is 0, and their gradient then is not a number; that of
SiLU by parts has another sign where it is zero. So both are made whole where nothing is differentiated, or where no NaN
is known to come up (``ACTIVATIONS_OF_FINITE``), which the parts of softplus need as well: they overflow from 88 on.
GELU by ``erfc`` is left alone: it is exact far to the left, where ``1 + erf`` is 0.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.base.devices import kind_of
from lamina.base.rule import Match, Rule, rule
from lamina.rewrite.rules.places import CAPTURED

__all__ = ["ACTIVATIONS", "ACTIVATIONS_OF_FINITE"]


def _real(match: Match) -> bool:
    return bool(match["x"].is_floating_point())


def _inference(match: Match) -> bool:
    return _real(match) and not match.training


def _training(match: Match) -> bool:
    return _real(match) and match.training


def _memory_bound(x: Tensor) -> bool:
    return kind_of(x).grids


def _gelu_is_worth_it(match: Match) -> bool:
    return _real(match) and (_memory_bound(match["x"]) or not match.training)


def _softplus_is_worth_it(match: Match) -> bool:
    """The whole function is its operand from 20 on, which is not exact in float64; at 0 its gradient is another."""
    return _inference(match) and match["x"].dtype != torch.float64 and _memory_bound(match["x"])


def _sigmoid_by_exp(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def _sigmoid_by_reciprocal(x: Tensor) -> Tensor:
    return torch.reciprocal(1 + torch.exp(-x))


def _sigmoid(x: Tensor) -> Tensor:
    return torch.sigmoid(x)


def _silu_by_sigmoid(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def _silu_by_exp(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def _silu(x: Tensor) -> Tensor:
    return F.silu(x)


def _gelu_by_erf(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def _gelu_by_halves(x: Tensor) -> Tensor:
    return x * (0.5 + 0.5 * torch.erf(x / math.sqrt(2.0)))


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def _gelu_by_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def _gelu_by_tanh_of_product(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * x * (1.0 + 0.044715 * x * x)))


def _gelu_of_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _softplus_by_log1p(x: Tensor) -> Tensor:
    return torch.log1p(torch.exp(x))


def _softplus_by_log(x: Tensor) -> Tensor:
    return torch.log(1 + torch.exp(x))


def _softplus_by_parts(x: Tensor) -> Tensor:
    return torch.clamp(x, min=0) + torch.log1p(torch.exp(-torch.abs(x)))


def _softplus(x: Tensor) -> Tensor:
    return F.softplus(x)


_SIGMOIDS = (
    ("sigmoid of exp", _sigmoid_by_exp, _sigmoid),
    ("sigmoid of reciprocal", _sigmoid_by_reciprocal, _sigmoid),
    ("silu of sigmoid", _silu_by_sigmoid, _silu),
    ("silu of exp", _silu_by_exp, _silu),
)

_OVERFLOWING: tuple[Rule, ...] = (
    rule(_softplus_by_log1p, _softplus, name="softplus of log1p", where=_softplus_is_worth_it, at=CAPTURED),
    rule(_softplus_by_log, _softplus, name="softplus of log", where=_softplus_is_worth_it, at=CAPTURED),
)

ACTIVATIONS_OF_FINITE: tuple[Rule, ...] = (
    *(rule(parts, whole, name=f"{name}, training", where=_training, at=CAPTURED) for name, parts, whole in _SIGMOIDS),
    *_OVERFLOWING,
)
"""Those of them that may give a number where eager does not."""

ACTIVATIONS: tuple[Rule, ...] = (
    *(rule(parts, whole, name=name, where=_inference, at=CAPTURED) for name, parts, whole in _SIGMOIDS),
    rule(_gelu_by_erf, _gelu, name="gelu of erf", where=_gelu_is_worth_it, at=CAPTURED),
    rule(_gelu_by_halves, _gelu, name="gelu of erf, halves", where=_gelu_is_worth_it, at=CAPTURED),
    rule(_gelu_by_tanh, _gelu_of_tanh, name="gelu of tanh", where=_gelu_is_worth_it, at=CAPTURED),
    rule(_gelu_by_tanh_of_product, _gelu_of_tanh, name="gelu of tanh, factored", where=_gelu_is_worth_it, at=CAPTURED),
    rule(_softplus_by_parts, _softplus, name="softplus of parts", where=_softplus_is_worth_it, at=CAPTURED),
    *ACTIVATIONS_OF_FINITE,
)
"""All of them."""
