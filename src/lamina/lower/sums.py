"""Sums at places that collide, for results of half precision."""

from __future__ import annotations

import torch
from torch.fx import Node

from lamina.base.devices import kind_of
from lamina.ir.index import Expr
from lamina.lower.context import Lowering
from lamina.lower.sizes import expr_of
from lamina.lower.values import TensorValue

__all__ = ["rounded_sums", "sums_of_additions", "sums_of_halves"]


def sums_of_halves(low: Lowering, node: Node, x: TensorValue | None = None) -> TensorValue | None:
    """A float32 tensor for sums at colliding places, zeros or ``x``, if the node's result is one of half precision.

    As in eager's CUDA kernels, which sort the places and add up in float32; added one by one in half precision, many
    terms at one place would lose what they add. Eager's CPU kernels do add up in half precision.
    """
    return None if kind_of(node.meta["val"]).host else _sums(low, node, x)


def sums_of_additions(
    low: Lowering, node: Node, x: TensorValue, additions: Expr, on_cpus: bool = True
) -> TensorValue | None:
    """The same for calls that eager's CUDA kernels add up in half precision (``scatter_add``), and ``on_cpus`` those
    that its CPU kernels add up in float32.

    On GPUs where there are many ``additions``: hardware does not add numbers of half precision, so that each is read,
    added to and compared until nobody else came between (H200, 5,300 at one place of each of 128: 77 ms). Where each
    has more than four elements, two passes over all of them would take longer.
    """
    value = node.meta["val"]
    if kind_of(value).host:
        return _sums(low, node, x) if on_cpus else None
    each = x.numel() - 4 * additions
    many = (each.is_int and each.const <= 0) or not each.is_int
    return _sums(low, node, x) if many else None


def _sums(low: Lowering, node: Node, x: TensorValue | None) -> TensorValue | None:
    value = node.meta["val"]
    if value.dtype not in (torch.bfloat16, torch.float16):
        return None
    wide = low.buffer(f"{node.name}_sums", "float32", [expr_of(n) for n in value.shape], device=str(value.device))
    return low.into(node, wide, lambda v: v, 0.0 if x is None else x, dtype="float32")


def rounded_sums(low: Lowering, node: Node, sums: TensorValue) -> TensorValue:
    """The node's result from its sums."""
    return low.into(node, low.result(node), lambda v: v, sums, dtype="float32")
