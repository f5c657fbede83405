"""The world of a call that is interpreted and traced: what it reads is noted, what it writes is noted and done."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from itertools import chain
from types import BuiltinFunctionType, FunctionType, MethodType, MethodWrapperType
from typing import Any

import torch

from lamina.base.class_flags import MADE_BY_PYTHON
from lamina.base.torch_private import is_functional
from lamina.capture.own.capturing import CapturingWorld, is_captured, reads_plainly
from lamina.capture.own.causes.torch_private import only_dynamo_captures
from lamina.capture.own.checkpoints.torch_private import CHECKPOINT
from lamina.capture.own.compiler_marks.torch_private import target_of_compiled
from lamina.capture.own.frame import MISSING
from lamina.capture.own.functions.applying import apply
from lamina.capture.own.functions.history import history_of, program_of
from lamina.capture.own.functions.torch_private import APPLY
from lamina.capture.own.iterating import iterators
from lamina.capture.own.module_init.torch_private import module_to_initialise
from lamina.capture.own.natives import (
    CACHED,
    CLOCK,
    CONSUMERS,
    KEEPING,
    LAZY,
    is_clock,
    is_plain_signature,
    seen_by_modes,
    unbound,
)
from lamina.capture.own.of_torch import unrecorded
from lamina.capture.own.pending import Pending
from lamina.capture.own.reuse.answers import is_function
from lamina.capture.own.reuse.attempts import checkpointed_call
from lamina.capture.own.reuse.attribute_reads import Attributes
from lamina.capture.own.reuse.base_methods import BaseMethods
from lamina.capture.own.reuse.branches import conditional
from lamina.capture.own.reuse.by_code import ByCode, has_code
from lamina.capture.own.reuse.caches import Caches
from lamina.capture.own.reuse.calls import Calls
from lamina.capture.own.reuse.changes import Changes
from lamina.capture.own.reuse.facts import is_settled
from lamina.capture.own.reuse.flex import attended, told_captured
from lamina.capture.own.reuse.functional_calls import called_functionally
from lamina.capture.own.reuse.learning import NUMBERS
from lamina.capture.own.reuse.numbers import Numbers
from lamina.capture.own.reuse.operators import Operators
from lamina.capture.own.reuse.optimizers import Optimizers
from lamina.capture.own.reuse.outside import printed, read_clock
from lamina.capture.own.reuse.trace import DICTS, TENSORS, Trace
from lamina.capture.own.reuse.transformed import transformed
from lamina.capture.own.torch_calls import name_of

__all__ = ["TracingWorld"]


class TracingWorld:
    """A captured call whose facts go to ``trace``; where the trace has ended, ``base`` answers as for other calls."""

    def __init__(self, base: CapturingWorld, trace: Trace) -> None:
        self.base, self.trace = base, trace

        def interpret(*given: Any, **named: Any) -> Any:
            return base.interpret(*given, **named)

        self.attributes = Attributes(trace, interpret, self.enters, base.attribute, base.plainly)
        self.calls = Calls(trace, self.attributes)
        self.operators = Operators(trace, self.calls, interpret, self.enters)
        self.numbers = Numbers(trace)
        self.changes = Changes(trace, self.attributes, self.operators)
        self.base_methods = BaseMethods(trace)
        self.caches = Caches(trace)
        self.optimizers = Optimizers(trace, self.attributes, self.calls, interpret, self.enters, lambda: base.module())
        self.by_code = ByCode(trace, self.attributes, self.changes, interpret, self.enters, self.settle)

    def attribute(self, value: Any, name: str) -> Any:
        if self.trace.ended is not None:
            return self.base.attribute(value, name)
        self.trace.learning.pin(value if type(value) in NUMBERS else None)
        return self.attributes.read(value, name)

    def looked_up(self, kind: type, name: str) -> Any:
        if self.trace.ended is not None:
            return self.base.looked_up(kind, name)
        return self.trace.class_entry(torch.Tensor if kind is Pending else kind, name)

    def variable(self, function: FunctionType, name: str) -> Any:
        trace = self.trace
        if trace.ended is not None:
            return self.base.variable(function, name)
        space = trace.fixed(function.__globals__, "globals()")
        found = trace.dict_item(space, name)
        if found is MISSING:
            given: Any = function
            found = trace.dict_item(trace.fixed(given.__builtins__, "builtins"), name)
        return found

    def cell(self, cell: Any) -> Any:
        found = cell.cell_contents
        if self.trace.ended is not None:
            return found
        return self.trace.child(cell, "attribute", "cell_contents", found)

    def made(self, value: Any) -> Any:
        if type(value) is FunctionType or type(value).__flags__ & MADE_BY_PYTHON:
            self.trace.remember(value)
        return value

    def settle(self) -> None:
        self.base.settle()

    def frame_asked(self, function: Any) -> None:
        self.trace.end(f"{function.__name__}() asks for the frame")

    def enters(self, function: FunctionType) -> bool:
        enters = self.base.enters(function)
        if enters and self.trace.ended is None:
            self.enter(function)
        return enters

    def enter(self, function: FunctionType) -> None:
        """Note what a call of ``function`` reads of it."""
        trace = self.trace
        place = trace.place_of(function)
        if place is None:
            if not trace.is_made(function):
                trace.end(f"it is not known where function {function.__qualname__} comes from")
            return
        for name in ("__code__", "__globals__", "__builtins__"):
            trace.note("is", (trace.facts.place("attribute", place, name),), getattr(function, name))
        for name in ("__defaults__", "__kwdefaults__"):
            given = trace.attribute_of(function, name)
            if given is not None and not is_settled(given):
                trace.opened(given)
        if function.__closure__ is not None:
            cells = trace.attribute_of(function, "__closure__")
            trace.opened(cells)

    def operate(self, function: Callable[..., Any], *operands: Any) -> Any:
        if self.trace.ended is None and self.trace.learning.values:
            found = self.numbers.operated(function, operands)
            if found is not MISSING:
                return found
        if self.trace.ended is None:
            if function is operator.getitem:
                _meet(self, operands[0])
            found = self.operators.operated(function, operands)
            if found is not MISSING:
                return found
            if self.trace.ended is None:
                return function(*operands)
        return self.base.operate(function, *operands)

    def change(self, function: Callable[..., Any], *operands: Any) -> Any:
        return self._changed(self.base.change, self.settle, function, operands)

    def build(self, function: Callable[..., Any], *operands: Any) -> Any:
        return self._changed(self.base.build, _nothing, function, operands)

    def _changed(
        self, untold: Callable[..., Any], settle: Callable[[], None], function: Callable[..., Any], operands: Any
    ) -> Any:
        trace = self.trace
        if trace.ended is None and trace.learning.values:
            found = self.numbers.changed(function, operands)
            if found is not MISSING:
                return found
        if trace.ended is None and (method := self.by_code.writer(function, operands)) is not None:
            return method()
        if trace.ended is None:
            settle()
            if function is setattr and operands[1] == "grad" and type(operands[0]) in TENSORS:
                if type(operands[2]) is Pending:
                    self.base.recorder.flush()
                if trace.gradients.write(operands[0], operands[2]):
                    return None
            if self.changes.noted(function, operands):
                return function(*operands)
            name = getattr(function, "__name__", "a write").strip("_")
            trace.end(f"{name} on a {type(operands[0]).__qualname__}")
        return untold(function, *operands)

    def call(self, caller: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.trace.ended is not None:
            return self.base.call(caller, function, args, kwargs)
        if is_captured(self.base, function, args, kwargs):
            _answered(self.trace, function)
            return True
        if (found := _given_functions(self, function, args, kwargs)) is not MISSING:
            return found
        if function is CHECKPOINT and is_function(self.trace, CHECKPOINT):
            return self._by_torch(caller, function, args, kwargs)
        if function is history_of or _is_applied(self.trace, function, args, kwargs):
            return self.base.call(caller, function, args, kwargs)
        if (writer := _WRITERS.get(id(function))) is not None and not kwargs and len(args) == writer[1]:
            return self.change(writer[0], *args)
        if (found := _seen_outside(self, function, args, kwargs)) is not MISSING:
            return found
        function, args = unbound(function, args)
        if id(function) in LAZY:
            args = iterators(self, function, args)
        elif id(function) in CONSUMERS and len(args) == 1 and not kwargs and self.by_code.is_made_generator(args[0]):
            if function is all or function is any:
                return self.by_code.asked_one_by_one(self.operate, function is any, args[0])
            args = args if id(function) in KEEPING else (_drawn(function, args[0]),)
        found = self.numbers.called(caller, function, args, kwargs)
        if found is MISSING and self.trace.ended is None:
            found = self._called(function, args, kwargs)
        if found is not MISSING or self.trace.ended is not None:
            return self.base.call(caller, function, args, kwargs) if found is MISSING else found
        if self.calls.is_native(function, args, kwargs):
            _answered(self.trace, function)
            self.settle()
            return caller(function, args, kwargs)
        if _makes_plainly(function, args):
            return self.trace.remember(caller(function, args, kwargs))
        return self._by_torch(caller, function, args, kwargs)

    def _by_torch(
        self, caller: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call of torch's, or of what is not understood."""
        _meet(self, function)
        if not self._is_torch_call(function, (*args, *kwargs.values())):
            name = getattr(function, "__qualname__", None) or type(function).__qualname__
            self.trace.end(f"{name} is called, of which it is not known what it reads")
            return self.base.call(caller, function, args, kwargs)
        seen = self.base.recorder.seen
        result = self.base.call(caller, function, args, kwargs)
        if self.base.recorder.seen == seen:
            self.trace.end(f"{name_of(function)} of torch computes without asking modes")
        return result

    def _called(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call gives, if it is answered here; else ``MISSING``."""
        if type(function) is MethodWrapperType and function.__name__ == "__setattr__" and len(args) == 2 and not kwargs:
            return self.by_code.set_plainly(function, *args)
        if not kwargs and self.base_methods.is_one(function):
            self.settle()
            found = self.base_methods.called(function.__self__, function.__name__, args)
            if found is not MISSING:
                return found
        if type(function) is BuiltinFunctionType and type(function.__self__) in (list, *DICTS):
            found = self._method_of_outside(function, args, kwargs)
            if found is not MISSING:
                return found
        if (found := self._remembered(function, args, kwargs)) is not MISSING:
            return found
        if reads_plainly(function) and len(args) == 1 and type(args[0]) is str and not kwargs:
            return self.attributes.plainly(function.__self__, args[0])
        if (found := self.optimizers.called(function, args, kwargs)) is not MISSING:
            return found
        module = None if kwargs else module_to_initialise(function, args)
        if module is not None and self.trace.is_made(module):
            return function(*args)
        if type(function) is partial:
            return self.by_code.partial(function, args, kwargs)
        if is_plain_signature(function, args, kwargs):
            _answered(self.trace, function)
            return self.by_code.signature(*args)
        if function is len and len(args) == 1 and not kwargs:
            if type(args[0]) in (Pending, *TENSORS) and (length := self._length(args[0])) is not MISSING:
                return length
            if has_code(args[0]):
                return self.operate(len, *args)
        return self.calls.done(function, args, kwargs)

    def _remembered(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a function with a cache gives; ``MISSING`` if it is none, or not known."""
        of = function.__func__ if type(function) is MethodType else function
        given = args if of is function else (function.__self__, *args)
        if type(of) is not CACHED or not self.caches.remembers(of, given, kwargs):
            return MISSING
        segment = self.base.recorder.segment
        if segment is not None and (segment.writes or segment.draws):
            self.base.recorder.end(f"the call of {of.__qualname__}")  # which may read what is written, or draw
        return self.caches.remembered(of, given, kwargs, partial(unrecorded, self.base.recorder))

    def _length(self, tensor: Any) -> Any:
        """The length of a tensor as a size that varies; ``MISSING`` where none does, and Python asks."""
        sizes = self.trace.sizes
        if sizes is None or not sizes.is_open:
            return MISSING
        self.trace.class_entry(torch.Tensor if type(tensor) is Pending else type(tensor), "__len__")
        shape = tensor.shape
        return shape[0] if len(shape) else MISSING

    def _method_of_outside(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        trace, owner, name = self.trace, function.__self__, function.__name__
        if kwargs or trace.place_of(owner) is None:
            return MISSING
        if name == "get" and type(owner) in DICTS:
            return self.calls.get_of(owner, *args)
        if name == "append" and type(owner) is list and len(args) == 1:
            trace.effect(list.append, owner, args, owner, len(owner))
            self.settle()
            owner.append(*args)
            return None
        return MISSING

    def _is_torch_call(self, function: Any, given: tuple[Any, ...]) -> bool:
        """Whether the recorder sees the call, and tells the trace if it does not record it."""
        trace, kind = self.trace, type(function)
        for value in given:
            self.calls.opened_deep(value)
        if name_of(function) == "is_shared":
            return False
        if kind is FunctionType:
            return "handle_torch_function" in function.__code__.co_names and is_function(trace, function)
        if kind in (BuiltinFunctionType, MethodWrapperType) and isinstance(function.__self__, torch.Tensor):
            return True
        if is_functional(function) and (place := trace.place_of(function)) is not None:
            trace.note("is", (place,), function)
            return True
        return id(function) in seen_by_modes()


def _seen_outside(world: TracingWorld, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call gives that prints, or reads a clock; ``MISSING`` for others."""
    if function is print and printed(world.trace, world.calls, world.settle, args, kwargs):
        return None
    if not is_clock(function):
        return MISSING
    world.base.recorder.end(CLOCK)
    return read_clock(world.trace, function, args, kwargs)


def _meet(world: TracingWorld, called: Any) -> None:
    """Note whether something is done of the call before one that only Dynamo captures."""
    recorder = world.base.recorder
    recorder.unbegun = not (world.trace.effects or recorder.flushed) and only_dynamo_captures(called)


def _given_functions(world: TracingWorld, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call gives of what runs functions of the program, or is compiled by itself; ``MISSING`` for others."""
    trace, interpret, recorder = world.trace, world.base.interpret, world.base.recorder
    target, place = target_of_compiled(function), trace.place_of(function)
    if target is not None and place is not None:
        trace.note("is", (place,), function)
        return interpret(trace.fixed(target), *args, **kwargs)
    if function is CHECKPOINT and is_function(trace, CHECKPOINT):
        return checkpointed_call(trace, recorder, interpret, args, kwargs)
    found = called_functionally(trace, world.attributes, world.calls, interpret, function, args, kwargs)
    if found is not MISSING:
        return found
    notes = world.enter, world.calls.opened_deep
    if (found := told_captured(world.base.module(), function)) is not MISSING:
        _answered(trace, function)
        return world.made(found)
    if (found := attended(trace, recorder, interpret, *notes, function, args, kwargs)) is not MISSING:
        return found
    if function is torch.cond:
        return conditional(trace, recorder, interpret, *notes, function, args, kwargs)
    return transformed(trace, recorder, interpret, *notes, function, args, kwargs)


def _answered(trace: Trace, function: Any) -> None:
    """Note which function is answered without entering it."""
    if not is_function(trace, function):
        trace.end(f"it is not known where function {function.__qualname__} comes from")


def _is_applied(trace: Trace, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call applies a function of autograd's, and is interpreted in a way of ours, which is noted."""
    if program_of(function, args, kwargs) is None:
        return False
    trace.fixed(apply)
    return is_function(trace, trace.fixed(APPLY))


def _makes_plainly(function: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call makes an object without attributes, or a named tuple of a tuple that is there."""
    if function is object.__new__:
        return len(args) == 1 and isinstance(args[0], type)
    return function is tuple.__new__ and len(args) == 2 and type(args[1]) is tuple and hasattr(args[0], "_fields")


_WRITERS: dict[int, tuple[Any, int]] = {id(setattr): (setattr, 3), id(delattr): (delattr, 2)}
"""Functions that write to attributes, by their identities, with the number of their arguments."""


def _nothing() -> None:
    """What is recorded goes on."""


def _drawn(function: Any, generator: Any) -> Any:
    """The values of a generator: as a list, if a native ``function`` takes them all and runs nothing of the program's.

    Where it may raise before it has taken all, which it does for values that it cannot compare or hash, they are drawn
    as it takes them.
    """
    values: list[Any] = []
    for value in generator:
        values.append(value)
        tensors = type(value) in (Pending, *TENSORS)
        if not (is_settled(value) or tensors):
            return chain(values, generator)
        if function is not sorted and not tensors and not _is_taken(function, values):
            return chain(values, generator)
    return values


def _is_taken(function: Any, values: list[Any]) -> bool:
    """Whether a builtin goes on after the last of ``values``."""
    if function is set or function is frozenset:
        return type(values[-1]) is not tuple and type(values[-1]) is not slice
    numbers = (int, float, bool)
    kinds = {type(values[0]), type(values[-1])}
    return kinds <= {*numbers, complex} if function is sum else kinds <= {*numbers} or kinds == {str}
