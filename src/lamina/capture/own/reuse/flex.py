"""``flex_attention`` as a call of a graph, which has the graphs of the program's functions of scores and masks.

Torch's function is interpreted as it is when torch.compile captures it, so that its checks and what it makes of its
operands are the program's; only the call of the operator that it ends in is made here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from lamina.capture.own.compiler_marks.torch_private import ANNOTATE
from lamina.capture.own.flex_names.torch_private import (
    IS_CAPTURED,
    MODULE,
    is_mark_of_sizes,
    is_operator,
    places_as_indices,
)
from lamina.capture.own.frame import MISSING
from lamina.capture.own.noting import pin_sizes
from lamina.capture.own.pending import Pending
from lamina.capture.own.reuse.attempts import is_from_outside
from lamina.capture.own.reuse.facts import is_settled
from lamina.capture.own.reuse.trace import TENSORS, Trace
from lamina.capture.own.reuse.transformed import Given
from lamina.capture.own.segment import Segment
from lamina.capture.own.torch_private import is_plain, without_function_modes
from lamina.capture.own.transforms.body import Body, Look, finished, rebuilt, taken_apart

__all__ = ["attended", "told_captured"]

_INDICES = ("batch", "head", "query", "key")
"""Integers that tell a function which score it is given."""


def told_captured(module: str, function: Any) -> Any:
    """What is answered to the module of ``flex_attention``, whose operator is captured; ``MISSING`` to others.

    Notes for FX are nothing to anybody.
    """
    if function is ANNOTATE:
        return nullcontext()
    if module != MODULE:
        return MISSING
    if function is IS_CAPTURED:
        return True
    return None if is_mark_of_sizes(function) else MISSING


def attended(
    trace: Trace,
    recorder: Any,
    interpret: Callable[..., Any],
    enters: Callable[[Any], None],
    opened: Callable[[Any], None],
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """What a call of the operator gives; ``MISSING``, and nothing was done, for others."""
    if not is_operator(function) or kwargs or len(args) != 7 or trace.place_of(function) is None:
        return MISSING
    opened(args)
    query, key, value, score, mask, scale, options = args
    functions = [score, mask[-1]]
    apart = taken_apart(((query, key, value), mask[:-1], scale, options), is_settled)
    if apart is None or not all(is_from_outside(trace, one) for one in functions):
        return MISSING
    plain = all(type(one) is Pending or (type(one) in TENSORS and is_plain(one)) for one in apart[1])
    if not plain or trace.ended is not None:
        return MISSING
    pin_sizes(trace)
    given = Given(trace, recorder, interpret, enters, opened)
    return given.captured(_Attention(given, function, functions, *apart).call)


class _Attention:
    """A call of ``operator`` that computes scores by two ``functions``; its other operands are in a structure."""

    def __init__(
        self, attempt: Given, operator: Any, functions: list[Any], structure: Any, operands: list[torch.Tensor]
    ) -> None:
        self.attempt, self.operator, self.functions, self.structure, self.operands = (
            attempt,
            operator,
            functions,
            structure,
            operands,
        )

    def call(self, around: Segment) -> Any:
        with without_function_modes():
            query = around.fake_of(self.operands[0])
        index: Look = torch.int32, query.device, (), (), False
        score: Look = query.dtype, query.device, (), (), bool(query.requires_grad and torch.is_grad_enabled())
        indices = [index for _ in _INDICES]
        computed, keys, free = [], [], []
        for function, looks in zip(self.functions, ([score, *indices], indices), strict=True):
            graph, key, read = self._body(around, function, looks)
            computed.append(graph)
            keys.append(key)
            free.append(read)
        known = self.attempt.recorder.regions.functions
        key = self.operator, self.structure, *keys, len(free[0]), len(free[1])
        if key not in known:
            known[key] = _call(self.operator, computed, self.structure, len(self.operands), len(free[0]))
        with without_function_modes():
            made = self.attempt.recorded(around, known[key], (*self.operands, *free[0], *free[1]))
        return tuple(made)

    def _body(self, around: Segment, function: Any, looks: Sequence[Look]) -> tuple[Callable[..., Any], Any, Any]:
        """The graph of a function that gives one tensor."""
        with without_function_modes():
            body = Body(around, looks, self.attempt.recorder)
            body.stand_ins.within = places_as_indices
        result = self.attempt.interpreted(body, torch.is_grad_enabled(), function, tuple(body.given), {})
        if not isinstance(result, torch.Tensor) or self.attempt.trace.ended is not None:
            self.attempt.refuse()
        with without_function_modes():
            return finished(body, [result])


def _call(
    operator: Any, computed: Sequence[Callable[..., Any]], structure: Any, count: int, of_scores: int
) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A function of ``count`` operands and of what the functions read, the first one so many tensors, for a graph."""

    def score(*given: torch.Tensor) -> Any:
        return computed[0](*given)[0]

    def mask(*given: torch.Tensor) -> Any:
        return computed[1](*given)[0]

    def call(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        operands, blocks, scale, options = rebuilt(structure, tensors[:count])
        free = tensors[count:]
        found = operator(*operands, score, (*blocks, mask), scale, options, free[:of_scores], free[of_scores:])
        return tuple(found)

    call.__name__ = call.__qualname__ = "flex_attention"
    return call
