"""The private torch names that programs, and observing them, take (2.11 to 2.13)."""

from __future__ import annotations

from typing import Any

import torch._dynamo.config
from torch._higher_order_ops.map import map as each
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["TorchDispatchMode", "each", "scan", "unbacked", "while_loop"]


def unbacked() -> Any:
    """A context in which numbers and sizes that the data decides do not break graphs."""
    return torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
