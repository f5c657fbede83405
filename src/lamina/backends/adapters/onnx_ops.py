"""Which ATen calls ONNX says exactly: names of those that are one ONNX operation, and when others are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from lamina.backends.api import tensors_of

__all__ = ["BINARY", "REFUSALS", "UNARY", "args_of", "argument", "dtype_of", "rank_of"]

aten = torch.ops.aten


def dtype_of(node: Node) -> torch.dtype:
    """The dtype of a call's value."""
    dtype: torch.dtype = node.meta["val"].dtype
    return dtype


def argument(node: Node, position: int, name: str, default: Any = None) -> Any:
    """An argument given by place or by name."""
    return args_of(node)[position] if len(args_of(node)) > position else node.kwargs.get(name, default)


def args_of(node: Node) -> list[Any]:
    """The positional arguments of a call."""
    return list(node.args)


def rank_of(node: Any) -> int:
    """How many dimensions a node's value has."""
    return int(node.meta["val"].dim())


UNARY: dict[Any, str] = {
    aten.neg.default: "Neg",
    aten.abs.default: "Abs",
    aten.exp.default: "Exp",
    aten.log.default: "Log",
    aten.sqrt.default: "Sqrt",
    aten.reciprocal.default: "Reciprocal",
    aten.sin.default: "Sin",
    aten.cos.default: "Cos",
    aten.tanh.default: "Tanh",
    aten.sigmoid.default: "Sigmoid",
    aten.erf.default: "Erf",
    aten.floor.default: "Floor",
    aten.ceil.default: "Ceil",
    aten.clone.default: "Identity",
    aten.alias.default: "Identity",
    aten.detach.default: "Identity",
    aten.logical_not.default: "Not",
    aten.bitwise_not.default: "Not",
}


BINARY: dict[Any, str] = {
    aten.add.Tensor: "Add",
    aten.sub.Tensor: "Sub",
    aten.mul.Tensor: "Mul",
    aten.div.Tensor: "Div",
    aten.pow.Tensor_Scalar: "Pow",
    aten.pow.Tensor_Tensor: "Pow",
    aten.logical_and.default: "And",
    aten.logical_or.default: "Or",
    aten.bitwise_and.Tensor: "And",
    aten.bitwise_or.Tensor: "Or",
}


def _refuse_integers(node: Node) -> bool | str:
    return True if dtype_of(node).is_floating_point else f"{node.target} of integers"


def _refuse_cast(node: Node) -> bool | str:
    source: Any = args_of(node)[0]
    there, value = source.meta["val"].dtype, node.meta["val"]
    if set(node.kwargs) - {"dtype"}:
        return "a copy to another device or layout"
    if there.is_floating_point and not value.dtype.is_floating_point:
        return "a float rounded to an integer"
    return True


def _refuse_negative_bounds(node: Node) -> bool | str:
    bounds = [argument(node, k, w) for k, w in ((2, "start"), (3, "end"))]
    return "a slice counted from the end" if any(b is not None and b < 0 for b in bounds) else True


def _refuse_transposed(node: Node) -> bool | str:
    source: Any = args_of(node)[0]
    batched = source.meta["val"].dim() == args_of(node)[1].meta["val"].dim()
    return "a transposed convolution" if args_of(node)[6] else batched or "a convolution without batch"


def _refuse_boolean_arithmetic(node: Node) -> bool | str:
    return f"{node.target} of booleans" if dtype_of(node) == torch.bool else True


def _refuse_non_boolean(node: Node) -> bool | str:
    operands = tensors_of(*node.all_input_nodes)
    return True if all(t.dtype == torch.bool for t in operands) else f"{node.target} of numbers"


REFUSALS: dict[Any, Callable[[Node], bool | str]] = {
    **dict.fromkeys(
        (op for op, kind in UNARY.items() if kind not in ("Identity", "Not", "Neg", "Abs")), _refuse_integers
    ),
    **dict.fromkeys((op for op, kind in BINARY.items() if kind in ("Add", "Sub", "Mul")), _refuse_boolean_arithmetic),
    **dict.fromkeys((op for op, kind in BINARY.items() if kind in ("Div", "Pow")), _refuse_integers),
    **dict.fromkeys((op for op, kind in (BINARY | UNARY).items() if kind in ("And", "Or", "Not")), _refuse_non_boolean),
    aten.rsub.Scalar: _refuse_boolean_arithmetic,
    aten.rsub.Tensor: _refuse_boolean_arithmetic,
    aten._to_copy.default: _refuse_cast,
    aten.slice.Tensor: _refuse_negative_bounds,
    aten.convolution.default: _refuse_transposed,
    aten.rsqrt.default: _refuse_integers,
    aten.mm.default: _refuse_integers,
    aten.bmm.default: _refuse_integers,
    aten.addmm.default: _refuse_integers,
    aten.sum.default: _refuse_integers,
    aten.sum.dim_IntList: _refuse_integers,
}
