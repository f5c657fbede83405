"""Attention written by hand, as the library's flash attention, forward and backward.

The matrix of scores is never written: on a GPU that is most of the time and the memory of attention by hand. What is
recognised is any order of scaling, masking, casting and dropout between two products, however the products are spelled.

A row whose keys are all masked is what it is in eager: not a number where they are minus infinity, the mean of the
masked values where they are large negative numbers. What eager makes of infinities, of NaN behind a mask, and of scores
that reach the numbers of a mask, the library does not: whether there are any is asked of the operands at each call
(``attention_check.py``), unless the option ``assume_finite`` says that there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node

from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.base.source import source_of
from lamina.masked_rows.attention import kernel_for, masked_attention
from lamina.rewrite.reasons import ATTENTION_BY_LIBRARY, ATTENTION_DTYPES, ATTENTION_IS_SLOWER
from lamina.rewrite.rules.attention_check import checked_on_cpu, guarded, on_cpu
from lamina.rewrite.rules.attention_form import Attention, Refusal, attention_of
from lamina.rewrite.rules.attention_mask import mask_of
from lamina.rewrite.rules.attention_pays import reason_against
from lamina.rewrite.rules.constants import Constants
from lamina.rewrite.rules.editing import Replacement, Writer, replaced
from lamina.rewrite.rules.layout import with_layout_of
from lamina.rewrite.rules.products import Labels
from lamina.rewrite.rules.spelling import Spelled, fake_of, spelled, written
from lamina.rewrite.torch_private import SET_GRAD, is_alias, plain_dispatch, same_size

__all__ = ["use_library_attention", "use_library_attention_unchecked"]


def use_library_attention(gm: GraphModule, decisions: list[Decision]) -> GraphModule:
    """Each attention by hand as ``scaled_dot_product_attention``; ``gm`` itself if there is none that pays.

    Why one was taken or not goes into ``decisions``.
    """
    return _used(gm, decisions, True)


def use_library_attention_unchecked(gm: GraphModule, decisions: list[Decision]) -> GraphModule:
    """The same for operands and scores that are all finite, and far from the numbers of masks."""
    return _used(gm, decisions, False)


def _used(gm: GraphModule, decisions: list[Decision], checked: bool) -> GraphModule:
    if not plain_dispatch():
        return gm
    constants = Constants()
    fixed = [node for node in gm.graph.nodes if written(node) or node.target is SET_GRAD]
    replacements: dict[Node, Replacement] = {}
    for node in gm.graph.nodes:
        try:
            found = attention_of(node, constants)
            if found is None:
                continue
            if any(found.first < n < found.last for n in fixed):
                raise Refusal("something is written to, or gradients switched, between the two products")
            call = _Call(found, constants, checked)
            call.check_gain()
            call.mask.changes = any(n > found.last and _shares_memory(n, call.mask.tensors) for n in fixed)
        except Refusal as why:
            decisions.append(_decision(node, False, why.reason))
            continue
        replacements[found.last] = call.write
        decisions.append(_decision(node, True, ATTENTION_BY_LIBRARY()))
    return replaced(gm, replacements)


def _decision(node: Node, taken: bool, reason: Reason) -> Decision:
    return Decision("rewrite", ("use_library_attention", source_of(node)), taken, reason)


def _shares_memory(node: Node, others: Sequence[Node]) -> bool:
    """Whether an operand of ``node`` lies in memory of one of ``others``."""
    mine, theirs = ([f for n in nodes if (f := fake_of(n)) is not None] for nodes in (node.all_input_nodes, others))
    return any(is_alias(a, b) for a in mine for b in theirs)


class _Operand:
    """Queries, keys or values: a node, and the order that brings its dimensions to (batch, length, features)."""

    def __init__(self, node: Node, labels: Labels, order: Labels) -> None:
        if set(labels) != set(order):
            raise Refusal("the products do not share their batch")
        self.node = node
        self.moves: list[Spelled] = []
        self.order = tuple(labels.index(label) for label in order)
        value = fake_of(node)
        assert value is not None
        self.dtype, self.device, self.requires_grad = value.dtype, value.device, value.requires_grad
        self.shape = tuple(value.shape[i] for i in self.order)

    def narrowed(self, dtype: torch.dtype) -> bool:
        """Whether this is a wider copy of something in ``dtype``; stands for that from then on."""
        moves: list[Spelled] = []
        node: object = self.node
        while True:
            call = spelled(node) if isinstance(node, Node) else None
            if call is None or call.writes:
                return False
            if call.name == "cast" and self._is(call.args[0], dtype):
                self.node, self.moves, self.dtype = call.args[0], moves, dtype
                return True
            if call.name not in ("transpose", "permute"):
                return False
            moves.append(call)
            node = call.args[0]

    def _is(self, node: object, dtype: torch.dtype) -> bool:
        value = fake_of(node)
        return value is not None and value.dtype == dtype

    def write(self, write: Writer, batch: tuple[Any, ...], places: int) -> Node:
        """The operand as (batch, length, features), its leading sizes being ``batch``, with two batch dimensions."""
        node = write.old(self.node)
        for move in reversed(self.moves):
            node = write.call(torch.transpose if move.name == "transpose" else torch.permute, node, *move.args[1:])
        if self.order != tuple(range(len(self.order))):
            node = write.call(torch.permute, node, self.order)
        own = self.shape[:-2]
        if own != batch and len(own) == len(batch):
            node = write.method("expand", node, (*batch, *self.shape[-2:]))
        elif own != batch:
            node = write.method("reshape", node, (*batch, *self.shape[-2:]))
        return _in_four(write, node, places)


def _in_four(write: Writer, node: Node, batch: int) -> Node:
    """``node`` with ``batch`` leading dimensions, brought to the library's two."""
    if batch == 0:
        return write.method("unsqueeze", write.method("unsqueeze", node, 0), 0)
    if batch == 1:
        return write.method("unsqueeze", node, 1)
    return node if batch == 2 else write.call(torch.flatten, node, 0, batch - 2)


