"""Functions as ATen graphs, for tools that look at single kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

__all__ = ["traced"]


def traced(function: Callable[..., Any], arguments: Sequence[torch.Tensor]) -> GraphModule:
    """The functional ATen graph of ``function``, which mutates nothing."""
    gm = make_fx(function, tracing_mode="fake")(*arguments)
    gm.graph.eliminate_dead_code()
    return gm
