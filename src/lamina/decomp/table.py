"""Which operations are taken apart before differentiation is recorded.

Few, on purpose: every operation here costs tracing time, and what stays whole is either lowered whole to a loop nest
(norms, softmax, losses, activations and their backward) or called in ATen (products, convolutions, attention, sorts).
Taken apart is only what has no lowering rule and no kernel of ATen worth calling, and where torch's own decomposition
gives eager's values, dtypes and errors; dropout and random slopes, which are drawn again in the backward pass; and
pooling to a size that has windows of one size, and distances, whose other forms have kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import MappingProxyType
from typing import Any

from lamina.decomp.distances import distance_decompositions
from lamina.decomp.dropout import dropout_decompositions
from lamina.decomp.slopes import slope_decompositions
from lamina.decomp.torch_private import torch_decompositions
from lamina.decomp.windows import window_decompositions
from lamina.ops import row_of

__all__ = ["decompositions"]


@cache  # values of the option numerics
def decompositions(numerics: str = "fast") -> MappingProxyType[Any, Callable[..., Any]]:
    """Overload to rule, for AOTAutograd. ``numerics`` is the option of that name."""
    table: dict[Any, Callable[..., Any]] = {
        op: rule for op, rule in torch_decompositions().items() if (row := row_of(op)) is not None and row.becomes
    }
    table.update(dropout_decompositions(numerics))
    table.update(window_decompositions())
    if numerics == "fast":
        table.update(distance_decompositions())
        table.update(slope_decompositions())
    return MappingProxyType(table)
