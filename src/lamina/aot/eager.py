"""Regions that eager runs best: one kernel forward, and a gradient that is a view of the one that comes in."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from lamina.aot.cost import classify

__all__ = ["eager_is_best"]

_ONE_KERNEL = (torch.ops.aten.sum.default, torch.ops.aten.sum.dim_IntList)
"""Operations whose ATen kernel on a GPU reads memory as fast as it goes."""


def eager_is_best(joint: GraphModule) -> str:
    """Why the joint graph of a GPU had better be left to eager and its autograd engine, "" if it had not.

    A sum launches one kernel and expands the gradient without one. No compiled program launches fewer, and a Python
    ``autograd.Function`` alone takes the host as long as all of it.
    """
    computed = [n for n in joint.graph.nodes if n.op == "call_function" and classify(n).kind != "view"]
    if len(computed) == 1 and computed[0].target in _ONE_KERNEL:
        return "one sum, whose gradient is a view: eager launches as little, without a Python function to differentiate"
    return ""
