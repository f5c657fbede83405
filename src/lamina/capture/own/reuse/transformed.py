"""Transforms of ``torch.func`` as calls of a graph, which are given the graph of the program's function.

The function is interpreted once, on tensors that look as those which the transform gives it. Where it does what no
graph holds, writes, draws or asks what only the transform knows, nothing was done, and torch makes the call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from lamina.base.torch_private import let_go
from lamina.capture.own.frame import MISSING
from lamina.capture.own.nested import flat
from lamina.capture.own.noting import pin, pin_sizes
from lamina.capture.own.pending import Pending
from lamina.capture.own.recorder import Recorder
from lamina.capture.own.reuse.answers import is_function
from lamina.capture.own.reuse.attempts import Attempt, is_from_outside
from lamina.capture.own.reuse.facts import is_settled
from lamina.capture.own.reuse.trace import Trace
from lamina.capture.own.saved_tensors.torch_private import without_idle_hooks
from lamina.capture.own.segment import Segment
from lamina.capture.own.torch_calls import QUERIES, name_of
from lamina.capture.own.torch_private import LAYERS, SET_GRAD, is_plain, unhooked, without_function_modes
from lamina.capture.own.transforms.body import TOLD_ALIKE, Body, Look, finished, look_within, rebuilt, taken_apart
from lamina.capture.own.transforms.transform import MAKERS, Transform, is_made_by_transform, transform_of

__all__ = ["Given", "transformed"]

_REFUSED = frozenset(("item", "requires_grad_"))
"""Calls that are answered elsewhere without a call in a graph."""


def transformed(
    trace: Trace,
    recorder: Recorder,
    interpret: Callable[..., Any],
    enters: Callable[[Any], None],
    opened: Callable[[Any], None],
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """What a call of a transform gives, or of what one has made; ``MISSING``, and nothing was done, for others.

    ``enters`` notes what a call of a function reads of it, ``opened`` what is in containers.
    """
    if any(function is maker for maker in MAKERS):
        known = is_function(trace, function) and all(map(is_settled, (*args[1:], *kwargs.values())))
        return _made(trace, function, args, kwargs) if known and args and callable(args[0]) else MISSING
    if is_made_by_transform(function):
        enters(function)
        for cell in function.__closure__:
            trace.child(cell, "attribute", "cell_contents", cell.cell_contents)
    found = transform_of(function, args, kwargs, is_settled)
    if found is None or trace.ended is not None:
        return MISSING
    transform, args, kwargs = found
    if not is_from_outside(trace, transform.function):
        return MISSING
    for value in (*args, *kwargs.values()):
        opened(value)
    apart = taken_apart((args, kwargs), is_settled)
    if apart is None or not all(type(one) is Pending or is_plain(one) for one in apart[1]):
        return MISSING
    pin(trace, args, kwargs)
    pin_sizes(trace)
    attempt = Given(trace, recorder, interpret, enters, opened)
    return attempt.captured(_Transformed(attempt, transform, *apart).call)


def _made(trace: Trace, maker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The function that a transform makes, and that within it where it is two in one."""
    made = maker(*args, **kwargs)
    found = transform_of(made, (), {}, is_settled)
    if found is not None and found[0].function is not args[0]:
        trace.remember(found[0].function)
    return trace.remember(made)


