"""A training step of ghost modules (GhostNet, arXiv:1911.11907) whose last batch norms see four values a channel.

Such a network is badly conditioned: inputs moved by one unit in the last place move some of eager's own gradients by
thousands of units. Results that differ from eager's by as much are told from faults in double precision, with
eager by their side.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.compilers import CompileFunction
from lamina.base.reference import doubled
from lamina.testing import compare_draws

MOST_DRAWS = 24


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Threads that wait for one another take longer than these convolutions."""
    torch.set_num_threads(1)


class Ghost(nn.Module):
    """Half of the channels by a product, the other half of those by a cheap convolution of each."""

    def __init__(self, channels: int, out: int, relu: bool) -> None:
        super().__init__()
        half, last = out // 2, nn.ReLU() if relu else nn.Identity()
        self.primary = nn.Sequential(nn.Conv2d(channels, half, 1, bias=False), nn.BatchNorm2d(half), last)
        cheap = nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False)
        self.cheap = nn.Sequential(cheap, nn.BatchNorm2d(half), last)

    def forward(self, x: Tensor) -> Tensor:
        first = self.primary(x)
        return torch.cat([first, self.cheap(first)], 1)


class Bottleneck(nn.Module):
    """Two ghost modules with a convolution of stride 2 between them, and a shortcut."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        strided = nn.Conv2d(inner, inner, 3, 2, 1, groups=inner, bias=False)
        self.through = nn.Sequential(
            Ghost(channels, inner, True), strided, nn.BatchNorm2d(inner), Ghost(inner, channels, False)
        )
        self.past = nn.Sequential(
            nn.Conv2d(channels, channels, 3, 2, 1, groups=channels, bias=False), nn.BatchNorm2d(channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.through(x) + self.past(x)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        *(Bottleneck(8, 16) for _ in range(2)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )


def drawn(model: nn.Module) -> Iterator[tuple[tuple[Tensor], dict[str, Any]]]:
    """Arguments of one call after another; the weights are new before each."""
    for seed in range(MOST_DRAWS):
        torch.manual_seed(seed)
        model.load_state_dict(network().state_dict())
        yield (torch.randn(4, 3, 8, 8, requires_grad=True),), {}


def _gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    found = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    return [g.double() for g in found]


def test_a_training_step_is_no_further_from_the_truth_than_eagers(compile: CompileFunction) -> None:
    model = network()
    comparison = compare_draws(model, compile(model, dynamic=False), drawn(model))
    assert comparison.ok, str(comparison)


def test_eagers_own_gradients_move_by_thousands_of_units_in_the_last_place() -> None:
    moves = []
    for seed in range(4):
        torch.manual_seed(seed)
        model, x = network(), torch.randn(4, 3, 8, 8)
        exact = _gradients(doubled(model), x.double())
        for moved in (x, x.nextafter(torch.tensor(9.0))):
            errors = [
                ((g - e).abs().max() / e.abs().max()).item()
                for g, e in zip(_gradients(model, moved), exact, strict=True)
            ]
            moves.append(max(errors) / torch.finfo(torch.float32).eps)
    assert max(moves) > 1000
