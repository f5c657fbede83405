"""Softmax, log-softmax and logsumexp taken apart, over any one of the last three dimensions.

Whole they are one pass over a row, and keep their result for the backward pass instead of four tensors. Some ways to
take them apart overflow, or underflow to the logarithm of zero, where the whole does not, and some make another row of
an infinite element: those are taken for the whole only of elements known to be finite, parts included
(``SOFTMAX_OF_FINITE``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from lamina.base.rule import Match, Rule, rule
from lamina.rewrite.rules.places import CAPTURED

__all__ = ["OVER", "SOFTMAX", "SOFTMAX_OF_FINITE"]

_DIMS = (-1, -2, -3)


def _real(match: Match) -> bool:
    return bool(match["x"].is_floating_point())


def _wide(match: Match) -> bool:
    """In half precision the whole function's gradient is that of a rounded total."""
    return match["x"].dtype in (torch.float32, torch.float64)


def _shifted(x: Tensor, dim: int) -> Tensor:
    return x - x.amax(dim, keepdim=True)


def _softmax_forms(dim: int) -> Iterator[tuple[str, Callable[..., Any]]]:
    def plain(x: Tensor) -> Tensor:
        powers = torch.exp(x)
        return powers / powers.sum(dim, keepdim=True)

    def shifted(x: Tensor) -> Tensor:
        powers = torch.exp(_shifted(x, dim))
        return powers / powers.sum(dim, keepdim=True)

    def of_log(x: Tensor) -> Tensor:
        return torch.exp(torch.log_softmax(x, dim))

    def of_total(x: Tensor) -> Tensor:
        return torch.exp(x - torch.logsumexp(x, dim, keepdim=True))

    yield from (
        ("plain", plain),
        ("shifted", shifted),
        ("of log-softmax", of_log),
        ("of logsumexp", of_total),
    )


def _log_softmax_forms(dim: int) -> Iterator[tuple[str, Callable[..., Any]]]:
    def of_softmax(x: Tensor) -> Tensor:
        return torch.log(torch.softmax(x, dim))

    def of_total(x: Tensor) -> Tensor:
        return x - torch.logsumexp(x, dim, keepdim=True)

    def plain(x: Tensor) -> Tensor:
        return x - torch.log(torch.exp(x).sum(dim, keepdim=True))

    def shifted(x: Tensor) -> Tensor:
        near = _shifted(x, dim)
        return near - torch.log(torch.exp(near).sum(dim, keepdim=True))

    yield from (
        ("of softmax", of_softmax),
        ("of logsumexp", of_total),
        ("plain", plain),
        ("shifted", shifted),
    )


def _logsumexp_forms(dim: int, keepdim: bool) -> Iterator[tuple[str, Callable[..., Any]]]:
    def plain(x: Tensor) -> Tensor:
        return torch.log(torch.exp(x).sum(dim, keepdim=keepdim))

    def shifted(x: Tensor) -> Tensor:
        top = x.amax(dim, keepdim=True)
        total = torch.log(torch.exp(x - top).sum(dim, keepdim=keepdim))
        return total + (top if keepdim else top.squeeze(dim))

    yield from (("plain", plain), ("shifted", shifted))


def _rules(dim: int) -> Iterator[Rule]:
    def softmax(x: Tensor) -> Tensor:
        return torch.softmax(x, dim)

    def log_softmax(x: Tensor) -> Tensor:
        return torch.log_softmax(x, dim)

    for how, form in _softmax_forms(dim):
        yield rule(form, softmax, name=f"softmax over {dim}, {how}", where=_real, at=CAPTURED)
    for how, form in _log_softmax_forms(dim):
        yield rule(form, log_softmax, name=f"log-softmax over {dim}, {how}", where=_real, at=CAPTURED)
    for keepdim in (True, False):
        after = _logsumexp(dim, keepdim)
        kept = ", kept" if keepdim else ""
        for how, form in _logsumexp_forms(dim, keepdim):
            yield rule(form, after, name=f"logsumexp over {dim}, {how}{kept}", where=_wide, at=CAPTURED)


def _logsumexp(dim: int, keepdim: bool) -> Callable[[Tensor], Tensor]:
    def logsumexp(x: Tensor) -> Tensor:
        return torch.logsumexp(x, dim, keepdim=keepdim)

    return logsumexp


OVER: Mapping[int, tuple[Rule, ...]] = MappingProxyType({dim: tuple(_rules(dim)) for dim in _DIMS})
"""The rules by the dimension they are over, counted from the last."""

SOFTMAX: tuple[Rule, ...] = tuple(one for rules in OVER.values() for one in rules)

_EXACT = frozenset(
    name
    for dim in _DIMS
    for name in (
        f"softmax over {dim}, shifted",
        f"softmax over {dim}, of log-softmax",
        f"log-softmax over {dim}, shifted",
    )
)
"""Those that give eager's infinities and NaN for any elements."""

SOFTMAX_OF_FINITE: tuple[Rule, ...] = tuple(one for one in SOFTMAX if one.name not in _EXACT)
"""The others."""
