"""Every private torch name that these tests use."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch._dynamo.config as dynamo_config
from torch._dynamo.decorators import mark_unbacked
from torch._higher_order_ops.map import map as each
from torch._higher_order_ops.out_dtype import out_dtype
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils._pytree import tree_leaves

__all__ = [
    "check",
    "convolution_algorithm",
    "each",
    "mark_unbacked",
    "out_dtype",
    "scan",
    "sizes_from_data_captured",
    "tree_leaves",
    "while_loop",
]

check = torch._check
"""What a program asserts of its numbers."""


def convolution_algorithm(*arguments: Any, **named: Any) -> object:
    """What torch chooses for a convolution, asked as its tracing asks: torch 2.11 gives the operands by their names."""
    return torch._C._select_conv_backend(*arguments, **named)


def sizes_from_data_captured() -> AbstractContextManager[Any]:
    """Inside, Dynamo captures numbers and sizes that come from data instead of breaking the graph."""
    found: AbstractContextManager[Any] = dynamo_config.patch(
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
    )
    return found
