"""Every private torch name that the graph rewrites use, with the versions it was read in (2.11 to 2.13)."""

from __future__ import annotations

import torch
from torch.fx import Graph, GraphModule
from torch.fx._lazy_graph_module import _LazyGraphModule

__all__ = ["graph_module", "has_half_products", "same_size", "tf32_convolutions"]


def graph_module(root: GraphModule, graph: Graph) -> GraphModule:
    """A graph module whose Python code is only generated when something runs or prints it."""
    result = _LazyGraphModule(root, graph)
    result.meta = root.meta
    return result


def same_size(a: int | torch.SymInt, b: int | torch.SymInt) -> bool:
    """Whether two sizes are the same expression. Adds no guard, so sizes that merely happen to agree are not."""
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return bool(a.node.expr == b.node.expr)
    return not isinstance(a, torch.SymInt) and not isinstance(b, torch.SymInt) and a == b


def has_half_products(dtype: torch.dtype) -> bool:
    """Whether this processor multiplies matrices of bfloat16 or float16 with instructions of its own."""
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def tf32_convolutions() -> bool:
    """Whether torch lets cuDNN round the operands of float32 convolutions to TF32."""
    return bool(torch.backends.cudnn.conv.fp32_precision == "tf32")  # type: ignore[attr-defined]