class Given(Attempt):
    """A call that is given functions of the program's, which are captured in graphs of their own."""

    def __init__(
        self,
        trace: Trace,
        recorder: Recorder,
        interpret: Callable[..., Any],
        enters: Callable[[Any], None],
        opened: Callable[[Any], None],
    ) -> None:
        super().__init__(trace, recorder, draws=False)
        self.interpret, self.enters, self.opened = interpret, enters, opened

    def asked(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = name_of(function)
        pending = any(type(one) is Pending for one in flat((args, kwargs)))
        if name in _REFUSED or (name in QUERIES and name not in TOLD_ALIKE and pending) or function in LAYERS:
            self.refuse()
        pin(self.trace, args, kwargs)

    def captured(self, capture: Callable[[Segment], Any]) -> Any:
        """What ``capture`` gives with the graph around; ``MISSING`` if it is given up."""
        recorder = self.recorder
        if recorder.segment is None:
            recorder.segment = Segment(recorder.regions.fakes(), recorder.held)
        around = recorder.segment
        try:
            return self.of(partial(capture, around))
        finally:
            recorder.segment = around if recorder.segment is not None else None

    def interpreted(self, body: Body, grad: bool, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a function gives in a grad mode, whose calls of torch's go to ``body``."""
        before = torch.is_grad_enabled()
        self.recorder.segment = body
        try:
            with without_function_modes():
                SET_GRAD(grad)
            found = self._called(function, args, kwargs)
            self.opened(found)
            return found
        finally:
            self.recorder.segment = body.around
            with without_function_modes():
                SET_GRAD(before)

    def _called(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the program's function gives, which another transform may have made."""
        found = transformed(self.trace, self.recorder, self.interpret, self.enters, self.opened, function, args, kwargs)
        if found is MISSING and is_made_by_transform(function):
            self.refuse()
        return self.interpret(function, *args, **kwargs) if found is MISSING else found

    def recorded(self, around: Segment, call: Callable[..., Any], operands: tuple[torch.Tensor, ...]) -> Any:
        """What a call of the graph around gives that is given such graphs; it is made once without values."""
        try:
            with around.mode, unhooked():
                call(*map(around.fake_of, operands))
        except Exception as error:  # eager says what is wrong
            let_go(error)
            self.refuse()
        made = self.recorder.recorded(call, operands, {})
        if made is None:
            self.refuse()
        return made[0]


class _Transformed:
    """The call of a ``transform`` that is given ``operands`` in a structure."""

    def __init__(self, attempt: Given, transform: Transform, structure: Any, operands: list[torch.Tensor]) -> None:
        self.attempt, self.transform, self.structure, self.operands = attempt, transform, structure, operands

    def call(self, around: Segment) -> Any:
        recorder = self.attempt.recorder
        with without_function_modes():
            fakes = [around.fake_of(one) for one in self.operands]
            structure, seen, grad = self._probed(around, fakes)
            body = Body(around, seen, recorder)
        result = self.attempt.interpreted(body, grad, self.transform.function, *rebuilt(structure, body.given))
        given = taken_apart(result, is_settled)
        if given is None or self.attempt.trace.ended is not None:
            self.attempt.refuse()
        with without_function_modes():
            computed, told, free = finished(body, given[1])
            key = self.transform.key, self.structure, structure, told, given[0], grad
            call: Any = recorder.regions.functions.get(key)
            if call is None:
                call = _call(self.transform, self.structure, len(fakes), computed, given[0])
                recorder.regions.functions[key] = call
            made = self.attempt.recorded(around, call, (*self.operands, *free))
        return rebuilt(call.structure, made)

    def _probed(self, around: Segment, fakes: list[Any]) -> tuple[Any, list[Look], bool]:
        """What the transform gives the function: the structure, how the tensors look, and the grad mode."""
        told: list[Any] = []

        def probe(*args: Any, **kwargs: Any) -> Any:
            apart = taken_apart((args, kwargs), is_settled)
            if apart is not None:
                told.append((apart[0], [*map(look_within, apart[1])], torch.is_grad_enabled()))
            raise _Told

        args, kwargs = rebuilt(self.structure, fakes)
        with around.mode, unhooked(), without_idle_hooks():
            try:
                self.transform.of(probe)(*args, **kwargs)
            except _Told:
                pass
            except Exception as error:  # eager says what is wrong
                let_go(error)
                told.clear()
        if not told:
            self.attempt.refuse()
        seen: tuple[Any, list[Look], bool] = told[0]
        return seen


class _Told(Exception):
    """Ends a transform that has given the function its tensors."""


def _call(
    transform: Transform, structure: Any, count: int, computed: Callable[..., Any], result: Any
) -> Callable[..., Any]:
    """A function of the operands, ``count`` of them, and of what the program's function reads, for a graph."""

    def call(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        free = tensors[count:]

        def function(*args: Any, **kwargs: Any) -> Any:
            return rebuilt(result, computed(*flat((args, kwargs)), *free))

        args, kwargs = rebuilt(structure, tensors[:count])
        with without_idle_hooks():
            apart = taken_apart(transform.of(function)(*args, **kwargs), is_settled)
        if apart is None:
            raise TypeError("a transform gives what is neither a tensor nor a constant")
        call.structure = apart[0]  # type: ignore[attr-defined]
        return tuple(apart[1])

    call.__name__ = call.__qualname__ = f"transformed_by_{transform.name}"
    return call
