"""Ways in which a user may have compiled a module before it is tuned."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import lamina

__all__ = ["BY"]


def _in_place(module: nn.Module) -> nn.Module:
    module.compile(backend="eager")
    return module


def _by_torch(module: nn.Module) -> Callable[..., object]:
    return torch.compile(module, backend="eager")


BY = (
    pytest.param(lamina.compile, id="lamina"),
    pytest.param(_in_place, id="in place"),
    pytest.param(_by_torch, id="torch"),
)
