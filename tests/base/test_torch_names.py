"""The settings and functions of torch that texts name are there."""

from __future__ import annotations

import importlib

import pytest
import torch

from lamina.base.torch_names import torch_private


@pytest.mark.parametrize("name", torch_private.__all__)
def test_the_names_are_torchs(name: str) -> None:
    if torch.__version__ < "2.13":
        pytest.skip("they are those of torch 2.13")
    path: str = getattr(torch_private, name)
    module, _, attribute = path.rpartition(".")
    try:
        assert hasattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError:
        importlib.import_module(path)
