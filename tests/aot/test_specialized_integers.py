"""Run-time integers that become the data of tensors keep all of their digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import lamina


def _numpy(x: Any, k: int) -> Any:
    return x * np.float32(k)


def _computed(x: Any, k: int) -> Any:
    return x * np.float32(k * 3 - 1)


def _as_tensor(x: Any, k: int) -> Any:
    return x.double() * torch.as_tensor(k)


def _asarray(x: Any, k: int) -> Any:
    return x.double() * torch.asarray([k, k + 1, 2])


def _tensor(x: Any, k: int) -> Any:
    return x.double() + torch.tensor([k, 1, 2])


def _new_tensor(x: Any, k: int) -> Any:
    return x.double() + x.double().new_tensor(k)


def _legacy(x: Any, k: int) -> Any:
    return x.double() + torch.LongTensor([k])


def _clipped(x: Any, k: int) -> Any:
    return torch.from_numpy(x.numpy().astype(np.int64).clip(k, None))


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("capture", ["dynamo", "own"])
@pytest.mark.parametrize("function", [_tensor, _new_tensor, _legacy, _clipped, _as_tensor], ids=lambda f: f.__name__)
def test_data_of_other_calls_is_whole_in_both_front_ends(function: Callable[..., Any], capture: str) -> None:
    compiled = lamina.compile(function, backend="interp", options={"capture": capture})
    x = torch.tensor([1.0, 2.0, -0.5])
    for k in (3, 7, 2**40 + 5, 2**40 + 12, -(2**40) - 9):
        assert torch.equal(compiled(x, k), function(x, k)), k


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("function", [_numpy, _computed, _as_tensor, _asarray], ids=lambda f: f.__name__.strip("_"))
def test_integers_of_more_than_32_bits_are_whole(function: Callable[..., Any], dynamic: bool | None) -> None:
    compiled = lamina.compile(function, backend="interp", dynamic=dynamic, options={"strict": True})
    x = torch.tensor([1.0, 2.0, -0.5])
    for k in (-2, 3, 2**31, -(10**17) - 3, 10**17 + 3):
        assert torch.equal(compiled(x, k), function(x, k)), k
