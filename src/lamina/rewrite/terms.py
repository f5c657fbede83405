"""What a node computes, in one form for all its spellings.

``x / 2``, ``x * 0.5`` and ``torch.div(x, 2)`` are one product, ``x @ y``, ``torch.bmm`` and ``torch.mm`` one matrix
product, ``x.mT`` and ``x.transpose(2, 3)`` one transposition of the last two dimensions: dimensions count from the last
one, so that a term means the same at any rank. Terms only serve comparison; graphs keep their own operations.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from lamina.base.torch_private import OpOverload
from lamina.rewrite.torch_private import same_size

__all__ = ["ADD", "MUL", "Number", "Term", "is_tensor", "key_of", "resolve", "term_of"]

aten = torch.ops.aten

ADD, MUL = "add", "mul"
"""The operations whose operands may be in any order and nested in any way."""

COMMUTATIVE = frozenset(
    {
        aten.maximum.default,
        aten.minimum.default,
        aten.logical_and.default,
        aten.logical_or.default,
        aten.bitwise_and.Tensor,
        aten.bitwise_or.Tensor,
        aten.eq.Tensor,
        aten.ne.Tensor,
    }
)
"""Operations of two operands in any order."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number among the operands of a sum or product; ``inverse`` says that it divides or is subtracted."""

    value: Any
    inverse: bool = False


@dataclass(frozen=True, slots=True)
class Term:
    """An operation and its arguments: nodes, terms within the term, and constants; for sums and products, operands.

    ``through`` are nodes, besides the one the term was made for, that it covers.
    """

    op: Hashable
    args: tuple[Any, ...]
    through: tuple[Node, ...] = ()


Canon = Callable[[Node], Term | None]
_CANON: dict[Any, Canon] = {}


def _canon(*targets: Any) -> Callable[[Canon], Canon]:
    def enter(function: Canon) -> Canon:
        for target in targets:
            _CANON[target] = function
        return function

    return enter


def is_tensor(value: Any) -> bool:
    """Whether ``value`` is a node that computes one tensor."""
    return isinstance(value, Node) and isinstance(value.meta.get("val"), torch.Tensor)


_SYNONYMS: dict[Any, Any] = {
    aten.special_expit.default: aten.sigmoid.default,
    aten.special_erf.default: aten.erf.default,
    aten.special_erfc.default: aten.erfc.default,
    aten.special_exp2.default: aten.exp2.default,
    aten.special_expm1.default: aten.expm1.default,
    aten.special_log1p.default: aten.log1p.default,
    aten.absolute.default: aten.abs.default,
    aten.clip.default: aten.clamp.default,
    aten.greater.Tensor: aten.gt.Tensor,
    aten.less.Tensor: aten.lt.Tensor,
}
"""Operations that torch has under two names."""


def term_of(node: Node) -> Term:
    """The term of a call."""
    rule = _CANON.get(node.target)
    found = None if rule is None else rule(node)
    return _plain(node) if found is None else found


def key_of(node: Node) -> Hashable:
    """The operation of the node's term."""
    return term_of(node).op if node.target in _CANON else _SYNONYMS.get(node.target, node.target)


def resolve(node: Node) -> tuple[Node, tuple[Node, ...]]:
    """The first node that is more than its operand's values again, and the nodes passed on the way."""
    passed: tuple[Node, ...] = ()
    while node.op == "call_function" and node.target in _TRANSPARENT and _TRANSPARENT[node.target](node):
        passed = (*passed, node)
        node = node.args[0]  # type: ignore[assignment]
    return node, passed


def _rank(node: Any) -> int:
    return int(node.meta["val"].dim())


def _argument(node: Node, place: int, name: str, default: Any = None) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


_DIMENSIONS = {"dim", "dim0", "dim1", "dims", "start_dim", "end_dim", "axis"}
_NEW_DIMENSION = (aten.unsqueeze.default, aten.stack.default)


