"""What tracing noted on the nodes of a captured graph: the fake tensors they stand for and whose memory those are."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from lamina.aot.torch_private import is_fake

__all__ = ["example", "fakes", "memory"]


def example(node: Any) -> Any:
    """The value that tracing had for ``node``, None for an argument that is no node."""
    return node.meta.get("example_value") if isinstance(node, Node) else None


def fakes(node: Node) -> list[Any]:
    """The fake tensors among the results of ``node``."""
    value = example(node)
    return [one for one in (value if isinstance(value, (tuple, list)) else (value,)) if is_fake(one)]


def memory(value: Any) -> Any:
    """What tells the memory of a fake tensor from that of others; None for other values, and without strides."""
    return value.untyped_storage()._cdata if is_fake(value) and value.layout is torch.strided else None
