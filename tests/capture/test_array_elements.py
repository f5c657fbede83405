"""An element of a NumPy array is a number of its own: a later write to the array does not change it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina


def _swapped(array: Any) -> Any:
    array[0], array[1] = array[1], array[0]
    return array * 2


def _kept(array: Any) -> Any:
    first = array[0]
    array[0] = 9
    array[1] = first
    return array * 1


def _read_after_an_operator(array: Any) -> Any:
    first = array[0]
    array += 1
    return first * 2 + array


def _read_after_a_method(array: Any) -> Any:
    first = array[0]
    array.sort()
    return first * 2 + array


def _read_after_a_function(array: Any) -> Any:
    first = array[0]
    np.copyto(array, 7)
    return first * 2 + array


def _part_read_after_a_write(array: Any) -> Any:
    part = array[:1]
    array[0] = 9
    return part * 2


@pytest.mark.parametrize("capture", ["dynamo", "own"])
@pytest.mark.parametrize(
    "function",
    [
        _swapped,
        _kept,
        _read_after_an_operator,
        _read_after_a_method,
        _read_after_a_function,
        _part_read_after_a_write,
    ],
)
def test_an_element_is_not_written_to(function: Callable[..., Any], capture: str) -> None:
    def outcome(function: Callable[..., Any]) -> list[Any]:
        array = np.arange(3, 0, -1).astype(np.float32)
        return [function(array).tolist(), array.tolist()]

    compiled = lamina.compile(function, backend="interp", options={"capture": capture})
    assert outcome(compiled) == outcome(function)
