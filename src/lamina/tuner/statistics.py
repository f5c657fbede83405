"""Ratios of times with bootstrap intervals."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from lamina.tuner.values import Interval

__all__ = ["interval", "paired", "quantile", "undisturbed"]

_DRAWS = 1000
"""Resamples of a bootstrap; its quantiles are then good to a fraction of the interval."""
_OUTSIDE = 0.005
"""Share of resamples on both sides outside of the interval: it is looked at several times while samples come in."""
_UNDISTURBED = 0.1
"""Share of the rounds that other processes hardly disturb, however busy the machine is."""


def interval(slow: Sequence[float], fast: Sequence[float]) -> Interval:
    """How many times as long ``slow`` takes as ``fast``, with a 99.5 % bootstrap interval; pairs are of one round each.

    Of two estimates the one that is known better, by the width of its interval. The median of ``slow[i] / fast[i]`` is
    right where what slows down a machine lasts for several rounds and slows both alike. The ratio of the times that a
    tenth of the rounds stay below is right where other processes take the processor away now and then: some calls are
    left alone, and of the others the times say nothing of the code.

    Blocks of neighbouring rounds are drawn rather than single ones: the load of a machine lasts for several.
    """
    above = torch.tensor(slow, dtype=torch.float64)
    below = torch.tensor(fast, dtype=torch.float64).clamp(min=1e-12)
    count = len(above)
    block = max(1, round(count ** (1 / 3)))
    generator = torch.Generator().manual_seed(count)
    starts = torch.randint(0, count - block + 1, (_DRAWS, -(-count // block)), generator=generator)
    places = (starts.unsqueeze(-1) + torch.arange(block)).flatten(1)[:, :count]
    ratios = above / below
    low = [times.quantile(_UNDISTURBED) for times in (above, below)]
    drawn = [times[places].quantile(_UNDISTURBED, dim=1) for times in (above, below)]
    found = (
        _within(ratios.quantile(0.5), ratios[places].quantile(0.5, dim=1)),
        _within(low[0] / low[1], drawn[0] / drawn[1]),
    )
    return min(found, key=lambda known: known.high / max(known.low, 1e-12))


def _within(middle: Tensor, drawn: Tensor) -> Interval:
    ends = drawn.quantile(torch.tensor([_OUTSIDE / 2, 1 - _OUTSIDE / 2], dtype=torch.float64))
    return Interval(float(middle), float(ends[0]), float(ends[1]))


def paired(slow: Sequence[float], fast: Sequence[float]) -> float:
    """The median of the ratios of the rounds."""
    return statistics.median(a / max(b, 1e-12) for a, b in zip(slow, fast, strict=True))


def quantile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of ``values`` are at most as large as."""
    if len(values) == 1:
        return values[0]
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return cuts[min(98, max(0, round(share * 100) - 1))]


def undisturbed(timings: Sequence[float], median: float) -> float:
    """The time of a call that other processes leave alone; ``median`` where there are no timings."""
    return quantile(timings, _UNDISTURBED) if timings else median
