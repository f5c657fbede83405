"""Convolutions with so few output channels that the vectors which a CPU's library makes of them are mostly empty."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

__all__ = ["MOST_GRADIENTS", "has_few_outputs"]

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_MOST_OUTPUTS = 4
"""Output channels; the library takes the same time for one to sixteen (one thread with AVX-512)."""
_MOST_OF_ONE_TAP = 2
"""The same of filters of one tap, which the library reads at the speed of memory with more."""
_FEWEST_INPUTS = 4
"""Channels of the image: with two and 49 taps the library took .75 of the time."""
MOST_GRADIENTS = 27
"""Outputs times taps up to which the gradients are kernels of our own too (36 took 1.3 times the library's time)."""
_MOST_PLANES = 5
"""Taps of all outputs for each channel of the image at most."""


def has_few_outputs(
    dtype: torch.dtype,
    image: Sequence[int],
    weight: Sequence[int],
    steps: Sequence[int],
    pads: Sequence[int],
    transposed: bool,
    groups: int,
) -> bool:
    """Whether kernels of our own compute a convolution of these shapes on a CPU, in any order of memory.

    ``image`` is ``[batch, channels, *size]``, ``weight`` ``[outputs, channels, *taps]``, the rest are arguments of
    ``aten.convolution``. It has steps of one, one group, and more taps than one only in float32: the gradients would
    take longer than the library's in half precision, which wants another order of memory for them.
    """
    outputs, inputs, *taps = weight
    if dtype not in _DTYPES or transposed or groups != 1 or len(image) != len(weight) or not taps or 0 in image:
        return False
    if any(n != 1 for n in steps) or not 1 <= outputs <= _MOST_OUTPUTS or inputs < _FEWEST_INPUTS:
        return False
    if math.prod(taps) == 1:
        return outputs <= _MOST_OF_ONE_TAP and not any(pads)
    return dtype == torch.float32 and math.prod(taps) <= _MOST_PLANES * inputs // outputs
