"""Softmax, log-softmax and logsumexp taken apart, over any one dimension.

Whole they are one pass over a row, and keep their result for the backward pass instead of four tensors. Some ways to
take them apart overflow, or underflow to the logarithm of zero, where the whole does not, and some make another row of
an infinite element: those are taken for the whole only of elements known to be finite, parts included
(``SOFTMAX_OF_FINITE``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from lamina.base.rule import Match, Rule, dimension, rule
from lamina.rewrite.rules.places import CAPTURED

__all__ = ["SOFTMAX", "SOFTMAX_OF_FINITE"]

_ANY: int = dimension()


def _real(match: Match) -> bool:
    return bool(match["x"].is_floating_point())


def _wide(match: Match) -> bool:
    """In half precision the whole function's gradient is that of a rounded total."""
    return match["x"].dtype in (torch.float32, torch.float64)


def _shifted(x: Tensor, dim: int) -> Tensor:
    return x - x.amax(dim, keepdim=True)


def _softmax(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x, dim)


def _softmax_plain(x: Tensor, dim: int = _ANY) -> Tensor:
    powers = torch.exp(x)
    return powers / powers.sum(dim, keepdim=True)


def _softmax_shifted(x: Tensor, dim: int = _ANY) -> Tensor:
    powers = torch.exp(_shifted(x, dim))
    return powers / powers.sum(dim, keepdim=True)


def _softmax_of_log(x: Tensor, dim: int = _ANY) -> Tensor:
    return torch.exp(torch.log_softmax(x, dim))


def _softmax_of_total(x: Tensor, dim: int = _ANY) -> Tensor:
    return torch.exp(x - torch.logsumexp(x, dim, keepdim=True))


def _log_softmax(x: Tensor, dim: int) -> Tensor:
    return torch.log_softmax(x, dim)


def _log_of_softmax(x: Tensor, dim: int = _ANY) -> Tensor:
    return torch.log(torch.softmax(x, dim))


def _log_softmax_of_total(x: Tensor, dim: int = _ANY) -> Tensor:
    return x - torch.logsumexp(x, dim, keepdim=True)


def _log_softmax_plain(x: Tensor, dim: int = _ANY) -> Tensor:
    return x - torch.log(torch.exp(x).sum(dim, keepdim=True))


def _log_softmax_shifted(x: Tensor, dim: int = _ANY) -> Tensor:
    near = _shifted(x, dim)
    return near - torch.log(torch.exp(near).sum(dim, keepdim=True))


def _logsumexp_kept(x: Tensor, dim: int) -> Tensor:
    return torch.logsumexp(x, dim, keepdim=True)


def _logsumexp_plain_kept(x: Tensor, dim: int = _ANY) -> Tensor:
    return torch.log(torch.exp(x).sum(dim, keepdim=True))


def _logsumexp_shifted_kept(x: Tensor, dim: int = _ANY) -> Tensor:
    top = x.amax(dim, keepdim=True)
    return torch.log(torch.exp(x - top).sum(dim, keepdim=True)) + top


def _logsumexp(x: Tensor, dim: int) -> Tensor:
    return torch.logsumexp(x, dim)


def _logsumexp_plain(x: Tensor, dim: int = _ANY) -> Tensor:
    return torch.log(torch.exp(x).sum(dim))


def _logsumexp_shifted(x: Tensor, dim: int = _ANY) -> Tensor:
    top = x.amax(dim, keepdim=True)
    return torch.log(torch.exp(x - top).sum(dim)) + top.squeeze(dim)


_EXACT = (
    rule(_softmax_shifted, _softmax, name="softmax, shifted", where=_real, at=CAPTURED),
    rule(_softmax_of_log, _softmax, name="softmax of log-softmax", where=_real, at=CAPTURED),
    rule(_log_softmax_shifted, _log_softmax, name="log-softmax, shifted", where=_real, at=CAPTURED),
)
"""Those that give eager's infinities and NaN for any elements."""

SOFTMAX_OF_FINITE: tuple[Rule, ...] = (
    rule(_softmax_plain, _softmax, name="softmax, plain", where=_real, at=CAPTURED),
    rule(_softmax_of_total, _softmax, name="softmax of logsumexp", where=_real, at=CAPTURED),
    rule(_log_of_softmax, _log_softmax, name="log-softmax of softmax", where=_real, at=CAPTURED),
    rule(_log_softmax_of_total, _log_softmax, name="log-softmax of logsumexp", where=_real, at=CAPTURED),
    rule(_log_softmax_plain, _log_softmax, name="log-softmax, plain", where=_real, at=CAPTURED),
    rule(_logsumexp_plain_kept, _logsumexp_kept, name="logsumexp, plain, kept", where=_wide, at=CAPTURED),
    rule(_logsumexp_shifted_kept, _logsumexp_kept, name="logsumexp, shifted, kept", where=_wide, at=CAPTURED),
    rule(_logsumexp_plain, _logsumexp, name="logsumexp, plain", where=_wide, at=CAPTURED),
    rule(_logsumexp_shifted, _logsumexp, name="logsumexp, shifted", where=_wide, at=CAPTURED),
)
"""The others."""

SOFTMAX: tuple[Rule, ...] = (*_EXACT, *SOFTMAX_OF_FINITE)
"""All of them."""
