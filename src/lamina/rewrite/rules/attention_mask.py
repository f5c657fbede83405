"""What an attention by hand does to its scores, as a scale, a causal mask, or one additive mask."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from lamina.rewrite.reasons import ATTENTION_DTYPES
from lamina.rewrite.rules.attention_form import MASKED, Refusal, Step
from lamina.rewrite.rules.constants import Constants, distinct
from lamina.rewrite.rules.editing import Writer
from lamina.rewrite.rules.spelling import fake_of, spelled
from lamina.rewrite.torch_private import same_size

__all__ = ["Mask", "mask_of"]

_FAR = -1e30
"""Stands for any large finite number in the place of masked scores: added to a score it leaves nothing of it."""
_LOST = -1e8
"""Added to a score in float32, this and what is lower leaves nothing, or next to nothing, of it."""

_LEVEL = -float(1 << 40)
"""For all keys of a row without scores: in float32 nothing below 2 ** 15 added to it is left, and as a power of two
it stays exact in products with the constants of the library's exponentials."""

_LEAST_SCALE = 1e-6
"""What is filled with ``_FAR`` may be scaled by this and is far still."""

Sizes = tuple[Any, ...]


@dataclass(slots=True)
class Mask:
    """``scale`` for the scores, then ``parts`` in order; ``causal`` alone where every part hides what comes later.

    ``may_mask_rows``: a row's keys may all be masked; ``finite``: by numbers other than minus infinity; ``wide``: a
    mask is added to scores of more than 16 bits; ``changes``: one is written to afterwards, where eager does not mind.
    ``factors`` are steps to scale the queries with. ``replay`` are all steps in order, as they are, and ``highest`` the
    largest finite number that hides a score otherwise than by being added to it in the library.
    """

    scale: float
    dtype: torch.dtype
    causal: bool = False
    parts: list[_Part] = field(default_factory=list)
    factors: list[Step] = field(default_factory=list)
    replay: list[_Part] = field(default_factory=list)
    highest: float = -math.inf
    may_mask_rows: bool = False
    finite: bool = False
    wide: bool = False
    changes: bool = False
    requires_grad: bool = False

    @property
    def tensors(self) -> list[Node]:
        """What is added, or tells where to fill."""
        return [part.step.value for part in self.parts if part.step.value is not None]

    def scaled(self, write: Writer, queries: Node) -> Node:
        """The queries times what the scores are scaled with."""
        for step in self.factors:
            assert step.value is not None
            queries = write.call(torch.div if step.inverted else torch.mul, queries, write.old(step.value))
        return queries

    def may_be_settled(self, training: bool) -> bool:
        """Whether the library may get ``plain``, and its results be put right (``masked_rows/attention.py``), for less.

        Then rows masked by large numbers have lost their scores in eager too. What that saves is the copy of the
        queries for a gradient, and the mask's own where it can be given as it is.
        """
        if not (self.may_mask_rows and self.finite) or self.wide or self.requires_grad:
            return False
        return training or self._given is not None

    def plain(self, write: Writer) -> Node:
        """The additive mask in the queries' dtype, rows that hide all keys as they are: the user's own if possible."""
        given = self._given
        total = self._total(write) if given is None else given.tensor(write)
        assert total is not None
        return total if _dtype(total) == self.dtype else write.method("to", total, self.dtype)

    @property
    def _given(self) -> _Part | None:
        """The one part that is the whole mask, in a layout that the library takes."""
        if len(self.parts) != 1 or self.changes:
            return None
        (part,) = self.parts
        if part.step.kind != "add" or part.step.factor != 1:
            return None
        fake = fake_of(part.step.value)
        return part if fake is not None and fake.dtype == self.dtype and fake.stride(-1) == 1 else None

    def _total(self, write: Writer) -> Node | None:
        total: Node | None = None
        for part in self.parts:
            total = part.onto(write, total)
        return total

    def write(self, write: Writer, queries: Node, training: bool) -> tuple[Node, Node | None, Node | None]:
        """The queries, the additive mask in their dtype, and the largest element of each of its rows before that.

        Each of the latter two is None where there is none, or nobody asks for it.

        The library's kernels give zero for a row of minus infinity, where eager gives what is not a number, and a
        wrong gradient for a row of large negative numbers, because nothing of its scores is left in the logarithm
        of their sum. So such a row is shifted to have the maximum 0, which makes it not a number in the first case,
        and gets queries of zero where the numbers would leave nothing of its scores. Where no gradient is taken,
        and the dtype holds it, the row becomes one number instead that leaves nothing of its scores either: that
        takes no copy of the queries. Nor does a mask of minus infinities alone.
        """
        total = self._total(write)
        if total is None:
            return queries, None, None
        tops: Node | None = None
        if len(self.parts) > 1 or any(part.step.kind == "add" for part in self.parts):
            tops = write.call(torch.amax, total, -1, True)
        if self.may_mask_rows:
            top = tops or write.call(torch.amax, total, -1, True)
            masked = write.call(torch.le, top, MASKED)
            shifted = write.call(torch.masked_fill, top, write.call(torch.logical_not, masked), 0.0)
            total = write.call(torch.sub, total, shifted)
        if self.may_mask_rows and self.finite:
            lost = write.call(torch.le, top, _LOST)
            if training or torch.finfo(self.dtype).max < -_LEVEL:
                queries = write.call(torch.masked_fill, queries, lost, 0.0)
            else:  # zero times minus infinity stays what is not a number
                level = write.call(torch.add, write.call(torch.mul, top, 0.0), _LEVEL)
                total = write.call(torch.where, lost, level, total)
        return queries, total if _dtype(total) == self.dtype else write.method("to", total, self.dtype), tops