def _plain(node: Node) -> Term:
    """The call as it is, with every argument in its place, defaults written out, and dimensions from the last."""
    target = node.target
    if not isinstance(target, OpOverload):
        return Term(target, (_plain_value(node.args), _plain_value(node.kwargs)))
    first = next((a for a in node.all_input_nodes if is_tensor(a)), None)
    rank = 0 if first is None else _rank(first) + (target in _NEW_DIMENSION)
    args: list[Any] = []
    for place, parameter in enumerate(target._schema.arguments):
        if place < len(node.args):
            value = node.args[place]
        elif parameter.name in node.kwargs:
            value = node.kwargs[parameter.name]
        else:
            value = parameter.default_value
        if parameter.name in _DIMENSIONS:
            value = _from_last(value, rank)
        args.append(_plain_value(value))
    return Term(_SYNONYMS.get(target, target), tuple(args))


def _plain_value(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_plain_value(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, _plain_value(v)) for k, v in sorted(value.items()))
    return value


def _from_last(value: Any, rank: int) -> Any:
    if type(value) is int:
        return value - rank if value >= 0 else value
    if isinstance(value, (list, tuple)) and all(type(v) is int for v in value):
        return [_from_last(v, rank) for v in value]
    return value


def _operand(value: Any, inverse: bool = False) -> Any:
    """An operand of a sum or product: a node, or a number."""
    return Number(value, inverse) if type(value) in (int, float) else value


_DIFFERENCES = (aten.sub.Tensor, aten.sub.Scalar, aten.subtract.Tensor, aten.subtract.Scalar)


@_canon(aten.add.Tensor, aten.add.Scalar, *_DIFFERENCES)
def _sum(node: Node) -> Term | None:
    a, b = node.args[:2]
    alpha = _argument(node, 2, "alpha", 1)
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


@_canon(aten.rsub.Scalar, aten.rsub.Tensor)
def _reversed_difference(node: Node) -> Term | None:
    a, b = node.args[:2]
    if _argument(node, 2, "alpha", 1) != 1:
        return None
    return Term(ADD, (_operand(b), Term(MUL, (a, Number(-1)))))


@_canon(aten.neg.default, aten.negative.default)
def _negation(node: Node) -> Term:
    return Term(MUL, (node.args[0], Number(-1)))


@_canon(aten.mul.Tensor, aten.mul.Scalar, aten.multiply.Tensor, aten.multiply.Scalar)
def _product(node: Node) -> Term:
    return Term(MUL, (_operand(node.args[0]), _operand(node.args[1])))


@_canon(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor, aten.divide.Tensor, aten.divide.Scalar)
def _quotient(node: Node) -> Term:
    a, b = node.args[:2]
    if type(b) in (int, float):
        return Term(MUL, (_operand(a), Number(b, inverse=True)))
    if isinstance(b, Node):
        divisor = _power(b, -1)
        return Term(MUL, (_operand(a), divisor))
    return _plain(node)


def _power(base: Any, exponent: Any) -> Term:
    """``base`` to a constant power: a product for small whole exponents, one power for a root's reciprocal."""
    if exponent == -1 and isinstance(base, Node) and base.op == "call_function":
        root, passed = resolve(base)
        inner = _CANON[root.target](root) if root.target in _ROOTS else None
        if inner is not None and inner.op == "pow" and inner.args[1] in (0.5, -0.5):
            return Term("pow", (inner.args[0], -inner.args[1]), (*passed, root, *inner.through))
    if exponent in (2, 3, 4):
        return Term(MUL, (base,) * int(exponent))
    return Term("pow", (base, float(exponent)))


_ROOTS = (aten.sqrt.default, aten.rsqrt.default, aten.pow.Tensor_Scalar)


@_canon(aten.sqrt.default)
def _root(node: Node) -> Term:
    return _power(node.args[0], 0.5)


@_canon(aten.rsqrt.default)
def _reciprocal_root(node: Node) -> Term:
    return _power(node.args[0], -0.5)


@_canon(aten.reciprocal.default)
def _reciprocal(node: Node) -> Term:
    return _power(node.args[0], -1)


@_canon(aten.square.default)
def _square(node: Node) -> Term:
    return _power(node.args[0], 2)


