"""Attention as a user writes it: what lies between the two products, read off a captured graph."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from lamina.base.reasons import Code
from lamina.rewrite.reasons import ATTENTION_KEPT, ATTENTION_WEIGHTS_READ
from lamina.rewrite.rules.constants import Constants
from lamina.rewrite.rules.products import Labels, Product, product
from lamina.rewrite.rules.spelling import Spelled, fake_of, number, spelled

__all__ = ["Attention", "Refusal", "Step", "attention_of"]

MASKED = -1e4
"""A score at or below this, once all steps are done, counts as masked when it is put in the place of others. Whether
it is so far below the others that nothing of it is left is found at each call (``attention_check.py``)."""


class Refusal(Exception):
    """Why a softmax is not the middle of an attention that the library computes, with the ``code`` of the reason."""

    def __init__(self, why: str, code: Code = ATTENTION_KEPT) -> None:
        super().__init__(why)
        self.reason = code(why=why)


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on the scores, ``batch`` being their leading sizes there.

    ``kind`` is "scale" by ``factor``, or by a tensor or symbol (if ``inverted`` it divides), "add" of ``value`` times
    ``factor`` (``wide``: to scores of more than 16 bits), or "fill" with the number ``factor`` where ``value`` is true
    (false if ``inverted``). ``dtype`` is that of the scores after it.
    """

    kind: str
    batch: tuple[Any, ...]
    value: Node | None = None
    factor: float = 1.0
    inverted: bool = False
    wide: bool = False
    dtype: torch.dtype = torch.float32


@dataclass(slots=True)
class Attention:
    """``softmax(steps(query @ key^T)) @ value`` between ``first`` and ``last``, the nodes of the two products."""

    softmax: Node
    first: Node
    scores: Product
    steps: list[Step]
    last: Node = field(init=False)
    mixing: Product = field(init=False)
    weights: Node = field(init=False)
    weight_labels: Labels = ()
    dropout: float = 0.0


def attention_of(node: Node, constants: Constants) -> Attention | None:
    """The attention whose weights ``node``, a softmax, computes; None if there is no product above it.

    Raises ``Refusal`` where there are two products and something between them that the library's attention has not.
    """
    call = spelled(node)
    if call is None or call.name != "softmax" or not isinstance(call.args[0], Node):
        return None
    value = fake_of(call.args[0])
    if value is None or value.dim() < 2 or call.args[1] not in (-1, value.dim() - 1):
        return None
    found = _Above(constants).read(call.args[0], node)
    if found is None:
        return None
    first, scores, steps = found
    result = Attention(node, first, scores, steps)
    _below(result)
    return result


class _Above:
    """Reads from a softmax up to the product of queries and keys."""

    def __init__(self, constants: Constants) -> None:
        self.constants = constants

    def read(self, node: object, user: Node) -> tuple[Node, Product, list[Step]] | None:
        """The product above ``node``, and the steps from it down to ``node``."""
        if not isinstance(node, Node) or any(u is not user and not _asks_only_for_dtype(u, node) for u in node.users):
            return None
        found = product(node)
        if found is not None:
            steps = []
            if found.addend is not None:
                dtype = _dtype(node)
                steps.append(Step("add", _batch(node), found.addend, found.beta, wide=_is_wide(node), dtype=dtype))
            return node, found, steps
        call = spelled(node)
        value = fake_of(node)
        if call is None or call.writes or value is None or not value.is_floating_point():
            return None
        if call.name in ("cast", "contiguous"):
            return self.read(call.args[0], node)
        if call.name == "reshape":
            return self.read(call.args[0], node) if _keeps_matrices(call.args[0], value) else None
        return self._stepped(call, node)

    def _stepped(self, call: Spelled, node: Node) -> tuple[Node, Product, list[Step]] | None:
        for place, operand in enumerate(call.args):
            found = self.read(operand, node) if isinstance(operand, Node) else None
            if found is not None:
                step = self._step(call, place, node)
                return None if step is None else (found[0], found[1], [*found[2], replace(step, dtype=_dtype(node))])
        return None

    def _step(self, call: Spelled, place: int, node: Node) -> Step | None:
        """What ``call`` does to the scores, which are its operand at ``place``."""
        batch = _batch(node)
        if call.name in ("mul", "div"):
            if call.name == "div" and (place != 0 or call.args[2] is not None):
                return None
            return self._scale(call.args[1 - place], batch, call.name == "div")
        if call.name in ("add", "sub"):
            other, alpha = call.args[1 - place], number(call.args[2])
            if place != 0 and (call.name == "sub" or alpha != 1):
                return None
            if not isinstance(other, Node) or alpha is None:
                return None
            return Step("add", batch, other, -alpha if call.name == "sub" else alpha, wide=_is_wide(node))
        if call.name == "masked_fill" and place == 0:
            return self._fill(call.args[1], call.args[2], batch, False)
        if call.name == "where" and place in (1, 2):
            return self._fill(call.args[0], call.args[3 - place], batch, place == 1)
        return None

    def _scale(self, other: object, batch: tuple[Any, ...], divides: bool) -> Step | None:
        factor = self.constants.number(other)
        if factor is not None:
            if factor == 0 or not math.isfinite(factor):
                return None
            return Step("scale", batch, None, 1 / factor if divides else factor)
        if not isinstance(other, Node):
            return None
        fake = fake_of(other)
        symbolic = isinstance(other.meta.get("example_value"), (torch.SymInt, torch.SymFloat))
        if not symbolic and (fake is None or not _same_for_all_keys(fake)):
            return None
        return Step("scale", batch, other, inverted=divides)

    def _fill(self, mask: object, value: object, batch: tuple[Any, ...], inverted: bool) -> Step | None:
        fill = self.constants.number(value)
        fake = fake_of(mask)
        if fill is None or not fill <= MASKED or fake is None or fake.dtype != torch.bool:
            return None
        return Step("fill", batch, mask, fill, inverted)  # type: ignore[arg-type]