@dataclass(frozen=True, slots=True)
class _Part:
    """One step on the mask; ``placed`` brings its tensor to the library's dimensions."""

    step: Step
    placed: Callable[[Writer, Node], Node]
    causal: bool = False

    def tensor(self, write: Writer) -> Node:
        """The step's tensor in the library's dimensions."""
        assert self.step.value is not None
        return self.placed(write, write.old(self.step.value))

    def onto(self, write: Writer, total: Node | None) -> Node | None:
        """The mask after this step."""
        step = self.step
        if step.value is None:
            return None if total is None else write.call(torch.mul, total, step.factor)
        value = self.tensor(write)
        if step.kind == "add":
            if _dtype(value).itemsize < 4:
                value = write.method("to", value, torch.float32)
            if step.factor != 1:
                value = write.call(torch.mul, value, step.factor)
            return value if total is None else write.call(torch.add, total, value)
        fill = step.factor if step.factor == -math.inf else _FAR
        if step.inverted:
            value = write.call(torch.logical_not, value)
        before = write.call(torch.zeros_like, value, dtype=torch.float32) if total is None else total
        return write.call(torch.masked_fill, before, value, fill)


def mask_of(
    steps: Sequence[Step], scale: float, batch: Sizes, sizes: tuple[Any, Any], dtype: torch.dtype, constants: Constants
) -> Mask:
    """All ``steps`` as one mask for attention over ``batch`` with ``sizes`` queries and keys. Raises ``Refusal``."""
    mask = Mask(scale, dtype)
    found: list[_Part] = []
    for step in steps:
        before = len(found)
        if step.kind == "scale" and step.value is None:
            mask.scale *= step.factor
            mask.highest *= step.factor if found else 1
            if found and step.factor < 0:
                raise Refusal("a mask is multiplied by a negative number")
            if found:
                found.append(_Part(step, _as_it_is))
        elif step.kind == "scale":
            if found or len(batch) != 2 or step.batch != batch:
                raise Refusal("a mask, or a reshaped score, is multiplied by a tensor")
            factor = fake_of(step.value)
            if factor is not None and factor.dim() > 0 and factor.dtype != dtype:
                raise Refusal("the scores are scaled in another dtype than the queries'", ATTENTION_DTYPES)
            mask.factors.append(step)
            mask.replay.append(_Part(step, _as_it_is))
        else:
            part = _part(mask, step, batch, sizes, constants)
            found.extend([] if part is None else [part])
        mask.replay.extend(found[before:] if found[before:] or step.value is not None else [_Part(step, _as_it_is)])
    masks = [p for p in found if p.step.value is not None]
    _check_numbers(mask, found)
    mask.causal = bool(masks) and all(p.causal for p in masks)
    mask.parts = [] if mask.causal else found
    return mask


def _check_numbers(mask: Mask, found: Sequence[_Part]) -> None:
    """Raises ``Refusal`` where what was far below the scores is not so any more after they are scaled."""
    later = math.prod((part.step.factor for part in found if part.step.value is None), start=1.0)
    if mask.highest > MASKED or not later >= _LEAST_SCALE:
        raise Refusal("masked scores are scaled to numbers that the others may reach")


