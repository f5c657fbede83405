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
POWERS, STEPS = (3, 2, 5, 4, 1), (3, 2, 1, 0, 5, -2)
SIZES = (3, 5, 100, 200, -200, 70000, 2**40)
WORDS = (1, 3, 5, -2, 2**31, -1, 2**62, 0)
TEXT = "a b c d e"
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
    "powers of a negative number": (lambda x, k: (x * (-2) ** k, (-1) ** (k + 1), (-2) ** x, -(2**k)), POWERS),
    "range that nothing uses": (lambda x, k: (x, range(0, 3, k))[0] + 1, STEPS),
    "range": (lambda x, k: (x * len(range(0, 9, k)), k in range(3), k in range(0, 9, 2)), STEPS),
    "tensor of a number": (lambda x, k: torch.tensor(k, dtype=torch.int8), SIZES),
    "tensor of a float": (lambda x, k: torch.tensor(k / 1, dtype=torch.int16), SIZES),
    "tensor of numbers": (lambda x, k: torch.tensor([[1, k], [k, 2]], dtype=torch.uint8), SIZES),
    "tensor as a number": (lambda x, k: torch.as_tensor((k,), dtype=torch.int32), SIZES),
    "tensor of 64 bits without a sign": (lambda x, k: torch.tensor(k, dtype=torch.uint64), SIZES),
    "list of 64 bits without a sign": (lambda x, k: torch.as_tensor([k, 1], dtype=torch.uint64), SIZES),
    "new tensor without a sign": (lambda x, k: x.new_tensor(k, dtype=torch.uint64), SIZES),
    "shift beyond 64 bits": (lambda x, k: x * (k << 62) if k >= 0 else x, WORDS),
    "product beyond 64 bits": (lambda x, k: (x * (k * 2**62), x.long() + k * k), WORDS),
    "sum beyond 64 bits": (lambda x, k: x * (k + (2**63 - 4)), WORDS),
    "difference beyond 64 bits": (lambda x, k: x * (-(2**63) - k), WORDS),
    "power beyond 64 bits": (lambda x, k: (x * (k % 7) ** 23, k**3, x * abs(k % 7) ** (k % 5)), WORDS),
    "float beyond a tensor's": (lambda x, k: torch.full((2,), k), (1.5, 2.5, 1e39, 3.5, -1e300, math.inf)),
    "float beyond half's": (lambda x, k: torch.full((2,), k, dtype=torch.float16), (1.5, 2.5, 65504.0, 65520.0)),
    "number beyond a tensor's": (lambda x, k: torch.scalar_tensor(k), (1.5, 2.5, 1e39, 3.5, -1e300, math.inf)),
    "infinity beyond a tensor's": (lambda x, k: torch.tensor(k) + x, (1.5, 2.5, 1e39, 3.5, -1e300, math.inf)),
    "factor beyond a tensor's": (lambda x, k: torch.add(x.int(), x.int(), alpha=k), SIZES),
    "factor beyond a byte": (lambda x, k: torch.sub(x.to(torch.uint8), x.to(torch.uint8), alpha=k), SIZES),
    "in a range": (lambda x, k: x * 2 if k in range(3, 9) else x - 1, STEPS),
    "in a range of odd numbers": (lambda x, k: x * 2 if k in range(5, -3, -2) else x - 1, STEPS),
    "place in a range": (lambda x, k: (x * range(9)[k], range(-3, 9).index(k), range(9).count(k)), STEPS),
    "parts of a text": (lambda x, k: (x + 1, TEXT.split(" ", k), TEXT.center(k + 12), TEXT[:k]), STEPS),
}


@pytest.mark.sampled(one_in=8)
@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_are_pythons(name: str) -> None:
    function, numbers = PROGRAMS[name]
    torch._dynamo.reset()
    compiled = lamina.compile(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lamina.LaminaWarning)
        for number in (*numbers, *numbers[::-1]):
            assert told(compiled, number) == told(function, number), number


def told(function: Callable[[Tensor, Any], Any], number: Any) -> str:
    try:
        return repr(function(X, number))
    except Exception as error:
        return type(error).__name__


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


def test_a_slice_of_what_gives_a_number() -> None:
    class Held:
        def __init__(self, number: int) -> None:
            self.number = number

        def __index__(self) -> int:
            return self.number

    torch._dynamo.reset()
    compiled = lamina.compile(lambda x, k: (x[:k] * 2, [1, 2, 3][k:], x[k]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lamina.LaminaWarning)
        for number in (1, 0):
            found = compiled(X, Held(number))
            assert repr(found) == repr((X[:number] * 2, [1, 2, 3][number:], X[number]))


def test_what_ranges_tell_of_numbers_is_guarded_and_no_more() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = lamina.compile(lambda x, k: x * k if k in range(3, 9) else x - k, backend="interp", fullgraph=True)
    for number in (1, 4, 5, 3, 8, 7, 9, 12, 2, 0):
        compiled(X, number)
    assert (
        torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 4
    )  # the first number's own, numbers below, within and above
