"""Results that depend on others which are written to in place, watched by hooks: as eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import lamina

WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "added to": lambda v: v.add_(1),
    "multiplied": lambda v: v.mul_(2),
    "a part set": lambda v: v.__setitem__(0, 2.0),
    "a part multiplied": lambda v: v[:1].mul_(3),
    "clamped twice": lambda v: v.clamp_(max=2.0).add_(1),
}


@pytest.mark.parametrize("capture", ["own", "dynamo"])
@pytest.mark.parametrize("write", WRITES)
def test_hooks_see_what_results_behind_a_write_add(write: str, capture: Any) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        first = x + 1
        WRITES[write](first)
        second = first + 1
        return first, second, second.relu()

    found = []
    for call in (function, lamina.compile(function, options={"capture": capture})):
        x, seen = torch.ones(3, requires_grad=True), [torch.zeros(3)] * 3
        results = call(x)
        for place, result in enumerate(results):

            def hook(gradient: torch.Tensor, place: int = place, seen: list[torch.Tensor] = seen) -> torch.Tensor:
                seen[place] = gradient.clone()
                return gradient * 2

            result.register_hook(hook)
        sum(((result * (place + 1)).sum() for place, result in enumerate(results)), torch.zeros(())).backward()
        assert x.grad is not None
        found.append([*seen, x.grad])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("capture", ["own", "dynamo"])
@pytest.mark.parametrize("written", [False, True])
def test_gradients_of_views_are_asked_for(capture: Any, written: bool) -> None:
    """Of the first call, whose results take the place of what stood for them, and of later ones."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        first = -x
        view = first.unsqueeze(0)
        if written:
            view.add_(1)
        return first, view, view - 0.25

    compiled = lamina.compile(function, options={"capture": capture})
    for _ in range(3):
        found = []
        for call in (compiled, function):
            x = torch.ones(2, requires_grad=True)
            results = call(x)
            total = sum(((result * (place + 1)).sum() for place, result in enumerate(results)), torch.zeros(()))
            found.append(torch.autograd.grad(total, [*results, x]))
        torch.testing.assert_close(found[0], found[1])
