"""Arithmetic of Python numbers that vary between calls is Python's own."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina

X = torch.ones(2, dtype=torch.float64)
FLOATS = (2.5, 3.5, -2.5, -0.0, 0.0, 7.0, 0.75)
INTEGERS = (5, 3, -7, 0, 53, 25, 1)
PROGRAMS: dict[str, tuple[Callable[[Tensor, Any], Any], tuple[Any, ...]]] = {
    "remainder of one": (lambda x, k: (x * k, k % 1), FLOATS),
    "remainder of a float of one": (lambda x, k: x + k % 1.0, FLOATS),
    "remainder of minus one, quotient": (lambda x, k: (x * k, k % -1, k // 1), FLOATS),
    "remainder of a multiple": (lambda x, k: x * ((3 * k) % 3 - (k + 1) % 2), FLOATS),
    "remainder of a fraction": (lambda x, k: (x * (k % 0.75), divmod(k, 1.0)), INTEGERS),
    "sign of a zero that is returned": (lambda x, k: (x * 0, -k), FLOATS),
    "sign of a zero in a list": (lambda x, k: (x + 1, [{"k": [-k, (k,)]}]), FLOATS),
    "sign of a zero in tensors": (lambda x, k: 1 / (x * -k), FLOATS),
    "tens of an integer": (lambda x, k: (x * round(k, -1), round(k, -1), round(k, 1), round(k)), INTEGERS),
    "hundreds by a number": (lambda x, k: round(k * 7, -(x.dim() + 1)) + x, INTEGERS),
    "tens of a float": (lambda x, k: (x * round(k, -1), round(k, -1), round(k, 1), round(k)), FLOATS),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_are_pythons(name: str) -> None:
    function, numbers = PROGRAMS[name]
    torch._dynamo.reset()
    compiled = lamina.compile(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lamina.LaminaWarning)
        for number in (*numbers, *numbers[::-1]):
            assert repr(compiled(X, number)) == repr(function(X, number)), number


def test_a_zero_that_is_written_to_an_object_keeps_its_sign() -> None:
    class Held:
        value = 1.0

    def function(x: Tensor, k: float, held: Held) -> Tensor:
        held.value = -k
        return x + 1

    torch._dynamo.reset()
    compiled, held = lamina.compile(function), Held()
    for number in (2.5, -0.0, 0.0, -0.0):
        compiled(X, number, held)
        assert math.copysign(1.0, held.value) == -math.copysign(1.0, number)
