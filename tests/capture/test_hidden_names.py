"""Attributes of a module that hide its submodules, parameters and buffers, which Dynamo takes first."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lamina
from lamina.errors import LaminaWarning


def _net() -> Any:
    """A module of a class of its own: once a function is left to Python it stays so."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4, bias=False)
            self.scale = nn.Parameter(torch.ones(4))
            self.register_buffer("shift", torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * self.scale + self.shift

    Net.forward.__code__ = Net.forward.__code__.replace()
    return Net()


def _hide(net: Any, name: str) -> None:
    torch.manual_seed(7)
    item: Any = nn.Linear(4, 4, bias=False) if name == "layer" else torch.full((4,), 3.0)
    if name == "weight":
        net.layer.__dict__["weight"] = torch.full((4, 4), 2.0)
    else:
        object.__setattr__(net, name, item)


@pytest.mark.by_dynamo(
    "asks for a warning about Dynamo's capture of modules",
    "after a call-layer",
    "after a call-scale",
    "after a call-shift",
    "after a call-weight",
    "before any call-layer",
    "before any call-scale",
    "before any call-shift",
    "before any call-weight",
)
@pytest.mark.parametrize("name", ["layer", "scale", "shift", "weight"])
@pytest.mark.parametrize("early", [False, True], ids=["after a call", "before any call"])
def test_an_attribute_hides_what_is_registered(name: str, early: bool) -> None:
    torch.manual_seed(0)
    net, x = _net(), torch.arange(4.0)
    compiled = lamina.compile(net)
    if not early:
        torch.testing.assert_close(compiled(x), net(x))
    _hide(net, name)
    with pytest.warns(LaminaWarning, match="hides what is registered under this name"):
        result = compiled(x)
    torch.testing.assert_close(result, net(x))


def test_what_is_assigned_as_usual_is_compiled() -> None:
    net, x = _net(), torch.arange(4.0)
    compiled = lamina.compile(net, fullgraph=True)
    torch.testing.assert_close(compiled(x), net(x))
    net.scale = nn.Parameter(torch.full((4,), 3.0))
    net.shift = torch.full((4,), 5.0)
    net.layer = nn.Linear(4, 4, bias=False)
    torch.testing.assert_close(compiled(x), net(x))
