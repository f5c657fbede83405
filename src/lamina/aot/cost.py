"""What it costs to save a value for the backward pass and what to compute it again.

The unit is the time to move one byte between memory and a core. On a CPU core that moves 10 GB/s one vector
instruction over eight floats is worth about a fifth of a byte an element, an exponential four, a tanh or erf twelve;
on a GPU arithmetic is a tenth of that beside its memory.
"""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from lamina.base.devices import kind_of
from lamina.base.symbolic.torch_private import hint
from lamina.base.torch_private import OpOverload, schema_of
from lamina.ops import Row, row_of, rows_named
from lamina.ops.row import POINTWISE, REDUCTION, SCAN, VIEW
from lamina.ops.thin_products import thin_dimension

__all__ = ["CostModel", "OpClass", "bytes_of", "class_of", "classify", "operation_name"]


@dataclass(frozen=True, slots=True)
class OpClass:
    """How an operation can be computed again.

    ``kind``: "view" (no work), "pointwise" (work on each element of the result), "reduction" (reads its whole input,
    ``work`` on each element of that), "symbol" (integers), "library" (never computed again), "random" (the same,
    and tied to its place in the program). ``work`` is in byte times an element, on a CPU.
    """

    kind: str
    work: float = 0.0


_LIBRARY, _RANDOM, _VIEW, _SYMBOL = OpClass("library"), OpClass("random"), OpClass("view"), OpClass("symbol")
_THIN_SUM, _THIN_REDUCTION = OpClass("pointwise", 3.2), OpClass("reduction", 3.2)
_POWER = OpClass("pointwise", 0.6)
_REDUCING = (REDUCTION, SCAN)
"""Kinds whose work is on each element of what they read."""
_SOFTMAXES = ("_softmax", "_log_softmax")
_ROW, _COLUMN = 16384, 32
"""Points of a row, and along another axis, that a GPU's kernel holds while it goes over them several times."""


def operation_name(node: Node) -> str:
    """The schema name of the operation: ``add`` for ``torch.ops.aten.add.Tensor``; else the printed target."""
    schema = schema_of(node.target)
    return str(node.target) if schema is None else str(schema.name).partition("::")[2]


def classify(node: Node) -> OpClass:
    """The class of a call or attribute; a thing without a row is a library call."""
    if node.op == "get_attr" or node.target is operator.getitem:
        return _VIEW
    if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)):
        return _SYMBOL
    target = node.target
    if not isinstance(target, OpOverload):
        return _LIBRARY
    if torch.Tag.nondeterministic_seeded in target.tags:
        return _RANDOM
    if schema_of(target).is_mutable:
        return _LIBRARY
    if (small := thin_dimension(node)) is not None:
        return _THIN_SUM if small == "inner" else _THIN_REDUCTION
    row = row_of(target)
    if row is None:
        return _LIBRARY
    found = _POWER if _is_product(node) else _class_of(row)
    return replace(found, kind="reduction") if row.kind == POINTWISE and _loses_dimensions(node) else found


def _is_product(node: Node) -> bool:
    """Whether a power is a few products: those to the exponents that kernels compute so in any case."""
    if node.target is not torch.ops.aten.pow.Tensor_Scalar:
        return False
    exponent = node.args[1]
    return isinstance(exponent, (int, float)) and -2 <= exponent <= 3 and exponent == int(exponent)


def _loses_dimensions(node: Node) -> bool:
    """Whether the result of a pointwise operation has fewer dimensions than an operand: losses may be summed."""
    value = node.meta.get("val")
    operands = (n.meta.get("val") for n in node.all_input_nodes)
    return isinstance(value, torch.Tensor) and any(
        isinstance(operand, torch.Tensor) and operand.dim() > value.dim() for operand in operands
    )


def class_of(name: str) -> OpClass:
    """The class of the operation with this name of ATen's; a thing without a row is a library call."""
    return next(map(_class_of, rows_named(name)), _LIBRARY)


@functools.cache  # rows of the table of operations
def _class_of(row: Row) -> OpClass:
    if row.kind == VIEW:
        return _VIEW
    if row.work is None or row.work == math.inf:
        return _LIBRARY
    return OpClass("reduction" if row.kind in _REDUCING else "pointwise", row.work)


def _elements(value: torch.Tensor) -> int:
    count = 1
    for size in value.shape:
        count *= hint(size)
    return count


def bytes_of(value: Any) -> int:
    """Bytes of a tensor, or of all tensors in a tuple; likely sizes where they are symbols, 8 for a scalar."""
    if isinstance(value, torch.Tensor):
        return _elements(value) * value.element_size()
    if isinstance(value, (tuple, list)):
        return sum(bytes_of(item) for item in value if item is not None)
    return 8


@dataclass(frozen=True, slots=True)
class CostModel:
    """Weights of one kind of device. ``arithmetic`` scales the work, ``hold`` is the price of a byte kept allocated.

    ``packs``: what is saved is packed in fewer bytes where that loses nothing.
    """

    arithmetic: float
    hold: float
    packs: bool

    @classmethod
    def of(cls, device: str) -> CostModel:
        """The model for a device type ("cpu", "cuda")."""
        kind = kind_of(device)
        return cls(1.0, 0.5, False) if kind.host else cls(0.1, 0.5, kind.grids)

    def recompute(self, node: Node, kind: OpClass) -> float:
        """Computing ``node`` again inside a fused backward kernel, its inputs being at hand."""
        return self._work(node, kind) + (2 * bytes_of(node.meta.get("val")) if self._stands_alone(node, kind) else 0.0)

    def _stands_alone(self, node: Node, kind: OpClass) -> bool:
        """Whether a kernel of its own computes ``node`` again, which writes it for those that read it.

        The gradient of a scan is a scan the other way round. That of a softmax is a sum along the same axis, in the
        kernel that computes the softmax if that can hold the axis; a CPU's caches hold any.
        """
        if kind.kind != "reduction" or not isinstance(node.meta.get("val"), torch.Tensor):
            return False
        row = row_of(node.target) if isinstance(node.target, OpOverload) else None
        if row is not None and row.kind == SCAN:
            return True
        if operation_name(node) not in _SOFTMAXES or self.arithmetic == 1.0:
            return False
        operand, dim = node.all_input_nodes[0].meta["val"], node.args[1]
        assert isinstance(dim, int)
        return operand.dim() > 0 and hint(operand.shape[dim]) > (_ROW if hint(operand.stride(dim)) == 1 else _COLUMN)

    def _work(self, node: Node, kind: OpClass) -> float:
        value = node.meta.get("val")
        if kind.kind == "pointwise":
            return self._elements_out(value) * kind.work * self.arithmetic
        if kind.kind == "reduction":
            read = [n.meta.get("val") for n in node.all_input_nodes]
            elements = sum(_elements(v) for v in read if isinstance(v, torch.Tensor))
            return sum(bytes_of(v) for v in read) + elements * kind.work * self.arithmetic
        return 0.0

    def save(self, size: int, *, written: bool, kept: bool) -> float:
        """Keeping ``size`` bytes: one read in the backward, a write and the memory unless those happen anyway."""
        return size * (1.0 + (0.0 if written else 1.0) + (0.0 if kept else self.hold))

    def _elements_out(self, value: Any) -> int:
        if isinstance(value, torch.Tensor):
            return _elements(value)
        return sum(_elements(v) for v in value if isinstance(v, torch.Tensor)) if isinstance(value, tuple | list) else 1
