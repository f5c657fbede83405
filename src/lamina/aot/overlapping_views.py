"""Views whose elements share memory, or look at what their operand does not: ``unfold``, ``as_strided``."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.aot import eager_reasons
from lamina.aot.gaps import LAID_OUT_AS_FIRST, has_gaps
from lamina.base.captured import example, memory
from lamina.base.overlap import may_overlap
from lamina.base.reasons import Reason
from lamina.base.source import operation_name, source_of
from lamina.base.symbolic.torch_private import contiguous, is_constant, is_fake, is_true

__all__ = ["look_elsewhere", "returns_windows"]


def returns_windows(gm: GraphModule) -> bool:
    """Whether elements of a result share memory, as windows of ``unfold`` or ``as_strided`` do.

    A gradient has a number of its own for each element: it does not fit into such strides. Those of sizes that are
    symbols still, not numbers by a guard, are not asked about: their gradients are contiguous.
    """
    returned: Any = gm.graph.output_node().args[0]
    for one in returned if isinstance(returned, (tuple, list)) else [returned]:
        value: Any = example(one)
        if is_fake(value) and all(map(is_constant, (*value.shape, *value.stride()))) and may_overlap(value):
            return True
    return False


def look_elsewhere(gm: GraphModule) -> Reason | None:
    """Why the captured graph is eager's to run: an ``as_strided`` of what kernels cannot show it, or None.

    That is a part of a tensor that has a gradient: eager's is that of the elements that the part has, others get none;
    where the result is made anew from the whole tensor, those have one as well. And it is memory with gaps that the
    graph makes: kernels make none.
    """
    gaps: set[Any] = set()
    for node in gm.graph.nodes:
        name, value = operation_name(node.target), example(node)
        if name in LAID_OUT_AS_FIRST and isinstance(value, torch.Tensor) and has_gaps(value):
            gaps.add(memory(value))
        if name == "as_strided" and node.args and isinstance(node.args[0], Node):
            part = example(node.args[0])
            if not isinstance(part, torch.Tensor):
                continue
            if (part.requires_grad and not _is_whole(part)) or memory(part) in gaps:
                return eager_reasons.LOOKS_ELSEWHERE(place=source_of(node))
    return None


def _is_whole(tensor: Any) -> bool:
    """Whether a tensor has each element of its memory, once."""
    if tensor.layout is not torch.strided or not contiguous(tensor):
        return False
    return is_true(tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes())
