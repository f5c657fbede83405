"""Cross entropy written with ``gather``, ``one_hot`` or ``logsumexp``.

As the function it is, its forward writes no matrix of log-probabilities and keeps two numbers a row (see
``lamina.rewrite.losses``). By ``one_hot`` a hidden class of minus infinity makes a row that is not a number, by
``logsumexp`` an infinite score an infinite loss: those are cross entropy only of scores known to be finite.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.base.ignore_index import IGNORE_NONE
from lamina.base.rule import Match, Rule, rule, tensor
from lamina.rewrite.rules.places import CAPTURED

__all__ = ["LOSSES_BY_GATHER", "LOSSES_BY_ONE_HOT", "LOSSES_OF_FINITE"]


def _real(match: Match) -> bool:
    return bool(match["x"].is_floating_point())


_ROWS, _ROW_TARGETS = tensor("*rows", "c"), tensor("*rows", dtype=torch.int64)
"""Classes last, in rows of any number of dimensions."""


def _picked(x: Tensor = _ROWS, t: Tensor = _ROW_TARGETS) -> Tensor:
    return torch.log_softmax(x, -1).gather(-1, t.unsqueeze(-1)).squeeze(-1)


def _picked_by_one_hot(x: Tensor = _ROWS, t: Tensor = _ROW_TARGETS) -> Tensor:
    return (F.one_hot(t, x.shape[-1]) * torch.log_softmax(x, -1)).sum(-1)


def _difference(x: Tensor = _ROWS, t: Tensor = _ROW_TARGETS) -> Tensor:
    return x.gather(-1, t.unsqueeze(-1)).squeeze(-1) - torch.logsumexp(x, -1)


def _positive_difference(x: Tensor = _ROWS, t: Tensor = _ROW_TARGETS) -> Tensor:
    return torch.logsumexp(x, -1) - x.gather(-1, t.unsqueeze(-1)).squeeze(-1)


def _cross_entropy(x: Tensor, t: Tensor) -> Tensor:
    rows = F.cross_entropy(x.reshape(-1, x.shape[-1]), t.reshape(-1), reduction="none", ignore_index=IGNORE_NONE)
    return rows.reshape(t.shape)


def _negative_cross_entropy(x: Tensor, t: Tensor) -> Tensor:
    return -_cross_entropy(x, t)


def _cross_entropy_of_columns(x: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(x, t, reduction="none", ignore_index=IGNORE_NONE)


def _negative_cross_entropy_of_columns(x: Tensor, t: Tensor) -> Tensor:
    return -_cross_entropy_of_columns(x, t)


_SCORES, _TARGETS = tensor("n", "c", "d"), tensor("n", "d", dtype=torch.int64)
"""Classes in the middle, as ``F.cross_entropy`` takes scores of several dimensions."""


def _columns_by_gather(x: Tensor = _SCORES, t: Tensor = _TARGETS) -> Tensor:
    return torch.log_softmax(x, -2).gather(-2, t.unsqueeze(-2)).squeeze(-2)


def _columns_by_logsumexp(x: Tensor = _SCORES, t: Tensor = _TARGETS) -> Tensor:
    return torch.logsumexp(x, -2) - x.gather(-2, t.unsqueeze(-2)).squeeze(-2)


LOSSES_BY_ONE_HOT: tuple[Rule, ...] = (
    rule(_picked_by_one_hot, _negative_cross_entropy, name="cross entropy of one-hot", where=_real, at=CAPTURED),
)

_OF_LOGSUMEXP: tuple[Rule, ...] = (
    rule(_difference, _negative_cross_entropy, name="cross entropy of logsumexp, negative", where=_real, at=CAPTURED),
    rule(_positive_difference, _cross_entropy, name="cross entropy of logsumexp", where=_real, at=CAPTURED),
    rule(
        _columns_by_logsumexp,
        _cross_entropy_of_columns,
        name="cross entropy of logsumexp, over columns",
        where=_real,
        at=CAPTURED,
    ),
)

LOSSES_BY_GATHER: tuple[Rule, ...] = (
    rule(_picked, _negative_cross_entropy, name="cross entropy of gather", where=_real, at=CAPTURED),
    rule(
        _columns_by_gather,
        _negative_cross_entropy_of_columns,
        name="cross entropy of gather, over columns",
        where=_real,
        at=CAPTURED,
    ),
    *_OF_LOGSUMEXP,
)

LOSSES_OF_FINITE: tuple[Rule, ...] = (*LOSSES_BY_ONE_HOT, *_OF_LOGSUMEXP)
"""Those of them that are exact only where all scores are finite."""
