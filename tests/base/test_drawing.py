"""Which calls may draw random numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lamina.base.drawing import call_may_draw

ARGUMENTS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("dropout", (0.5, False), {}),
    ("dropout", (0.5, True), {}),
    ("dropout", (), {"training": False}),
    ("dropout", (), {}),
    ("alpha_dropout", (0.5, False), {}),
    ("alpha_dropout", (0.5, True), {}),
    ("feature_alpha_dropout", (0.5, False), {}),
    ("dropout1d", (0.5, False), {}),
    ("dropout2d", (0.5, True), {}),
    ("dropout3d", (0.5, False), {}),
    ("rrelu", (), {}),
    ("rrelu", (), {"training": True}),
    ("relu", (), {}),
    ("native_dropout", (0.5, False), {}),
]


@pytest.mark.parametrize(("name", "args", "kwargs"), ARGUMENTS)
def test_what_draws_is_known_to(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Nothing that moves the state of the generator passes for a call that does not."""
    function = getattr(F, name, None) or getattr(torch, name)
    x = torch.ones(2, 3, 4, 5, 6) if name.endswith("3d") else torch.ones(2, 3, 4, 5)
    x = x[0, 0] if name.endswith("1d") else x
    before = torch.get_rng_state()
    function(x, *args, **kwargs)
    drew = not torch.equal(before, torch.get_rng_state())
    assert call_may_draw(name, (x, *args), kwargs) or not drew
    if name != "rrelu" and False in (*args, *kwargs.values()):
        assert not call_may_draw(name, (x, *args), kwargs)
