"""Sums at places that collide, for results of half precision."""

from __future__ import annotations

import torch
from torch.fx import Node

from lamina.base.devices import kind_of
from lamina.lower.context import Lowering
from lamina.lower.sizes import expr_of
from lamina.lower.values import TensorValue

__all__ = ["rounded_sums", "sums_of_halves", "sums_of_halves_on_cpus"]


def sums_of_halves(low: Lowering, node: Node, x: TensorValue | None = None) -> TensorValue | None:
    """A float32 tensor for sums at colliding places, zeros or ``x``, if the node's result is one of half precision.

    As in eager's CUDA kernels, which sort the places and add up in float32; added one by one in half precision, many
    terms at one place would lose what they add. Eager's CPU kernels do add up in half precision.
    """
    return None if kind_of(node.meta["val"]).host else _sums(low, node, x)


def sums_of_halves_on_cpus(low: Lowering, node: Node, x: TensorValue) -> TensorValue | None:
    """The same for calls whose kernels add up in float32 on CPUs (``scatter_add``), and on GPUs in half precision."""
    return _sums(low, node, x) if kind_of(node.meta["val"]).host else None


def _sums(low: Lowering, node: Node, x: TensorValue | None) -> TensorValue | None:
    value = node.meta["val"]
    if value.dtype not in (torch.bfloat16, torch.float16):
        return None
    wide = low.buffer(f"{node.name}_sums", "float32", [expr_of(n) for n in value.shape], device=str(value.device))
    return low.into(node, wide, lambda v: v, 0.0 if x is None else x, dtype="float32")


def rounded_sums(low: Lowering, node: Node, sums: TensorValue) -> TensorValue:
    """The node's result from its sums."""
    return low.into(node, low.result(node), lambda v: v, sums, dtype="float32")