@_canon(aten.pow.Tensor_Scalar)
def _constant_power(node: Node) -> Term | None:
    base, exponent = node.args[:2]
    if type(exponent) not in (int, float) or (isinstance(exponent, float) and not math.isfinite(exponent)):
        return None
    return _power(base, exponent)


@_canon(aten.matmul.default, aten.bmm.default, aten.mm.default)
def _matrix_product(node: Node) -> Term:
    return Term("matmul", tuple(node.args[:2]))


@_canon(aten.transpose.int, aten.swapaxes.default, aten.swapdims.default)
def _transposition(node: Node) -> Term:
    rank = _rank(node.args[0])
    pair = sorted(_from_last(d, rank) for d in node.args[1:3])
    return Term("transpose", (node.args[0], *pair))


@_canon(aten.mT.default, aten.t.default, aten.numpy_T.default)
def _last_two(node: Node) -> Term | None:
    return Term("transpose", (node.args[0], -2, -1)) if node.target is aten.mT.default or _rank(node) == 2 else None


@_canon(aten.permute.default)
def _permutation(node: Node) -> Term:
    rank = _rank(node)
    dims = [_from_last(d, rank) for d in node.args[1]]  # type: ignore[union-attr]
    moved = [d - rank for d in range(rank) if dims[d] != d - rank]
    if len(moved) == 2:
        return Term("transpose", (node.args[0], *moved))
    return Term("permute", (node.args[0], tuple(dims)))


@_canon(
    aten.view.default,
    aten.reshape.default,
    aten._unsafe_view.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.view_as.default,
    aten.reshape_as.default,
)
def _reshaped(node: Node) -> Term:
    return Term("reshape", (node.args[0], tuple(node.meta["val"].shape)))


@_canon(aten.expand.default, aten.expand_as.default, aten.broadcast_to.default)
def _expanded(node: Node) -> Term:
    return Term("expand", (node.args[0], tuple(node.meta["val"].shape)))


def _cast(value: Any, dtype: Any) -> Any:
    """``value`` in another dtype; itself where that is what it has."""
    return value if dtype is None or value.meta["val"].dtype == dtype else Term("cast", (value, dtype))


@_canon(aten._to_copy.default)
def _conversion(node: Node) -> Term | None:
    if set(node.kwargs) - {"dtype"}:
        return None
    return Term("cast", (node.args[0], node.kwargs.get("dtype")))


@_canon(aten.softmax.int, aten.log_softmax.int)
def _softmax(node: Node) -> Term:
    source: Any = node.args[0]
    dim = _from_last(node.args[1], _rank(source))
    name = "softmax" if node.target is aten.softmax.int else "log_softmax"
    return Term(name, (_cast(source, _argument(node, 2, "dtype")), dim))


@_canon(aten._softmax.default, aten._log_softmax.default)
def _inner_softmax(node: Node) -> Term:
    source: Any = node.args[0]
    name = "softmax" if node.target is aten._softmax.default else "log_softmax"
    dtype = torch.float32 if node.args[2] else None
    return Term(name, (_cast(source, dtype), _from_last(node.args[1], _rank(source))))


@_canon(aten.mean.dim, aten.sum.dim_IntList)
def _reduction(node: Node) -> Term:
    source: Any = node.args[0]
    rank = _rank(source)
    dims = _argument(node, 1, "dim")
    chosen = tuple(sorted(_from_last(d, rank) for d in dims)) if dims else tuple(range(-rank, 0))
    name = "mean" if node.target is aten.mean.dim else "sum"
    return Term(name, (_cast(source, node.kwargs.get("dtype")), chosen, bool(_argument(node, 2, "keepdim", False))))


@_canon(aten.mean.default, aten.sum.default)
def _whole_reduction(node: Node) -> Term:
    source: Any = node.args[0]
    name = "mean" if node.target is aten.mean.default else "sum"
    return Term(name, (_cast(source, node.kwargs.get("dtype")), tuple(range(-_rank(source), 0)), False))


