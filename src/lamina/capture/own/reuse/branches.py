"""``torch.cond`` as a call of a graph, which has the graphs of both branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lamina.base.torch_private import storage_of
from lamina.capture.own.frame import MISSING
from lamina.capture.own.noting import pin_sizes
from lamina.capture.own.pending import Pending
from lamina.capture.own.reuse.answers import is_function
from lamina.capture.own.reuse.attempts import is_from_outside
from lamina.capture.own.reuse.facts import is_settled
from lamina.capture.own.reuse.trace import TENSORS, Trace
from lamina.capture.own.reuse.transformed import Given
from lamina.capture.own.segment import Segment
from lamina.capture.own.torch_private import is_plain, without_function_modes
from lamina.capture.own.transforms.body import Body, finished, look_within, rebuilt, taken_apart

__all__ = ["conditional"]

_COND: Any = torch.cond
_NAMES = ("pred", "true_fn", "false_fn", "operands")


def conditional(
    trace: Trace,
    recorder: Any,
    interpret: Callable[..., Any],
    enters: Callable[[Any], None],
    opened: Callable[[Any], None],
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """What a call of ``torch.cond`` gives; ``MISSING``, and nothing was done, for others."""
    if function is not _COND or not is_function(trace, _COND):
        return MISSING
    given = {**dict(zip(_NAMES, args, strict=False)), **kwargs}
    if len(given) != len(args) + len(kwargs) or not {*_NAMES[:3]} <= given.keys() <= {*_NAMES}:
        return MISSING
    decides, *branches = (given[name] for name in _NAMES[:3])
    operands = given.get("operands", ())
    if type(decides) not in (Pending, *TENSORS) or type(operands) not in (tuple, list):
        return MISSING
    opened(operands)
    if not all(type(one) in (Pending, *TENSORS) for one in operands) or not all(
        is_from_outside(trace, branch) for branch in branches
    ):
        return MISSING
    if not all(type(one) is Pending or is_plain(one) for one in (decides, *operands)) or trace.ended is not None:
        return MISSING
    pin_sizes(trace)
    given_functions = Given(trace, recorder, interpret, enters, opened)
    return given_functions.captured(_Branches(given_functions, decides, branches, tuple(operands)).call)


class _Branches:
    """A call that runs one of two ``branches`` on ``operands``."""

    def __init__(
        self, attempt: Given, decides: torch.Tensor, branches: list[Any], operands: tuple[torch.Tensor, ...]
    ) -> None:
        self.attempt, self.decides, self.branches, self.operands = attempt, decides, branches, operands

    def call(self, around: Segment) -> Any:
        computed, keys, structures, free = [], [], [], []
        for branch in self.branches:
            with without_function_modes():
                body = Body(around, [look_within(around.fake_of(one)) for one in self.operands], self.attempt.recorder)
            result = self.attempt.interpreted(body, torch.is_grad_enabled(), branch, tuple(body.given), {})
            given = taken_apart(result, is_settled)
            if given is None or self.attempt.trace.ended is not None or not given[1]:
                self.attempt.refuse()
            with without_function_modes():
                if not _are_apart([body.fake_of(one) for one in given[1]], body):
                    self.attempt.refuse()
                graph, key, read = finished(body, given[1])
            computed.append(graph)
            keys.append(key)
            structures.append(given[0])
            free.append(read)
        if structures[0] != structures[1]:
            self.attempt.refuse()
        known = self.attempt.recorder.regions.functions
        key = _COND, *keys, len(free[0]), len(free[1])
        if key not in known:
            known[key] = _call(computed, len(self.operands), len(free[0]))
        with without_function_modes():
            made = self.attempt.recorded(around, known[key], (self.decides, *self.operands, *free[0], *free[1]))
        return rebuilt(structures[0], made)


def _are_apart(results: list[torch.Tensor], body: Body) -> bool:
    """Whether results share no memory, with each other and with what the branch reads, which torch refuses."""
    made, read = ([storage_of(one) for one in some if one.layout is torch.strided] for some in (results, body.fakes))
    return len({*made}) == len(results) and {*made}.isdisjoint(read)


def _call(computed: list[Callable[..., Any]], count: int, first: int) -> Callable[..., Any]:
    """A function of what decides, ``count`` operands, ``first`` tensors that the first branch reads, and the others."""

    def true(*given: torch.Tensor) -> Any:
        return computed[0](*given[: count + first])

    def false(*given: torch.Tensor) -> Any:
        return computed[1](*given[:count], *given[count + first :])

    def call(decides: torch.Tensor, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.ops.higher_order.cond(decides, true, false, given))

    call.__name__ = call.__qualname__ = "one_of_two_branches"
    return call
