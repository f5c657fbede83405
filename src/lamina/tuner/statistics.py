"""Medians of paired ratios with bootstrap intervals."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch

from lamina.tuner.values import Interval

__all__ = ["interval", "quantile"]

_DRAWS = 1000
"""Resamples of a bootstrap; its quantiles are then good to a fraction of the interval."""
_OUTSIDE = 0.005
"""Share of resamples on both sides outside of the interval: it is looked at several times while samples come in."""


def interval(slow: Sequence[float], fast: Sequence[float]) -> Interval:
    """The median of ``slow[i] / fast[i]`` with its 99.5 % bootstrap interval; pairs are of one round each.

    Blocks of neighbouring rounds are drawn rather than single ones: the load of a machine lasts for several.
    """
    ratios = torch.tensor([a / max(b, 1e-12) for a, b in zip(slow, fast, strict=True)], dtype=torch.float64)
    count = len(ratios)
    block = max(1, round(count ** (1 / 3)))
    generator = torch.Generator().manual_seed(count)
    starts = torch.randint(0, count - block + 1, (_DRAWS, -(-count // block)), generator=generator)
    places = (starts.unsqueeze(-1) + torch.arange(block)).flatten(1)[:, :count]
    medians = ratios[places].quantile(0.5, dim=1)
    ends = medians.quantile(torch.tensor([_OUTSIDE / 2, 1 - _OUTSIDE / 2], dtype=torch.float64))
    return Interval(float(ratios.quantile(0.5)), float(ends[0]), float(ends[1]))


def quantile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of ``values`` are at most as large as."""
    if len(values) == 1:
        return values[0]
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[min(98, max(0, round(share * 100) - 1))]
