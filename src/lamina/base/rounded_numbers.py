"""Calls in which eager, on a CPU, rounds a number to a half type before it computes with it, where kernels do not."""

from __future__ import annotations

import torch

__all__ = ["HALF_TYPES", "rounds_numbers"]

HALF_TYPES = frozenset((torch.float16, torch.bfloat16))
_SUMS = frozenset(("add", "iadd", "radd", "sub", "isub", "rsub", "subtract"))


def rounds_numbers(name: str) -> bool:
    """Whether a function, method (``add_``) or operator (``__radd__``) of that name rounds numbers to half types.

    What is larger than the largest number of the type becomes an infinity.
    """
    return name.strip("_") in _SUMS
