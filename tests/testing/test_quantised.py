"""Quantised results: a tie may go either way, a wrong scale may not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lamina.testing import judge, mismatch

TYPES = [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2]


def steps(dtype: torch.dtype, count: int = 4096) -> Tensor:
    """Every number of the dtype between 1 and 100, over and over."""
    return torch.arange(1, 100).repeat(count // 99 + 1)[:count].float().to(dtype)


def moved(tensor: Tensor, places: int, by: int = 1) -> Tensor:
    """``places`` of the elements one step or more away."""
    bits = tensor.clone().view(torch.uint8)
    bits[:places] += by
    return bits.view(tensor.dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_equal_results_are_fine(dtype: torch.dtype) -> None:
    x = steps(dtype)
    assert judge(x, x.clone(), x.clone(), quantised=True) == ""


@pytest.mark.parametrize("dtype", TYPES)
def test_as_many_ties_as_twice_eagers_are_fine(dtype: torch.dtype) -> None:
    exact = steps(dtype)
    assert judge(moved(exact, 40), moved(exact, 20), exact, quantised=True) == ""


@pytest.mark.parametrize("dtype", TYPES)
def test_more_ties_than_that_are_wrong(dtype: torch.dtype) -> None:
    exact = steps(dtype)
    assert "45 of 4096 elements" in judge(moved(exact, 45), moved(exact, 20), exact, quantised=True)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_handful_is_chance(dtype: torch.dtype) -> None:
    exact = steps(dtype)
    assert judge(moved(exact, 4), exact, exact, quantised=True) == ""


@pytest.mark.parametrize("dtype", TYPES)
def test_two_steps_are_wrong(dtype: torch.dtype) -> None:
    exact = steps(dtype)
    assert "2 steps" in judge(moved(exact, 1, by=2), exact, exact, quantised=True)


def test_integers_that_are_no_rounded_numbers_must_be_equal() -> None:
    x = steps(torch.int8)
    assert judge(moved(x, 1), x, x)
    wide = x.long()
    assert judge(wide + 1, wide, wide, quantised=True)


def test_a_nan_is_far_from_every_number() -> None:
    exact = steps(torch.float8_e4m3fn)
    ours = exact.clone()
    ours[3] = float("nan")
    assert "steps" in judge(ours, exact, exact, quantised=True)
    assert judge(ours, ours.clone(), ours.clone(), quantised=True) == ""


def test_signs_meet_at_zero() -> None:
    tiny = torch.tensor([1, 0x81], dtype=torch.uint8).view(torch.float8_e4m3fn)
    zero = torch.tensor([0, 0x80], dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert judge(zero, zero[[1, 0]], zero, quantised=True) == ""
    assert judge(tiny, zero, zero, quantised=True) == ""
    assert "2 steps" in judge(tiny, tiny[[1, 0]], zero, quantised=True)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_floats_of_eight_bits_can_be_judged_as_floats_too(dtype: torch.dtype) -> None:
    x = torch.linspace(-3, 3, 64).to(dtype)
    assert judge(x, x.clone(), x.clone()) == ""
    assert mismatch(x, x.clone()) == ""
    broken = x.clone()
    broken[5] = float("nan")
    assert "1 of 64" in judge(broken, x, x)
