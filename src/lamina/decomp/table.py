"""Which operations are taken apart before differentiation is recorded, family by family, and why.

Few, on purpose: every operation here costs tracing time, and what stays whole is either lowered whole to a loop nest
(norms, softmax, losses, activations and their backward) or called in ATen (products, convolutions, attention, sorts).
Taken apart is only what is neither, and where torch's own decomposition gives eager's values, dtypes and errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from lamina.decomp.dropout import dropout_decompositions
from lamina.decomp.torch_private import torch_decompositions

__all__ = ["FAMILIES", "Family", "decompositions"]


@dataclass(frozen=True, slots=True)
class Family:
    """Operations ("name" for all functional overloads) decomposed by torch's rules for one ``reason``."""

    name: str
    reason: str
    operations: tuple[str, ...]


def _family(name: str, reason: str, operations: str) -> Family:
    return Family(name, reason, tuple(operations.split()))


FAMILIES = (
    _family(
        "activations",
        "a few elementwise operations each, rare enough that a rule of their own would not pay",
        """celu elu_backward glu glu_backward hardshrink hardsigmoid hardsigmoid_backward hardswish
        hardswish_backward hardtanh_backward leaky_relu_backward log_sigmoid_backward log_sigmoid_forward logit
        logit_backward mish mish_backward _prelu_kernel _prelu_kernel_backward softplus softplus_backward softshrink""",
    ),
    _family(
        "arithmetic",
        "sums and products under another name",
        """addcdiv addcmul addr deg2rad frac heaviside isneginf isposinf lerp logaddexp logaddexp2 nan_to_num
        rad2deg rsub sinc special_entr special_log_ndtr special_xlog1py xlogy""",
    ),
    _family(
        "gradients of views",
        "a zero tensor with one region written, which is a select over an index",
        "diagonal_backward select_backward slice_backward",
    ),
    _family(
        "arrangement",
        "concatenation, indexing and masks under another name",
        """block_diag channel_shuffle diag_embed pixel_shuffle pixel_unshuffle
        select_scatter stack tril triu""",
    ),
    _family(
        "creation",
        "one fill",
        "new_full new_ones new_zeros ones ones_like zeros zeros_like fill zero",
    ),
    _family(
        "reductions",
        "a reduction with elementwise work on either side",
        "_fused_rms_norm _fused_rms_norm_backward _safe_softmax count_nonzero nansum _weight_norm_interface",
    ),
)


@cache
def decompositions(numerics: str = "fast") -> MappingProxyType[Any, Callable[..., Any]]:
    """Overload to rule, for AOTAutograd. ``numerics`` is the option of that name."""
    wanted = {name for family in FAMILIES for name in family.operations}
    table: dict[Any, Callable[..., Any]] = {
        op: rule
        for op, rule in torch_decompositions().items()
        if op.namespace == "aten" and _name(op) in wanted and _is_functional(op)
    }
    if numerics == "fast":
        table.update(dropout_decompositions())
    return MappingProxyType(table)


def _name(op: Any) -> str:
    return str(op._schema.name).partition("::")[2]


def _is_functional(op: Any) -> bool:
    return not op._schema.is_mutable and "out" not in op._schema.overload_name
