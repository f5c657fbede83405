"""The settings and functions of torch that texts name are there."""

from __future__ import annotations

import importlib

import pytest
import torch

from lamina.base.torch_names import torch_private

OF_MODULES = ("BUFFERS", "REGISTRIES", "SUBMODULES")
"""What an ``nn.Module`` has in its dictionary; all others are paths."""


@pytest.mark.parametrize("name", [n for n in torch_private.__all__ if n not in OF_MODULES])
def test_the_names_are_torchs(name: str) -> None:
    if torch.__version__ < "2.13":
        pytest.skip("they are those of torch 2.13")
    path: str = getattr(torch_private, name)
    module, _, attribute = path.rpartition(".")
    try:
        assert hasattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError:
        importlib.import_module(path)


def test_the_registries_are_those_of_modules() -> None:
    held = vars(torch.nn.Module())
    assert {torch_private.BUFFERS, torch_private.SUBMODULES} < set(torch_private.REGISTRIES)
    assert all(isinstance(held[name], dict) for name in torch_private.REGISTRIES)
