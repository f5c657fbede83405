"""The private torch names that programs, and observing them, take (2.11 to 2.13)."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo.config
from torch._decomp import get_decompositions
from torch._higher_order_ops.map import map as each
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["NORMS_APART", "TorchDispatchMode", "each", "scan", "unbacked", "while_loop"]

_aten = torch.ops.aten

NORMS_APART: Any = get_decompositions(
    [
        _aten.native_batch_norm,
        _aten.native_batch_norm_backward,
        _aten.native_layer_norm,
        _aten.native_layer_norm_backward,
        _aten.native_group_norm,
        _aten.native_group_norm_backward,
    ]
)
"""Operation that normalises, or its gradient, to a function that computes the same by smaller operations."""


def unbacked() -> Any:
    """A context in which numbers and sizes that the data decides do not break graphs."""
    return torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
