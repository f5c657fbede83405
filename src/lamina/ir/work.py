"""What the steps of a plan move and compute: bytes and floating-point operations, for sizes as they are likely."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Any

from torch.fx import GraphModule

from lamina.base.dtypes import DTYPES
from lamina.base.symbolic.torch_private import hint
from lamina.ir.access import reads, views, writes
from lamina.ir.index import Expr, Size
from lamina.ir.loops import Buffer, Compute, LibraryCall, Nest, Reduce, SizeInput, axes_of, axes_of_values
from lamina.ir.plan import KernelCall, Plan, PlanStep

__all__ = ["Sizes", "bytes_of", "flops_of"]

_UNKNOWN = 8
"""Stands for a size that nobody knows; as in the host programs that dump writes."""
_PRODUCTS = re.compile(r"aten\.(?:addmm|mm|bmm|baddbmm)\.")


class Sizes:
    """Likely values of a plan's sizes, as the inputs of its graph had them when it was traced."""

    def __init__(self, plan: Plan, gm: GraphModule | None) -> None:
        self.values: dict[str, int] = {}
        inputs = [] if gm is None else gm.graph.find_nodes(op="placeholder")
        for given, node in zip(plan.inputs, inputs, strict=False):
            if isinstance(given, SizeInput) and "val" in node.meta:
                atoms = given.expr.atoms()
                if len(atoms) == 1 and isinstance(atom := next(iter(atoms)), Size):
                    self.values.setdefault(atom.name, hint(node.meta["val"]))

    def __call__(self, value: Expr | int) -> int:
        """A likely value of an expression of sizes."""
        if not isinstance(value, Expr):
            return int(value)
        if value.is_int:
            return value.const
        known = {a.name: self.values.get(a.name, _UNKNOWN) for a in value.atoms() if isinstance(a, Size)}
        return int(value.evaluate(known))

    def bytes(self, buffer: Buffer) -> int:
        """Bytes of a buffer's elements, those that lie at one place (strides of 0) counted once."""
        pairs = zip(buffer.shape, buffer.strides, strict=True)
        elements = prod(self(n) for n, stride in pairs if stride.terms or stride.const != 0)
        return elements * DTYPES[buffer.dtype].size


def bytes_of(step: PlanStep, buffers: Mapping[str, Buffer], sizes: Sizes) -> tuple[int, int]:
    """Bytes that a step reads and writes at least: each buffer, or window of a library call, once."""
    if isinstance(step, KernelCall):
        read = set().union(*(reads(nest) for nest in step.nests)) & set(step.buffers)
        return (
            sum(sizes.bytes(buffers[name]) for name in read),
            sum(sizes.bytes(buffers[name]) for name in step.writes),
        )
    windows = {(v.buffer, v.shape, v.strides, v.offset): v for v in views(step)}
    read_bytes = sum(
        prod(sizes(n) for n, stride in zip(v.shape, v.strides, strict=True) if stride.terms or stride.const != 0)
        * DTYPES[buffers[v.buffer].dtype].size
        for v in windows.values()
        if v.buffer in buffers
    )
    return read_bytes, sum(sizes.bytes(buffers[name]) for name in writes(step) if name in buffers)


def flops_of(step: PlanStep, sizes: Sizes) -> int:
    """Floating-point operations: of a kernel its equations at each point, of library calls those of matrix products."""
    if isinstance(step, KernelCall):
        return sum(_of_nest(nest, sizes) for nest in step.nests)
    return _of_product(step, sizes)


def _of_nest(nest: Nest, sizes: Sizes) -> int:
    varies = axes_of_values(nest)
    extents: dict[str, int] = {}
    for axis in nest.axes:
        extents[axis.name] = sizes(axis.extent)
    total = 0
    for eqn in nest.body:
        if isinstance(eqn, Compute | Reduce) and DTYPES[eqn.dtype].is_float:
            total += prod(extents.get(name, 1) for name in axes_of(eqn, varies))
    return total


def _of_product(call: LibraryCall, sizes: Sizes) -> int:
    matrices: list[Any] = [v for v in call.args if hasattr(v, "shape")]
    if not _PRODUCTS.match(call.op) or len(matrices) < 2:
        return 0
    first, second = matrices[-2], matrices[-1]
    if len(first.shape) < 2 or len(second.shape) < 2:
        return 0
    return 2 * prod(sizes(n) for n in first.shape) * sizes(second.shape[-1])
