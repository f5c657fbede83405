"""Operations on lists of tensors: each becomes one nest per tensor, which the scheduler may join again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from torch.fx import Node

from lamina.lower.builder import Value, opmath
from lamina.lower.context import Lowering, Operand
from lamina.lower.formulas import formula_of
from lamina.lower.pointwise import (
    add_scaled,
    added_scaled,
    divided,
    lerped,
    multiplied,
    power,
    subtract_scaled,
)
from lamina.lower.reduction import over, reduced, reduced_dims
from lamina.lower.rules import rule
from lamina.lower.values import TensorValue
from lamina.lower.vector_norms import norm_into
from lamina.ops import OPERATIONS
from lamina.ops.element import largest, smallest

__all__: list[str] = []

Tensors: TypeAlias = Sequence[TensorValue]


def _column(value: Any, length: int) -> list[Operand]:
    """The operand of each tensor: its own element of a list, or the one value all share."""
    return list(value) if isinstance(value, list | tuple) else [value] * length


def _each(low: Lowering, node: Node, body: Callable[..., Value], first: Tensors, *rest: Any) -> list[TensorValue]:
    columns = [_column(r, len(first)) for r in rest]
    rows = enumerate(zip(first, *columns, strict=True))
    return [low.into(node, low.result(node, k), body, *row) for k, row in rows]


def _register_unary(op: str) -> None:
    @rule(op)
    def unary(low: Lowering, node: Node, tensors: Tensors) -> list[TensorValue]:
        return _each(low, node, formula_of(op), tensors)


for _row in OPERATIONS.values():
    if _row.name.startswith("_foreach_") and _row.formula is not None:
        _register_unary(_row.overload)


def _overloads(name: str, *overloads: str) -> list[str]:
    return [f"aten._foreach_{name}.{o}" for o in overloads]


def _register_binary(function: Callable[[Value, Value], Value], targets: Sequence[str]) -> None:
    @rule(*targets)
    def binary(low: Lowering, node: Node, tensors: Tensors, other: Any) -> list[TensorValue]:
        return _each(low, node, function, tensors, other)


_register_binary(multiplied, _overloads("mul", "Scalar", "List", "ScalarList", "Tensor"))
for _name, _function in (("maximum", largest), ("minimum", smallest), ("clamp_min", largest), ("clamp_max", smallest)):
    _register_binary(_function, _overloads(_name, "Scalar", "List", "ScalarList"))


@rule(*_overloads("div", "Scalar", "List", "ScalarList", "Tensor"))
def foreach_div(low: Lowering, node: Node, tensors: Tensors, other: Any) -> list[TensorValue]:
    return _each(low, node, divided, tensors, other)


@rule(*_overloads("add", "Scalar", "List", "ScalarList", "Tensor"))
def foreach_add(low: Lowering, node: Node, tensors: Tensors, other: Any, alpha: Operand = 1) -> list[TensorValue]:
    rows = enumerate(zip(tensors, _column(other, len(tensors)), strict=True))
    return [add_scaled(low, node, x, y, alpha, low.result(node, k)) for k, (x, y) in rows]


@rule(*_overloads("sub", "Scalar", "List", "ScalarList"))
def foreach_sub(low: Lowering, node: Node, tensors: Tensors, other: Any, alpha: Operand = 1) -> list[TensorValue]:
    outs = [low.result(node, k) for k in range(len(tensors))]
    rows = zip(outs, tensors, _column(other, len(tensors)), strict=True)
    return [subtract_scaled(low, node, x, y, alpha, out) for out, x, y in rows]


@rule(*_overloads("pow", "Scalar", "List", "ScalarList"))
def foreach_pow(low: Lowering, node: Node, tensors: Tensors, exponent: Any) -> list[TensorValue]:
    rows = enumerate(zip(tensors, _column(exponent, len(tensors)), strict=True))
    return [power(low, node, low.result(node, k), x, y) for k, (x, y) in rows]


@rule("aten._foreach_pow.ScalarAndTensor")
def foreach_pow_base(low: Lowering, node: Node, base: Operand, exponents: Tensors) -> list[TensorValue]:
    return [power(low, node, low.result(node, k), base, y) for k, y in enumerate(exponents)]


@rule(*_overloads("addcmul", "Scalar", "ScalarList"), *_overloads("addcdiv", "Scalar", "ScalarList"))
def foreach_addc(
    low: Lowering, node: Node, tensors: Tensors, first: Tensors, second: Tensors, value: Any = 1
) -> list[TensorValue]:
    on_cpu = low.buffers[tensors[0].buffer].on_cpu
    body = partial(added_scaled, divide="addcdiv" in str(node.target), on_cpu=on_cpu)
    return _each(low, node, body, tensors, first, second, value)


@rule(*_overloads("lerp", "List", "Scalar", "ScalarList"))
def foreach_lerp(low: Lowering, node: Node, tensors: Tensors, ends: Tensors, weight: Any) -> list[TensorValue]:
    return _each(low, node, lerped, tensors, ends, weight)


@rule("aten._foreach_norm.Scalar")
def foreach_norm(low: Lowering, node: Node, tensors: Tensors, order: Any = 2, dtype: Any = None) -> list[TensorValue]:
    return [norm_into(low, node, low.result(node, k), x, order, reduced_dims(x, None)) for k, x in enumerate(tensors)]


@rule("aten._foreach_max.default")
def foreach_max(low: Lowering, node: Node, tensors: Tensors) -> list[TensorValue]:
    return [
        reduced(
            low,
            node,
            low.result(node, k),
            x,
            reduced_dims(x, None),
            opmath(x.dtype),
            lambda b, v, d: over(b, "max", v, d),
        )
        for k, x in enumerate(tensors)
    ]


@rule("aten._foreach_copy.default", "aten._foreach_clone.default")
def foreach_copy(
    low: Lowering, node: Node, tensors: Tensors, sources: Tensors | None = None, *rest: Any, **options: Any
) -> list[TensorValue]:
    given = tensors if sources is None else sources
    return [low.into(node, low.result(node, k), lambda v: v, x, dtype=x.dtype) for k, x in enumerate(given)]


@rule("aten._foreach_zero.default")
def foreach_zero(low: Lowering, node: Node, tensors: Tensors) -> list[TensorValue]:
    return [low.into(node, low.result(node, k), lambda v: v, 0) for k, _ in enumerate(tensors)]
