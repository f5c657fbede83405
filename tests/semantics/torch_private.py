"""Every private torch name that these tests use."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch._dynamo.config as dynamo_config
from torch._dynamo.decorators import mark_unbacked
from torch.utils._pytree import tree_leaves

__all__ = ["check", "mark_unbacked", "sizes_from_data_captured", "tree_leaves"]

check = torch._check
"""What a program asserts of its numbers."""


def sizes_from_data_captured() -> AbstractContextManager[Any]:
    """Inside, Dynamo captures numbers and sizes that come from data instead of breaking the graph."""
    found: AbstractContextManager[Any] = dynamo_config.patch(
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
    )
    return found
