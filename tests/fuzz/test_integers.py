"""Random programs whose integers change between calls, against eager; a failing one is printed as code."""

from __future__ import annotations

import warnings

import pytest

from lamina.errors import LaminaWarning
from tests.fuzz.integers import complaints, integer_program

FEW = (3, 34, 62, 87, 181, 271, 2168)
MANY = range(10_000, 12_000)


def _check(number: int) -> None:
    program = integer_program(number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaminaWarning)
        found = complaints(program)
    assert not found, "\n".join((program.text(), *found))


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("number", FEW)
def test_some_programs(number: int) -> None:
    _check(number)


@pytest.mark.slow
@pytest.mark.parametrize("number", MANY)
def test_many_programs(number: int) -> None:
    _check(number)
