"""Models of the tests, which processes import by name."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Small(nn.Module):
    """Two layers and a softmax."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x))).softmax(-1)


def small(width: int = 16) -> Small:
    torch.manual_seed(0)
    return Small(width).eval()


def mean_square(output: Tensor) -> Tensor:
    return output.square().mean()


def batch() -> Tensor:
    return torch.linspace(-1, 1, 64).view(4, 16)


class Slow(nn.Module):
    """Sleeps, and adds one."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return x + 1


class Slower(Slow):
    """Another class, and so another part."""


class TwoParts(nn.Module):
    """Two parts, one after the other, which take most of its time."""

    def __init__(self, heavy: float, light: float) -> None:
        super().__init__()
        self.heavy, self.light = Slow(heavy), Slower(light)

    def forward(self, x: Tensor) -> Tensor:
        return self.light(self.heavy(x))


def two_parts() -> TwoParts:
    return TwoParts(0.01, 0.008).eval()


class Pipeline:
    """An object that holds modules and is none."""

    def __init__(self, first: nn.Module, others: list[nn.Module]) -> None:
        self.first, self.others = first, others

    def __call__(self, x: Tensor) -> Tensor:
        return self.others[0](torch.relu(self.first(x)))


def pipeline(width: int) -> Pipeline:
    torch.manual_seed(0)
    return Pipeline(nn.Linear(16, width), [nn.Linear(width, 16)])


def quick(model: Callable[..., Any]) -> Callable[..., Any]:
    """What a sleeper gives, without the sleep; other models as they are."""
    return (lambda x: x + 1) if isinstance(model, Slow) else model


def first_half(output: Tensor) -> Tensor:
    return output[:2]


def no_tensor(output: Tensor) -> float:
    return 3.0


def no_metric(call: Callable[..., Any]) -> float:
    raise ZeroDivisionError("no data")
