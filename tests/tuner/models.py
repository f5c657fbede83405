"""Models of the tests, which processes import by name."""

from __future__ import annotations

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
