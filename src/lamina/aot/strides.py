"""Captured calls whose results tracing lays out in another way than eager does."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.base.source import operation_name, source_of

__all__ = ["misplaced_result"]


def misplaced_result(gm: GraphModule) -> str:
    """Why the captured graph is eager's to run: a result whose strides tracing or kernels get wrong, or "".

    Memory with gaps is made by ``empty_strided`` alone; kernels make none. On a CPU a batch norm's result is
    contiguous, or has channels last where its operand has; traced it has whatever strides the operand has.
    """
    for node in gm.graph.nodes:
        if operation_name(node.target) in ("empty_strided", "new_empty_strided") and not _dense(node):
            return f"{source_of(node)} makes memory with gaps"
        if node.op == "call_function" and operation_name(node.target) == "batch_norm" and node.args:
            image = node.args[0].meta.get("example_value") if isinstance(node.args[0], Node) else None
            if isinstance(image, torch.Tensor) and image.device.type == "cpu" and not _plain(image):
                return f"{source_of(node)} has other strides than tracing tells"
    return ""


def _dense(node: Node) -> bool:
    value: Any = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and bool(value.is_contiguous())


def _plain(image: Any) -> bool:
    if image.is_contiguous():
        return True
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(image.dim())
    return last is not None and bool(image.is_contiguous(memory_format=last))
