"""The private torch names that observing a program takes (2.11 to 2.13)."""

from __future__ import annotations

from typing import Any

import torch._dynamo.config
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["TorchDispatchMode", "unbacked"]


def unbacked() -> Any:
    """A context in which numbers and sizes that the data decides do not break graphs."""
    return torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
