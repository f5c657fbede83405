"""Errors of one tensor over several draws of the same program."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lamina.base.accuracy import RATIO, Error, distance, largest

__all__ = ["Sample"]


@dataclass(slots=True)
class Sample:
    """Absolute errors of a tensor in each draw: eager's, the compiled program's, and those of rounding alone."""

    eagers: list[Error] = field(default_factory=list)
    compileds: list[Error] = field(default_factory=list)
    roundings: list[Error] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)

    def add(self, eager: Tensor, compiled: Tensor, exact: Tensor) -> None:
        """Count one draw."""
        self.eagers.append(distance(eager, exact))
        self.compileds.append(distance(compiled, exact))
        self.roundings.append(distance(exact.to(eager.dtype), exact))
        self.scales.append(largest(exact))

    @property
    def eager(self) -> Error:
        """Eager's mean errors, relative to the mean largest element."""
        return self._relative(self.eagers)

    @property
    def compiled(self) -> Error:
        """The compiled program's mean errors, relative to the mean largest element."""
        return self._relative(self.compileds)

    @property
    def excess(self) -> float:
        """Our mean error over eager's, or over that of rounding where it is larger; the worse of the two measures."""
        ours, theirs, least = _mean(self.compileds), _mean(self.eagers), _mean(self.roundings)
        return max(
            _ratio(ours.largest, max(theirs.largest, least.largest)), _ratio(ours.rms, max(theirs.rms, least.rms))
        )

    @property
    def complaint(self) -> str:
        """What is above twice eager's, "" if nothing is."""
        if self.excess <= RATIO:
            return ""
        ours, theirs = self.compiled, self.eager
        return (
            f"error {self.excess:.3g} times eager's over {len(self.scales)} draws: rms {ours.rms:.3g} of the largest "
            f"element, eager's {theirs.rms:.3g}; worst element {ours.largest:.3g}, eager's {theirs.largest:.3g}"
        )

    def _relative(self, errors: list[Error]) -> Error:
        mean = _mean(errors)
        if mean.largest == 0.0:
            return mean
        scale = max(sum(self.scales) / len(self.scales), torch.finfo(torch.float64).tiny)
        return Error(mean.largest / scale, mean.rms / scale)


def _mean(errors: list[Error]) -> Error:
    count = len(errors)
    return Error(sum(e.largest for e in errors) / count, sum(e.rms for e in errors) / count)


def _ratio(ours: float, allowed: float) -> float:
    if ours == 0.0:
        return 0.0
    return ours / allowed if allowed else math.inf
