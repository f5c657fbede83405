"""What a compiled function looks at in each call to know whether an object of the caller's may end within it."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

import lamina
from lamina.capture.finalizers import ends
from lamina.capture.finalizers.ends import is_noticed


class _Noticing(nn.Module):
    def __del__(self) -> None: ...


def test_what_modules_hold_is_looked_at_when_that_is_asked_for() -> None:
    model = nn.Sequential(nn.Linear(2, 2), _Noticing())
    assert is_noticed([model], False)
    assert not is_noticed([model], False, within_modules=False)
    assert is_noticed([{"last": [_Noticing()]}], False, within_modules=False)
    assert not is_noticed([nn.Sequential(nn.Linear(2, 2))], False)


def test_a_model_is_not_gone_through_in_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 96 blocks that took ten milliseconds, where an argument that is a model is assigned anew."""
    looked: list[Any] = []

    class Counted:
        @staticmethod
        def get_referents(value: Any) -> list[Any]:
            looked.append(value)
            return gc.get_referents(value)

    def first(model: Any, x: torch.Tensor) -> torch.Tensor:
        model = model[0]
        result: torch.Tensor = model(x)
        return result + 1

    model, x = nn.Sequential(*(nn.Linear(2, 2) for _ in range(20))), torch.ones(3, 2)
    compiled = lamina.compile(first)
    for _ in range(3):
        compiled(model, x)
    monkeypatch.setattr(ends, "gc", Counted)
    torch.testing.assert_close(compiled(model, x), first(model, x))
    assert len(looked) < 5
