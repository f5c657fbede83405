"""Activations taken apart, as the function they are.

The whole function keeps only its operand for the backward pass, where its parts keep several tensors, and rounds once.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.base.rule import Match, Rule, rule
from lamina.rewrite.rules.places import CAPTURED

__all__ = ["ACTIVATIONS"]


def _real(match: Match) -> bool:
    return bool(match["x"].is_floating_point())


def _sigmoid_by_exp(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


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


def _gelu_by_erfc(x: Tensor) -> Tensor:
    return 0.5 * x * torch.erfc(-x / math.sqrt(2.0))


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


def _mish(x: Tensor) -> Tensor:
    return x * torch.tanh(F.softplus(x))


def _whole_mish(x: Tensor) -> Tensor:
    return F.mish(x)


# Constants are written with as few as six digits.
_DIGITS = 1e-5

ACTIVATIONS: tuple[Rule, ...] = (
    rule(_sigmoid_by_exp, _sigmoid, name="sigmoid of exp", where=_real, at=CAPTURED),
    rule(_silu_by_sigmoid, _silu, name="silu of sigmoid", where=_real, at=CAPTURED),
    rule(_silu_by_exp, _silu, name="silu of exp", where=_real, at=CAPTURED),
    rule(_gelu_by_erf, _gelu, name="gelu of erf", where=_real, at=CAPTURED, tolerance=_DIGITS),
    rule(_gelu_by_halves, _gelu, name="gelu of erf, halves", where=_real, at=CAPTURED, tolerance=_DIGITS),
    rule(_gelu_by_erfc, _gelu, name="gelu of erfc", where=_real, at=CAPTURED, tolerance=_DIGITS),
    rule(_gelu_by_tanh, _gelu_of_tanh, name="gelu of tanh", where=_real, at=CAPTURED, tolerance=_DIGITS),
    rule(
        _gelu_by_tanh_of_product,
        _gelu_of_tanh,
        name="gelu of tanh, factored",
        where=_real,
        at=CAPTURED,
        tolerance=_DIGITS,
    ),
    rule(_softplus_by_log1p, _softplus, name="softplus of log1p", where=_real, at=CAPTURED),
    rule(_softplus_by_log, _softplus, name="softplus of log", where=_real, at=CAPTURED),
    rule(_softplus_by_parts, _softplus, name="softplus of parts", where=_real, at=CAPTURED),
    rule(_mish, _whole_mish, name="mish of softplus", where=_real, at=CAPTURED),
)
