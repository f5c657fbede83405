"""Canonical forms of elementwise arithmetic and of matrix products.

Differences and quotients are sums and products, roots and reciprocals powers.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Node

from lamina.rewrite.arguments import argument
from lamina.rewrite.terms import ADD, MUL, Form, Number, Term, form_of
from lamina.rewrite.transparent import resolve

__all__ = ["FORMS"]

aten = torch.ops.aten

FORMS: dict[Any, Form] = {}
"""By operation. Filled when this file is imported, then only read."""


def _operand(value: Any, inverse: bool = False) -> Any:
    """An operand of a sum or product: a node, or a number."""
    return Number(value, inverse) if type(value) in (int, float) else value


_DIFFERENCES = (aten.sub.Tensor, aten.sub.Scalar, aten.subtract.Tensor, aten.subtract.Scalar)


@form_of(FORMS, aten.add.Tensor, aten.add.Scalar, *_DIFFERENCES)
def _sum(node: Node) -> Term | None:
    a, b = node.args[:2]
    alpha = argument(node, 2, "alpha", 1)
    if type(alpha) not in (int, float):
        return None
    if node.target in _DIFFERENCES:
        if type(b) in (int, float):
            return Term(ADD, (_operand(a), Number(b * alpha, inverse=True)))
        alpha = -alpha
    if alpha == 1:
        return Term(ADD, (_operand(a), _operand(b)))
    if type(b) in (int, float):
        return Term(ADD, (_operand(a), Number(b * alpha)))
    return Term(ADD, (_operand(a), Term(MUL, (b, Number(alpha)))))


@form_of(FORMS, aten.rsub.Scalar, aten.rsub.Tensor)
def _reversed_difference(node: Node) -> Term | None:
    a, b = node.args[:2]
    if argument(node, 2, "alpha", 1) != 1:
        return None
    return Term(ADD, (_operand(b), Term(MUL, (a, Number(-1)))))


@form_of(FORMS, aten.neg.default, aten.negative.default)
def _negation(node: Node) -> Term:
    return Term(MUL, (node.args[0], Number(-1)))


@form_of(FORMS, aten.mul.Tensor, aten.mul.Scalar, aten.multiply.Tensor, aten.multiply.Scalar)
def _product(node: Node) -> Term:
    return Term(MUL, (_operand(node.args[0]), _operand(node.args[1])))


@form_of(FORMS, aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor, aten.divide.Tensor, aten.divide.Scalar)
def _quotient(node: Node) -> Term | None:
    a, b = node.args[:2]
    if type(b) in (int, float):
        return Term(MUL, (_operand(a), Number(b, inverse=True)))
    if isinstance(b, Node):
        divisor = _power(b, -1)
        return Term(MUL, (_operand(a), divisor))
    return None


def _power(base: Any, exponent: Any) -> Term:
    """``base`` to a constant power: a product for small whole exponents, one power for a root's reciprocal."""
    if exponent == -1 and isinstance(base, Node) and base.op == "call_function":
        root, passed = resolve(base)
        inner = FORMS[root.target](root) if root.target in _ROOTS else None
        if inner is not None and inner.op == "pow" and inner.args[1] in (0.5, -0.5):
            return Term("pow", (inner.args[0], -inner.args[1]), (*passed, root, *inner.through))
    if exponent in (2, 3, 4):
        return Term(MUL, (base,) * int(exponent))
    return Term("pow", (base, float(exponent)))


_ROOTS = (aten.sqrt.default, aten.rsqrt.default, aten.pow.Tensor_Scalar)


@form_of(FORMS, aten.sqrt.default)
def _root(node: Node) -> Term:
    return _power(node.args[0], 0.5)


@form_of(FORMS, aten.rsqrt.default)
def _reciprocal_root(node: Node) -> Term:
    return _power(node.args[0], -0.5)


@form_of(FORMS, aten.reciprocal.default)
def _reciprocal(node: Node) -> Term:
    return _power(node.args[0], -1)


@form_of(FORMS, aten.square.default)
def _square(node: Node) -> Term:
    return _power(node.args[0], 2)


@form_of(FORMS, aten.pow.Tensor_Scalar)
def _constant_power(node: Node) -> Term | None:
    base, exponent = node.args[:2]
    if type(exponent) not in (int, float) or (isinstance(exponent, float) and not math.isfinite(exponent)):
        return None
    return _power(base, exponent)


@form_of(FORMS, aten.matmul.default, aten.bmm.default, aten.mm.default)
def _matrix_product(node: Node) -> Term:
    return Term("matmul", tuple(node.args[:2]))


@form_of(FORMS, aten.where.ScalarSelf)
def _where_number(node: Node) -> Term:
    return Term(aten.masked_fill.Scalar, (node.args[2], node.args[0], node.args[1]))


@form_of(FORMS, aten.clamp_min.default)
def _clamp_min(node: Node) -> Term:
    return Term(aten.clamp.default, (node.args[0], node.args[1], None))
