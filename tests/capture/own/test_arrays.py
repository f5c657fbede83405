"""NumPy's arrays that share memory with tensors: what is recorded runs before the program looks at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import lamina


def _added_to(array: Any, tensor: torch.Tensor) -> Any:
    double = tensor * 2
    array += 1
    return double, tensor * 1


def _set(array: Any, tensor: torch.Tensor) -> Any:
    double = tensor * 2
    array[1] = 9
    array.flat[0] = 7
    return double, tensor * 1


def _part_multiplied(array: Any, tensor: torch.Tensor) -> Any:
    tensor[1] = 9
    part = array[1:]
    part *= 3
    return tensor * 1


def _element(array: Any, tensor: torch.Tensor) -> Any:
    tensor.mul_(2)
    return float(array[0])


def _unpacked(array: Any, tensor: torch.Tensor) -> Any:
    tensor.mul_(2)
    first, *others = array
    return float(first), [float(one) for one in others]


def _summed(array: Any, tensor: torch.Tensor) -> Any:
    tensor.mul_(2)
    return float(sum(array)), float(max(array)), str(array), float(sum([array, array])[0])


def _taken_one_by_one(array: Any, tensor: torch.Tensor) -> Any:
    found = []
    for one in array:
        tensor.add_(1)
        found.append(float(one))
    return found


def _compared(array: Any, tensor: torch.Tensor) -> Any:
    tensor.mul_(2)
    return bool((array == 6).any()), 6 in array


def _made_of_a_result(array: Any, tensor: torch.Tensor) -> Any:
    double = tensor * 2
    of_result = double.numpy()
    of_result[0] = 100
    more = double + 1
    double[1] = 50
    return more, float(of_result[1])


@pytest.mark.parametrize(
    "function",
    [
        _added_to,
        _set,
        _part_multiplied,
        _element,
        _unpacked,
        _summed,
        _taken_one_by_one,
        _compared,
        _made_of_a_result,
    ],
)
def test_arrays_see_what_was_written_and_writes_to_them_are_seen(function: Callable[..., Any]) -> None:
    def outcome(function: Callable[..., Any]) -> list[Any]:
        array = np.arange(3, 0, -1).astype(np.float32)
        found = function(array, torch.from_numpy(array))
        values = found if isinstance(found, tuple) else (found,)
        return [*(one.tolist() if isinstance(one, torch.Tensor) else one for one in values), array.tolist()]

    compiled = lamina.compile(function, backend="interp", options={"capture": "own"})
    assert outcome(compiled) == outcome(function)
