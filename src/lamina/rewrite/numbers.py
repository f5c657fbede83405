"""Chains of multiplications by numbers as one: ``x * 2 * 3 + 0`` is ``x * 6 + 0``.

Kernels would compute the chain at hardly any cost; what this saves is in graphs that go to other backends, and in
library calls between. The last term stays where it can be seen: -0.0 + 0 is 0.0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from lamina.base.decision import Decision
from lamina.base.fx.torch_private import graph_module
from lamina.base.source import source_of
from lamina.rewrite.reasons import PASS_CHANGED

__all__ = ["fold_factors"]

aten = torch.ops.aten

_BY_NUMBER = (aten.mul.Tensor, aten.mul.Scalar)


def fold_factors(gm: GraphModule, decisions: list[Decision] | None = None) -> GraphModule:
    """Multiply numbers that a value is multiplied by in a row, in place; ``gm`` itself if there is no such row.

    Floating-point factors are joined where the product overflows, and becomes subnormal, only if the steps do:
    both are of magnitude 1 or more, or both 1 or less. Integers wrap around either way.
    """
    factors: dict[Node, tuple[Node, int | float]] = {}
    for node in gm.graph.nodes:
        found = _factor(node)
        if found is None:
            continue
        source, number = found
        if source in factors and len(source.users) == 1:
            joined = _joined(node.meta["val"], factors[source][1], number)
            if joined is not None:
                if decisions is not None:
                    reason = PASS_CHANGED(what=f"factors {factors[source][1]} and {number} are {joined}")
                    decisions.append(Decision("rewrite", ("fold_factors", source_of(node)), True, reason))
                factors[node] = factors[source][0], joined
                continue
        factors[node] = found
    if all(source is node.args[0] for node, (source, _) in factors.items()):
        return gm
    for node, (source, number) in factors.items():
        node.args = (source, number)
    gm.graph.eliminate_dead_code()
    return graph_module(gm, gm.graph)


def _factor(node: Node) -> tuple[Node, int | float] | None:
    """What a multiplication by a number multiplies, in its own dtype, and the number."""
    if node.op != "call_function" or node.target not in _BY_NUMBER or node.kwargs or len(node.args) != 2:
        return None
    source, number = node.args
    if not isinstance(source, Node) or type(number) not in (int, float):
        return None
    value, before = node.meta.get("val"), source.meta.get("val")
    if not isinstance(value, Tensor) or not isinstance(before, Tensor) or before.dtype != value.dtype:
        return None
    return source, number  # type: ignore[return-value]


def _joined(value: Tensor, first: Any, second: Any) -> int | float | None:
    """One number for two; None where the result could be another."""
    if value.dtype == torch.bool or value.is_complex():
        return None
    if not value.is_floating_point():
        bits = 8 * value.element_size()
        product = int(first) * int(second) & (1 << bits) - 1
        signed = value.dtype.is_signed and product >= 1 << (bits - 1)
        return product - (1 << bits) if signed else product
    joined, sizes = float(first) * float(second), (abs(first), abs(second))
    widest = torch.finfo(torch.float64 if value.dtype == torch.float64 else torch.float32)
    if not abs(joined) <= widest.max or not (min(sizes) >= 1 or 0 < max(sizes) <= 1):
        return None  # kernels hold the number in the dtype they compute in
    return joined if abs(joined) >= torch.finfo(torch.float32).tiny else None