class _Call:
    """One attention, ready to be written as a call of the library."""

    def __init__(self, found: Attention, constants: Constants, checked: bool) -> None:
        self.found, self.checked = found, checked
        self._name_dimensions()
        self._name_values()
        self._find_batch()
        self._agree_on_dtype()
        sizes = (self.query.shape[-2], self.key.shape[-2])
        self.mask = mask_of(found.steps, found.scores.scale, self.batch, sizes, self.query.dtype, constants)

    @property
    def training(self) -> bool:
        """Whether gradients of queries, keys, values or the mask are asked for."""
        return self.mask.requires_grad or any(o.requires_grad for o in (self.query, self.key, self.value))

    def check_gain(self) -> None:
        """Raises ``Refusal`` where the library's attention is not faster."""
        reason = reason_against(
            self.query,
            self.value,
            self.key.shape[-2],
            causal=self.mask.causal,
            dropout=self.found.dropout,
            mask_requires_grad=self.mask.requires_grad,
            training=self.training,
            masked=bool(self.mask.parts),
        )
        if reason:
            raise Refusal(reason, ATTENTION_IS_SLOWER)

    def _name_dimensions(self) -> None:
        scores = self.found.scores
        *batch, query, key = scores.out
        shared = [x for x in scores.left_labels if x in scores.right_labels and x not in scores.out]
        sides = [(scores.left, scores.left_labels), (scores.right, scores.right_labels)]
        if key in sides[0][1]:
            sides.reverse()
        (q, q_labels), (k, k_labels) = sides
        if len(shared) != 1 or query not in q_labels or key not in k_labels:
            raise Refusal("the first product is not one of queries and keys")
        self.query = _Operand(q, q_labels, (*batch, query, shared[0]))
        self.key = _Operand(k, k_labels, (*batch, key, shared[0]))

    def _name_values(self) -> None:
        mixing, weights, labels = self.found.mixing, self.found.weights, self.found.weight_labels
        on_left = mixing.left is weights
        own = mixing.left_labels if on_left else mixing.right_labels
        v, v_labels = (mixing.right, mixing.right_labels) if on_left else (mixing.left, mixing.left_labels)
        if len(own) != len(labels):
            raise Refusal("the products do not share their batch")
        names = dict(zip(own, labels, strict=True))
        renamed = tuple(names.get(x, "e") for x in v_labels)
        out = tuple(names.get(x, "e") for x in mixing.out)
        batch = tuple(sorted((x for x in labels if x not in ("q", "k")), key=lambda x: int(x[1:])))
        if (
            "q" in renamed
            or "k" not in renamed
            or "k" in out
            or renamed.count("e") != 1
            or set(out) != {*batch, "q", "e"}
        ):
            raise Refusal("the second product is not one of weights and values")
        self.value = _Operand(v, renamed, (*batch, "k", "e"))
        self.result_order = tuple((*batch, "q", "e").index(x) for x in out)

    def _find_batch(self) -> None:
        """The leading sizes the attention is computed with: those of two dimensions, if a reshape leaves a choice."""
        shape = _shape(self.found.first)[:-2]
        after = tuple(_shape(self.found.weights)[self.found.weight_labels.index(x)] for x in self._batch_labels())
        seen = [shape, *(step.batch for step in self.found.steps), after]
        if any(type(n) is not int for n in shape) and any(len(s) != len(shape) for s in seen):
            raise Refusal("a reshape of symbolic sizes")
        self.batch = next((s for s in seen if len(s) == 2), shape)
        values = self.value.shape[:-2]
        for one in (*(s for s in seen if len(s) == len(self.batch)), values):
            whole = self.batch if len(one) == len(self.batch) else after
            if not all(same_size(a, b) or same_size(a, 1) for a, b in zip(one, whole, strict=True)):
                raise Refusal("its batch grows between the two products")
        self.result_batch = after

    def _batch_labels(self) -> list[str]:
        return sorted((x for x in self.found.weight_labels if x not in ("q", "k")), key=lambda x: int(x[1:]))

    def _agree_on_dtype(self) -> None:
        """All three in one dtype: that which queries and keys were widened from, if the weights are narrow."""
        weights = fake_of(self.found.weights)
        assert weights is not None
        if self.value.dtype != self.query.dtype:
            for operand in (self.query, self.key):
                if weights.dtype != self.value.dtype or not operand.narrowed(self.value.dtype):
                    raise Refusal("queries, keys and values differ in dtype", ATTENTION_DTYPES)
        if not self.query.dtype == self.key.dtype == self.value.dtype:
            raise Refusal("queries, keys and values differ in dtype", ATTENTION_DTYPES)

    def write(self, write: Writer) -> Node:
        """The call of the library, in the place of the second product."""
        places = len(self.batch)
        q, k, v = (operand.write(write, self.batch, places) for operand in (self.query, self.key, self.value))
        result = self._called(write, q, self.mask.scaled(write, q), k, v)
        own = (self.query.shape[-2], self.value.shape[-1])
        if self.batch != self.result_batch or places > 2:
            result = write.method("reshape", result, (*self.result_batch, *own))
        elif places < 2:
            result = (
                write.method("squeeze", result, 1)
                if places
                else write.call(torch.squeeze, write.call(torch.squeeze, result, 0), 0)
            )
        if self.result_order != tuple(range(len(self.result_order))):
            result = write.call(torch.permute, result, self.result_order)
        expected, got = fake_of(self.found.last), fake_of(result)
        assert expected is not None
        assert got is not None
        if expected.dtype != got.dtype:
            result = write.method("to", result, expected.dtype)
        return with_layout_of(write, result, self.found.last)

    def _called(self, write: Writer, raw: Node, q: Node, k: Node, v: Node) -> Node:
        """The attention itself, of the queries ``raw`` that are scaled to ``q``."""
        if not self.found.dropout and self.mask.may_be_settled(self.training):
            query, key, value = map(fake_of, (q, k, v))
            assert query is not None
            assert key is not None
            assert value is not None
            kernel = kernel_for(query, key, value, self.mask.scale)
            if kernel:
                found = write.call(masked_attention, q, k, v, self.mask.plain(write), self.mask.scale, kernel)
                return guarded(write, found, self.mask, (q, k, v)) if self.checked else found
        queries, mask, tops = self.mask.write(write, q, self.training)
        if self.checked and on_cpu(self.query.device):
            return checked_on_cpu(write, self.found, self.mask, (raw, q, queries, k, v), mask, tops, self.training)
        found = write.call(
            F.scaled_dot_product_attention,
            queries,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.found.dropout,
            is_causal=self.mask.causal,
            scale=self.mask.scale,
        )
        return guarded(write, found, self.mask, (q, k, v)) if self.checked else found


def _shape(node: Node) -> tuple[Any, ...]:
    value = fake_of(node)
    assert value is not None
    return tuple(value.shape)
