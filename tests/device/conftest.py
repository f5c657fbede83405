"""Tests that need an NVIDIA GPU, skipped elsewhere."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

_MISSING = (
    "torch sees no GPU"
    if not torch.cuda.is_available()
    else "Triton is not installed"
    if find_spec("triton") is None
    else ""
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/device/" in item.path.as_posix():
            item.add_marker(pytest.mark.device)
            if _MISSING:
                item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {_MISSING}"))


@pytest.fixture(autouse=True)
def settled() -> Iterator[None]:
    """No test sees another's work, or its mistakes."""
    yield
    if not _MISSING:
        torch.cuda.synchronize()


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing compiled before, and no kernel that falls back."""
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="lamina runs")
        yield
