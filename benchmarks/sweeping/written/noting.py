"""Note a function as a program of the sweep, with what its inputs are."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.patterns import private_copy
from benchmarks.sweeping.case import Case, Problem, Variant

__all__ = ["Places", "Positive", "cases", "of"]

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Places:
    """An input of whole numbers from 0 to below ``high``."""

    high: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class Positive:
    """An input between 0.05 and 1."""

    shape: Shape


Wanted = Shape | Places | Positive
_WRITTEN: list[Case] = []


def cases() -> list[Case]:
    """All of them, in the order in which they are written."""
    return list(_WRITTEN)


def _input(wanted: Wanted, variant: Variant) -> Tensor:
    if isinstance(wanted, Places):
        return torch.randint(wanted.high, wanted.shape).to(variant.device)
    if isinstance(wanted, Positive):
        made = torch.rand(wanted.shape) * 0.95 + 0.05
    else:
        made = torch.randn(wanted)
    return made.to(variant.device, variant.torch_dtype).requires_grad_(variant.training)


def _problem(function: Callable[..., Any], inputs: tuple[Wanted, ...], variant: Variant) -> Problem:
    torch.manual_seed(0)
    args = tuple(_input(wanted, variant) for wanted in inputs)
    return Problem(private_copy(function), args, tuple(t for t in args if t.requires_grad))


def of(*inputs: Wanted) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Note a function that takes ``inputs``: shapes of random numbers, or what else they are."""

    def note(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__.strip("_")
        text = f"{inspect.getsource(function)}# inputs: {inputs}\n"
        _WRITTEN.append(Case(f"written/{name}", ("written",), partial(_problem, function, inputs), text))
        return function

    return note
