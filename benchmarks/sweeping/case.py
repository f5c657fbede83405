"""A program of the sweep, before it is built: name, kinds of operations, and how each rival gets its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["DTYPES", "MODES", "Case", "Problem", "Row", "Skipped", "Variant", "shuffled", "variants"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MODES = ("forward", "training")


class Skipped(Exception):
    """A program that is not measured, for the reason given."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One rival's copy: a function with a code object of its own, its arguments and what gets gradients.

    ``random`` programs draw numbers, so that results cannot be compared. ``module`` is what the function calls with
    positional and named arguments, where it has parameters, the first of ``leaves``.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    leaves: tuple[Tensor, ...] = ()
    random: bool = False
    module: nn.Module | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """In which type, direction and place a program runs; ``scale`` multiplies its number of elements."""

    dtype: str
    mode: str
    device: str = "cpu"
    scale: float = 1.0

    @property
    def training(self) -> bool:
        return self.mode == "training"

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]


@dataclass(frozen=True, slots=True)
class Case:
    """A program: ``make`` gives the same one each time it is asked, and raises Skipped where there is none.

    ``text`` is its source, or what of it a reader needs to find it again; ``kinds`` may be known after ``make`` only.
    """

    name: str
    kinds: tuple[str, ...]
    make: Callable[[Variant], Problem]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A program in one variant."""

    case: Case
    variant: Variant

    @property
    def name(self) -> str:
        return f"{self.case.name}.{self.variant.dtype}.{self.variant.mode}"


def variants(dtypes: Sequence[str], modes: Sequence[str], device: str, scale: float) -> list[Variant]:
    """Every combination of type and direction."""
    return [Variant(dtype, mode, device, scale) for dtype in dtypes for mode in modes]


def shuffled(rows: Sequence[Row]) -> list[Row]:
    """Every program in one variant, then every program in another, in an order that depends on the names only.

    So a run cut short has seen some of everything, and another one the same.
    """
    by_case: dict[str, list[Row]] = {}
    for row in rows:
        by_case.setdefault(row.case.name, []).append(row)
    rounds = [(turn, row) for group in by_case.values() for turn, row in enumerate(sorted(group, key=_drawn))]
    return [row for _, row in sorted(rounds, key=lambda r: (r[0], _drawn(r[1])))]


def _drawn(row: Row) -> bytes:
    return hashlib.sha256(row.name.encode()).digest()