@_canon(aten.amax.default, aten.amin.default)
def _extreme(node: Node) -> Term:
    source: Any = node.args[0]
    rank = _rank(source)
    dims = _argument(node, 1, "dim") or list(range(rank))
    name = "amax" if node.target is aten.amax.default else "amin"
    chosen = tuple(sorted(_from_last(d, rank) for d in ([dims] if isinstance(dims, int) else dims)))
    return Term(name, (source, chosen, bool(_argument(node, 2, "keepdim", False))))


@_canon(operator.getitem)
def _first_of_max(node: Node) -> Term | None:
    """The values of ``x.max(dim)`` are those of ``x.amax(dim)``."""
    source, place = node.args
    if not isinstance(source, Node) or source.target not in _WITH_PLACES or place != 0:
        return None
    operand: Any = source.args[0]
    dim = _from_last(source.args[1], _rank(operand))
    return Term(_WITH_PLACES[source.target], (operand, (dim,), bool(_argument(source, 2, "keepdim", False))), (source,))


_WITH_PLACES: dict[Any, str] = {aten.max.dim: "amax", aten.min.dim: "amin"}


@_canon(aten.var.dim, aten.var.correction)
def _variance(node: Node) -> Term | None:
    source: Any = node.args[0]
    rank = _rank(source)
    dims = _argument(node, 1, "dim")
    chosen = tuple(sorted(_from_last(d, rank) for d in dims)) if dims else tuple(range(-rank, 0))
    if node.target is aten.var.dim:
        correction: Any = 1 if _argument(node, 2, "unbiased", True) else 0
        keepdim = _argument(node, 3, "keepdim", False)
    else:
        correction, keepdim = node.kwargs.get("correction"), node.kwargs.get("keepdim", False)
        correction = 1 if correction is None else correction
    return Term("var", (source, chosen, correction, bool(keepdim)))


@_canon(aten.where.ScalarSelf)
def _where_number(node: Node) -> Term:
    return Term(aten.masked_fill.Scalar, (node.args[2], node.args[0], node.args[1]))


@_canon(aten.clamp_min.default)
def _clamp_min(node: Node) -> Term:
    return Term(aten.clamp.default, (node.args[0], node.args[1], None))


@_canon(aten.slice.Tensor)
def _slice(node: Node) -> Term:
    """With the end cut to the size where it is beyond it."""
    source: Any = node.args[0]
    dim = _from_last(_argument(node, 1, "dim", 0), _rank(source))
    start, end, step = (_argument(node, 2, "start"), _argument(node, 3, "end"), _argument(node, 4, "step", 1))
    size = source.meta["val"].shape[dim]
    if type(size) is int:
        start = _bounded(0 if start is None else start, size)
        end = _bounded(size if end is None else end, size)
    return Term(aten.slice.Tensor, (source, dim, 0 if start is None else start, end, step))


def _bounded(place: Any, size: int) -> Any:
    return min(max(place + size if place < 0 else place, 0), size) if type(place) is int else place


def _always(node: Node) -> bool:
    return True


def _switched_off(node: Node) -> bool:
    return not _argument(node, 2, "train", True) or _argument(node, 1, "p") == 0


def _same_type(node: Node) -> bool:
    source = node.args[0]
    return is_tensor(source) and source.meta["val"].dtype == node.meta["val"].dtype  # type: ignore[union-attr]


def _by_one(node: Node) -> bool:
    factor = node.args[1]
    return isinstance(factor, (int, float)) and not isinstance(factor, bool) and factor == 1 and _same_type(node)


def _same_shape(node: Node) -> bool:
    source = node.args[0]
    if not is_tensor(source):
        return False
    old, new = source.meta["val"].shape, node.meta["val"].shape  # type: ignore[union-attr]
    return len(old) == len(new) and all(same_size(a, b) for a, b in zip(old, new, strict=True))


_TRANSPARENT: dict[Any, Callable[[Node], bool]] = {
    aten.dropout.default: _switched_off,
    aten.contiguous.default: _always,
    aten.clone.default: _always,
    aten.alias.default: _always,
    aten.mul.Tensor: _by_one,
    aten.div.Tensor: _by_one,
    aten.expand.default: _same_shape,
    aten.view.default: _same_shape,
    aten.reshape.default: _same_shape,
}
"""Calls that give their operand's values again, and when they do."""
