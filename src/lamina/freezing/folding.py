"""Factors and shifts of channels after a convolution or linear layer, as a batch norm in inference, in its weights.

``(conv(x, w) + b - mean) / sqrt(var + eps) * scale + shift`` is ``conv(x, w * f) + (b - mean) * f + shift`` with
``f = scale / sqrt(var + eps)``. With the option freeze the new weight and bias are computed once, in float64.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from lamina.base.decision import Decision
from lamina.base.devices import kind_of
from lamina.base.fx.editing import call_for
from lamina.base.fx.torch_private import graph_module
from lamina.base.reasons import Reason
from lamina.base.source import source_of
from lamina.freezing import reasons
from lamina.freezing.cut import constants, hoist
from lamina.ops import overloads
from lamina.ops.row import RESHAPED
from lamina.rewrite.torch_private import fake_mode_of

__all__ = ["Channelwise", "fold_into_products", "folded"]

aten = torch.ops.aten

Call = Callable[..., Any]
"""Applies an ATen operation to operands of one kind: tensors, or nodes of a graph."""

_NORM = aten._native_batch_norm_legit_no_training.default
_STEPS = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
_RESHAPES = overloads(lambda row: row.elements == RESHAPED)
_DTYPES = (torch.float32, torch.float64, torch.bfloat16)
"""Float16 is none of them: a factor may take weights beyond its range where the results are within."""


@dataclass(frozen=True, slots=True)
class Channelwise:
    """``y * factor + shift`` for each of C channels: operands of shape [C] or [] of one dtype, or ``None``."""

    factor: Any
    shift: Any

    def then(self, call: Call, other: Channelwise) -> Channelwise:
        """What ``other`` makes of what this one gives, as one."""
        factor = _times(call, self.factor, other.factor)
        shift = _times(call, self.shift, other.factor) if self.shift is not None else None
        if other.shift is not None:
            shift = other.shift if shift is None else call(aten.add.Tensor, shift, other.shift)
        return Channelwise(factor, shift)


def _times(call: Call, a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return call(aten.mul.Tensor, a, b)


def norm_step(call: Call, mean: Any, variance: Any, scale: Any, shift: Any, eps: float) -> Channelwise:
    """What a batch norm with fixed statistics does, its parameters of shape [C], ``scale`` and ``shift`` or None."""
    factor = call(aten.rsqrt.default, call(aten.add.Tensor, variance, eps))
    factor = _times(call, factor, scale)
    moved = call(aten.neg.default, call(aten.mul.Tensor, mean, factor))
    return Channelwise(factor, moved if shift is None else call(aten.add.Tensor, moved, shift))


def folded(
    call: Call, weight: Any, bias: Any, step: Channelwise, along: Sequence[int], channels: int, held: torch.dtype
) -> tuple[Any, Any]:
    """Weight and bias of the product that gives what ``step`` makes of the product with ``weight`` and ``bias``.

    All are of ``step``'s dtype, in which is computed; the results are rounded once, to ``held``. ``along`` is a shape
    of as many dimensions as ``weight`` that holds the channels where those of the result are, and 1 elsewhere. The bias
    is None without one and without a shift.
    """
    if step.factor is not None:
        factor = call(aten.view.default, call(aten.expand.default, step.factor, [channels]), list(along))
        weight = call(aten.mul.Tensor, weight, factor)
        bias = None if bias is None else call(aten.mul.Tensor, bias, step.factor)
    if step.shift is not None:
        bias = step.shift if bias is None else call(aten.add.Tensor, bias, step.shift)
    if bias is not None:
        spread = call(aten.expand.default, bias, [channels])
        bias = call(aten._to_copy.default, call(aten.clone.default, spread), dtype=held)
    return call(aten._to_copy.default, weight, dtype=held), bias


def fold_into_products(gm: GraphModule, decisions: list[Decision]) -> GraphModule:
    """A frozen inference graph in which products have the factors and shifts of channels after them in their weights.

    ``gm`` is in normal form, with parameters marked; its graph is changed in place. Products are convolutions on a CPU
    and products with a matrix; what comes after may be a batch norm, or sums and products with parameters of one value
    for each channel, in any order.
    """
    known = constants(gm.graph)
    returned = set(gm.graph.output_node().all_input_nodes)
    changed = False
    for node in list(gm.graph.nodes):
        weights = None if node in known else _weights(node, known)
        if weights is None:
            continue
        chain = _Chain(node, weights.axis, known, returned)
        if not chain.steps:
            continue
        subject = ("fold_into_products", source_of(node), *dict.fromkeys(source_of(n) for n in chain.steps))
        if weights.reason is not None:
            decisions.append(Decision("rewrite", subject, False, weights.reason))
            continue
        _fold(gm, node, weights, chain)
        changed = True
        many = reasons.FOLDED(count=len(chain.steps))
        decisions.append(Decision("rewrite", subject, True, many))
    return graph_module(gm, gm.graph) if changed else gm


@dataclass(frozen=True, slots=True)
class _Weights:
    """A product's weight and bias, the result's dimension of channels, and where the weight has them (see ``folded``).

    ``groups`` are those of a transposed convolution, whose weight is to be seen as [groups, inputs, outputs, ...].
    """

    weight: Node
    bias: Node | None
    axis: int
    along: tuple[int, ...]
    groups: int = 1
    reason: Reason | None = None


def _value(node: Any) -> Tensor | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, Tensor) else None


def _weights(node: Node, known: Set[Node]) -> _Weights | None:
    """Those of a product with parameters; None for any other node."""
    value = _value(node)
    if node.op != "call_function" or value is None or value.dtype not in _DTYPES or node.kwargs:
        return None
    found = None
    if node.target is aten.mm.default:
        found = _Weights(node.args[1], None, 1, (1, -1))  # type: ignore[arg-type]
    elif node.target is aten.addmm.default:
        found = _Weights(node.args[2], node.args[0], 1, (1, -1))  # type: ignore[arg-type]
    elif node.target is aten.convolution.default:
        found = _convolution(node, value)
    left = node.args[1 if node.target is aten.addmm.default else 0]
    if found is None or found.weight not in known or left in known:
        return None
    if found.bias is not None:
        bias = _value(found.bias)
        if found.bias not in known or bias is None or tuple(bias.shape) != (value.shape[found.axis],):
            return None
    return found if isinstance(value.shape[found.axis], int) else None


def _convolution(node: Node, value: Tensor) -> _Weights:
    _, weight, bias, _, _, _, transposed, _, groups = node.args
    spatial = (1,) * (value.dim() - 2)
    reason = None
    if not kind_of(value).host:
        reason = reasons.NOT_FOLDED()
    along = (groups, 1, value.shape[1] // groups, *spatial) if transposed else (-1, 1, *spatial)  # type: ignore
    return _Weights(weight, bias, 1, along, groups if transposed else 1, reason)  # type: ignore[arg-type]


class _Chain:
    """The functions of channels after a product, each read by the next alone."""

    def __init__(self, product: Node, axis: int, known: Set[Node], returned: set[Node]) -> None:
        self.known, self.channels = known, int(_shape(product)[axis])
        self.dtype = product.meta["val"].dtype
        self.steps: list[Node] = []
        self.axes: list[int] = []
        node, layout = product, _layout(product)
        while len(node.users) == 1 and node not in returned:
            (user,) = node.users
            if user.target in _RESHAPES and axis == len(_shape(node)) - 1 and _shape(user)[-1:] == _shape(node)[-1:]:
                node, axis = user, len(_shape(user)) - 1
                layout = _layout(node)
                continue
            after = self._after(user, node, axis)
            if after is None or _layout(after) != layout:
                break
            self.steps.append(user)
            self.axes.append(axis)
            node = after

    def _after(self, user: Node, node: Node, axis: int) -> Node | None:
        """The node that holds the value after one more function; None if ``user`` is none."""
        if user.op != "call_function" or user.kwargs:
            return None
        result: Node | None = user
        if user.target is _NORM:
            reads = [n for n in user.users if n.target is operator.getitem and n.args[1] == 0]
            result = reads[0] if len(reads) == 1 and len(user.users) == 1 else None
            ours = user.args[0] is node and axis == 1 and all(p is None or p in self.known for p in user.args[1:5])
        else:
            ours = user.target in _STEPS and len(user.args) == 2 and self._is_channelwise(user, node, axis)
        value = _value(result)
        return result if ours and value is not None and value.dtype == self.dtype else None

    def _is_channelwise(self, user: Node, node: Node, axis: int) -> bool:
        first, second = user.args
        if first is second or (user.target is aten.div.Tensor and first is not node):
            return False
        other = second if first is node else first
        if type(other) in (int, float):
            return math.isfinite(other) and not (other == 0 and user.target is aten.div.Tensor)  # type: ignore
        value = _value(other)
        if value is None or other not in self.known or value.is_complex() or value.dim() > len(_shape(node)):
            return False
        first_axis = len(_shape(node)) - value.dim()
        sizes = {first_axis + i: n for i, n in enumerate(value.shape)}
        return all(n == 1 or (i == axis and n == self.channels) for i, n in sizes.items())


def _shape(node: Node) -> tuple[Any, ...]:
    value = _value(node)
    return () if value is None else tuple(value.shape)


def _layout(node: Node) -> Any:
    value = _value(node)
    return None if value is None else (tuple(value.shape), value.stride())


def _fold(gm: GraphModule, product: Node, weights: _Weights, chain: _Chain) -> None:
    """Give ``product`` the folded weights, and let what reads each function read what it was applied to."""
    graph = gm.graph
    operands = [n for step in chain.steps for n in step.all_input_nodes if n in chain.known]
    hoist(graph, [*operands, weights.weight, *([weights.bias] if weights.bias is not None else [])], product)
    with graph.inserting_before(product), fake_mode_of([product.meta["val"]]):

        def call(target: Any, *args: Any, **kwargs: Any) -> Node:
            return call_for(graph, product, target, *args, **kwargs)

        def wide(node: Any) -> Any:
            return None if node is None else call(aten._to_copy.default, node, dtype=torch.float64)

        step = Channelwise(None, None)
        for node, axis in zip(chain.steps, chain.axes, strict=True):
            step = step.then(call, _step(call, wide, node, axis, chain.known))
        weight, bias = wide(weights.weight), wide(weights.bias)
        shape = list(_shape(weights.weight))
        if weights.groups > 1:
            weight = call(aten.view.default, weight, [weights.groups, shape[0] // weights.groups, *shape[1:]])
        along = weights.along if len(weights.along) == len(_shape(weight)) else weights.along[1:]
        weight, bias = folded(call, weight, bias, step, along, chain.channels, chain.dtype)
        if weights.groups > 1:
            weight = call(aten.view.default, weight, shape)
        if product.target is aten.convolution.default:
            product.args = (product.args[0], weight, bias, *product.args[3:])
        else:
            left = product.args[-2]  # of addmm as of mm
            product.target = aten.mm.default if bias is None else aten.addmm.default
            product.args = (left, weight) if bias is None else (bias, left, weight)
    for node in chain.steps:
        _take_out(gm, node, chain.known)


def _step(call: Call, wide: Callable[[Any], Any], node: Node, axis: int, known: Set[Node]) -> Channelwise:
    """What one function of the chain does, in float64."""
    if node.target is _NORM:
        scale, shift, mean, variance = (wide(n) for n in node.args[1:5])
        eps: Any = node.args[6]
        return norm_step(call, mean, variance, scale, shift, eps)
    first, second = node.args
    turned = first in known if isinstance(first, Node) else True
    other = first if turned else second
    if isinstance(other, Node):
        size = _shape(other)
        here = len(size) - (len(_shape(node)) - axis)  # the operand's dimension of channels
        flat = call(aten.squeeze.dims, other, [i for i in range(len(size)) if i != here or size[i] == 1])
        other = wide(flat)
    else:
        value = node.meta["val"]
        other = call(aten.full.default, [], float(other), dtype=torch.float64, device=value.device)  # type: ignore
    if node.target is aten.mul.Tensor:
        return Channelwise(other, None)
    if node.target is aten.div.Tensor:
        return Channelwise(call(aten.reciprocal.default, other), None)
    if node.target is aten.add.Tensor:
        return Channelwise(None, other)
    if not turned:
        return Channelwise(None, call(aten.neg.default, other))
    minus = call(aten.full.default, [], -1.0, dtype=torch.float64, device=node.meta["val"].device)
    return Channelwise(minus, other)


def _take_out(gm: GraphModule, node: Node, known: Set[Node]) -> None:
    """Let the readers of a function read its operand."""
    source: Any = next(n for n in node.args if isinstance(n, Node) and n not in known)
    result = node
    if node.target is _NORM:
        (result,) = node.users
    result.replace_all_uses_with(source)
    for gone in (result, node) if result is not node else (node,):
        gm.graph.erase_node(gone)
