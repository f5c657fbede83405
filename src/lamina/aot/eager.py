"""Regions that eager runs best: one small kernel forward, and a gradient that is a view of the one that comes in."""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from lamina.aot import eager_reasons
from lamina.aot.cost import bytes_of, classify
from lamina.base.reasons import Reason

__all__ = ["eager_is_best"]

_ONE_KERNEL = (torch.ops.aten.sum.default, torch.ops.aten.sum.dim_IntList)
"""Operations whose ATen kernel on a GPU is one launch."""
_HIDES_THE_HOST = 128 << 20
"""Bytes whose reading takes a GPU as long as a Python ``autograd.Function`` adds to the host's work, about 50 us.

From there on the host's part is hidden behind the kernel's, and the kernel counts: on an H100 ATen reads 256 MiB in 105
to 114 us, Lamina in 97 to 103, and where the kept elements are contiguous ATen wants up to three quarters of the
operand as partial sums besides.
"""


def eager_is_best(joint: GraphModule) -> Reason | None:
    """Why the joint graph of a GPU had better be left to eager and its autograd engine, ``None`` if it had not.

    A sum launches one kernel and expands the gradient without one. No compiled program launches fewer, and a Python
    ``autograd.Function`` alone takes the host as long as all of it; a large sum takes the GPU longer than that.
    """
    computed = [n for n in joint.graph.nodes if n.op == "call_function" and classify(n).kind != "view"]
    if len(computed) != 1 or computed[0].target not in _ONE_KERNEL:
        return None
    read = bytes_of(computed[0].args[0].meta["val"])
    if read >= _HIDES_THE_HOST:
        return None
    return eager_reasons.ONE_SUM(bytes=read)