def _below(found: Attention) -> None:
    """Read from the softmax down to the product with the values."""
    node = found.softmax
    labels: Labels = (*(f"b{i}" for i in range(_dims(node) - 2)), "q", "k")
    while True:
        if len(node.users) != 1:
            raise Refusal("the attention weights are used elsewhere as well", ATTENTION_WEIGHTS_READ)
        (user,) = node.users
        mixing = product(user)
        if mixing is not None:
            break
        labels = _passed(found, node, user, labels)
        node = user
    if mixing.addend is not None or mixing.scale != 1 or mixing.left is mixing.right:
        raise Refusal("the product with the values adds or scales")
    found.last, found.mixing, found.weights, found.weight_labels = user, mixing, node, labels


def _passed(found: Attention, node: Node, user: Node, labels: Labels) -> Labels:
    """The labels of ``user``'s result, if it does to the weights something that attention has a place for."""
    call = spelled(user)
    if call is None or call.writes or call.args[0] is not node:
        raise Refusal(f"{user.name} reads the attention weights", ATTENTION_WEIGHTS_READ)
    if call.name == "cast" and call.args[1].is_floating_point:
        return labels
    if call.name == "contiguous":
        return labels
    if call.name == "dropout":
        p = number(call.args[1])
        if p is None or not isinstance(call.args[2], bool) or found.dropout or p >= 1:
            raise Refusal("dropout of the weights whose probability is not a number")
        found.dropout = p if call.args[2] else 0.0
        return labels
    value = fake_of(user)
    if call.name == "reshape" and value is not None and labels[-2:] == ("q", "k") and _keeps_matrices(node, value):
        return (*(f"b{i}" for i in range(value.dim() - 2)), "q", "k")
    order = _order(call, len(labels))
    if order is None:
        raise Refusal(f"{user.name} reads the attention weights", ATTENTION_WEIGHTS_READ)
    return tuple(labels[i] for i in order)


def _order(call: Spelled, dims: int) -> list[int] | None:
    """The order in which a transposition puts the dimensions."""
    if call.name == "transpose" and all(isinstance(d, int) for d in call.args[1:]):
        order = list(range(dims))
        a, b = (d % dims for d in call.args[1:])
        order[a], order[b] = b, a
        return order
    if call.name == "permute" and all(isinstance(d, int) for d in call.args[1]):
        return [d % dims for d in call.args[1]]
    return None


def _asks_only_for_dtype(user: Node, node: Node) -> bool:
    """Whether ``user`` is ``x.type_as(node)``."""
    return user.target == "type_as" and user.args[0] is not node


def _dims(node: Node) -> int:
    value = fake_of(node)
    assert value is not None
    return value.dim()


def _batch(node: Node) -> tuple[Any, ...]:
    value = fake_of(node)
    return () if value is None else tuple(value.shape[:-2])


def _dtype(node: Node) -> torch.dtype:
    value = fake_of(node)
    return torch.float32 if value is None else value.dtype


def _is_wide(node: Node) -> bool:
    value = fake_of(node)
    return value is None or value.dtype.itemsize > 2


def _keeps_matrices(before: object, after: Tensor) -> bool:
    """Whether a reshape leaves the last two dimensions alone. Sizes that are symbols are not looked at."""
    value = fake_of(before)
    if value is None or value.dim() < 2 or after.dim() < 2:
        return False
    sizes = (*value.shape, *after.shape)
    return all(type(n) is int for n in sizes) and value.shape[-2:] == after.shape[-2:]


def _same_for_all_keys(fake: Tensor) -> bool:
    return fake.is_floating_point() and (fake.dim() == 0 or (type(fake.shape[-1]) is int and fake.shape[-1] == 1))