def _part(mask: Mask, step: Step, batch: Sizes, sizes: tuple[Any, Any], constants: Constants) -> _Part | None:
    """A step that adds or fills; None if it changes nothing."""
    assert step.value is not None
    fake = fake_of(step.value)
    if fake is None or fake.dim() == 0 or not same_size(fake.shape[-1], sizes[1]):
        raise Refusal("a mask without a column for each key")
    known = constants.value(step.value)
    mask.finite |= _is_finite(step, constants)
    mask.wide |= step.wide
    if known is not None:
        known = distinct(known.cpu())
        masked = _masked(step, known)
        if masked is not None:
            if not masked.any():
                return None
            if masked.all(-1).any():
                raise Refusal("a row whose keys are all masked")
            if _is_causal(masked, sizes):
                mask.highest = max(mask.highest, _highest(step, known))
                return _Part(step, _as_it_is if len(batch) == 2 else _placing(fake, step, batch), causal=True)
        elif bool((known.amax(-1) == -math.inf).any()):
            raise Refusal("a row whose keys are all masked")
        elif not torch.equal(known.to(mask.dtype).to(known.dtype), known):
            raise Refusal("the mask's values do not fit in the queries' dtype", ATTENTION_DTYPES)
    elif step.kind == "add":
        mask.may_mask_rows = True
        if fake.dtype.itemsize > mask.dtype.itemsize or not fake.is_floating_point():
            raise Refusal("the mask is not of the queries' dtype", ATTENTION_DTYPES)
    else:
        mask.may_mask_rows = True
    if step.kind == "fill":
        mask.highest = max(mask.highest, step.factor)
    mask.requires_grad |= fake.requires_grad
    return _Part(step, _placing(fake, step, batch))


def _highest(step: Step, known: Tensor) -> float:
    """The largest finite number that stands for a masked score, or is added to one; minus infinity without one."""
    if step.kind == "fill":
        return step.factor
    added = known.to(torch.float64) * step.factor
    return float(added.masked_fill((added == 0) | ~added.isfinite(), -math.inf).amax())


def _dtype(node: Node) -> torch.dtype:
    fake = fake_of(node)
    assert fake is not None
    return fake.dtype


def _is_finite(step: Step, constants: Constants) -> bool:
    """Whether what the step hides is, or may be, something else than minus infinity."""
    if step.kind == "fill":
        return step.factor != -math.inf
    return step.factor <= 0 or _adds_finite(step.value, step.factor, constants)


def _adds_finite(value: object, factor: float, constants: Constants) -> bool:
    """Whether ``value`` times ``factor``, added to scores, may hide some of them by a finite number."""
    known = constants.number(value)
    if known is not None:
        return -math.inf < known * factor <= MASKED
    tensor = constants.value(value)
    if tensor is not None:
        added = distinct(tensor) * factor
        return bool(((added <= MASKED) & (added != -math.inf)).any())
    call = spelled(value) if isinstance(value, Node) else None
    if call is None or call.writes:
        return True
    if call.name in ("cast", "contiguous", "reshape", "expand", "unsqueeze"):
        return _adds_finite(call.args[0], factor, constants)
    chosen = {"where": call.args[1:], "masked_fill": (call.args[0], call.args[-1])}.get(call.name)
    return chosen is None or any(_adds_finite(one, factor, constants) for one in chosen)


def _masked(step: Step, known: Tensor) -> Tensor | None:
    """Which keys a constant mask hides, if that is all it does."""
    if step.kind == "fill":
        return known.logical_not() if step.inverted else known
    masked = known * step.factor <= MASKED
    return masked if not bool(known.masked_fill(masked, 0).any()) else None


def _is_causal(masked: Tensor, sizes: tuple[Any, Any]) -> bool:
    if not all(type(n) is int for n in sizes):  # comparing a symbol would add a guard
        return False
    return masked.shape[-2:] == sizes and bool((masked == torch.ones(sizes, dtype=torch.bool).triu(1)).all())


def _as_it_is(write: Writer, node: Node) -> Node:
    return node


def _placing(fake: Tensor, step: Step, batch: Sizes) -> Callable[[Writer, Node], Node]:
    """How a mask for scores with leading sizes ``step.batch`` becomes one for ``batch``. Raises ``Refusal``."""
    lead, dims = tuple(fake.shape[:-2]), fake.dim()
    own, columns = step.batch, tuple(fake.shape[-2:])
    if dims == 1:
        return lambda write, node: write.method("unsqueeze", node, 0)
    if dims == 2:
        return _as_it_is
    if all(type(n) is int and n == 1 for n in lead):
        return lambda write, node: write.method("reshape", node, columns)
    if len(own) == len(batch):
        if len(batch) == 2:
            return _as_it_is if dims == 4 else lambda write, node: write.method("unsqueeze", node, 0)
        if len(batch) == 1:
            return lambda write, node: write.method("unsqueeze", node, 1)
        if dims == 3:
            return lambda write, node: write.method("unsqueeze", node, 0)
    if not all(type(n) is int for n in (*own, *batch, *columns)):
        raise Refusal("a mask of symbolic sizes for reshaped scores")
    full = (1,) * (len(own) - len(lead)) + lead
    if len(own) == 1 and len(batch) == 2 and lead == own:
        return lambda write, node: write.method("reshape", node, (*batch, *columns))
    if len(own) >= 3 and math.prod(own[:-1]) == math.prod(batch[:-1]) and own[-1] == batch[-1]:
        shape, rows = (*own[:-1], full[-1], *columns), (math.prod(own[:-1]), full[-1], *columns)
        return lambda write, node: write.method("reshape", write.method("expand", node, shape), rows)
    raise Refusal("a mask for reshaped scores")
