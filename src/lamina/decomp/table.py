"""Which operations are taken apart before differentiation is recorded.

Few, on purpose: every operation here costs tracing time, and what stays whole is either lowered whole to a loop nest
(norms, softmax, losses, activations and their backward) or called in ATen (products, convolutions, attention, sorts).
Taken apart is only what has no lowering rule and no kernel of ATen worth calling, and where torch's own decomposition
gives eager's values, dtypes and errors; and dropout, whose mask is drawn again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import MappingProxyType
from typing import Any

from lamina.decomp.dropout import dropout_decompositions
from lamina.decomp.torch_private import torch_decompositions

__all__ = ["DECOMPOSED", "decompositions"]

DECOMPOSED: dict[str, str] = {
    "_weight_norm_interface": "a norm of the weight and a product",
    "block_diag": "zeros and concatenations",
    "mvlgamma": "a sum of logarithms of gamma functions",
}
"""Operations (all functional overloads) decomposed by torch's rules, and what they become."""


@cache
def decompositions(numerics: str = "fast") -> MappingProxyType[Any, Callable[..., Any]]:
    """Overload to rule, for AOTAutograd. ``numerics`` is the option of that name."""
    table: dict[Any, Callable[..., Any]] = {
        op: rule
        for op, rule in torch_decompositions().items()
        if op.namespace == "aten" and _name(op) in DECOMPOSED and _is_functional(op)
    }
    table.update(dropout_decompositions(numerics))
    return MappingProxyType(table)


def _name(op: Any) -> str:
    return str(op._schema.name).partition("::")[2]


def _is_functional(op: Any) -> bool:
    return not op._schema.is_mutable and "out" not in op._schema.overload_name
