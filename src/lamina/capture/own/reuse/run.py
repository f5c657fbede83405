"""A graph that an interpreted call has run, as the trace of the call keeps it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Ran", "Run"]


@dataclass(frozen=True, slots=True)
class Run:
    """A graph that was run on ``inputs`` in grad mode ``grad`` and autocast's state ``autocast``, giving ``results``.

    ``switches``: it changes the grad mode within; ``draws``: it draws random numbers; ``writes``: it writes to
    tensors; ``aliased``: a result was an input, or another result, of which a view was made. ``numbers``: integers
    that it is given after its inputs.
    """

    run: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]
    results: tuple[torch.Tensor, ...]
    grad: bool
    autocast: tuple[Any, ...]
    switches: bool
    draws: bool
    writes: bool
    aliased: bool
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ran:
    """The same as a step of a trace: ``given`` are variables of the driver, ``results`` is the number of results."""

    run: Callable[..., Any]
    given: tuple[str, ...]
    results: int
    within: bool | None
    aliased: bool
    spoils: bool
