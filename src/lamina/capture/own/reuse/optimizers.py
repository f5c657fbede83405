"""Functions of torch's optimizers that a traced call enters, though Dynamo is kept from them, or that are answered."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import FunctionType, MethodType
from typing import Any

from lamina.capture.own.frame import MISSING
from lamina.capture.own.reuse.answers import is_function
from lamina.capture.own.reuse.attribute_reads import Attributes
from lamina.capture.own.reuse.calls import Calls
from lamina.capture.own.reuse.trace import Trace
from lamina.capture.own.training.torch_private import GROUPS, RANGE, is_no_break, is_profiled, undisabled

__all__ = ["Optimizers"]

_OPTIMIZERS = "torch.optim."


class Optimizers:
    """``interpret`` runs a function, ``enters`` notes what a call of it reads; ``module`` names that in progress."""

    def __init__(
        self,
        trace: Trace,
        attributes: Attributes,
        calls: Calls,
        interpret: Callable[..., Any],
        enters: Callable[[FunctionType], bool],
        module: Callable[[], str],
    ) -> None:
        self.trace, self.attributes, self.calls = trace, attributes, calls
        self.interpret, self.enters, self.module = interpret, enters, module

    def called(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call gives; ``MISSING`` if it is none of these."""
        trace, of = self.trace, function.__func__ if type(function) is MethodType else function
        if undisabled(of) and is_function(trace, of):
            inner = self.attributes.read(of, "__wrapped__")
            if trace.ended is None and self.enters(inner):
                return self.interpret(inner, *(args if of is function else (function.__self__, *args)), **kwargs)
        elif is_no_break(function) and self.module().startswith(_OPTIMIZERS) and is_function(trace, function):
            return None
        elif function is RANGE:
            return self._range()
        elif function is GROUPS and len(args) == 2 and not kwargs:
            self.calls.opened_deep(args[0])
            return function(*args)
        return MISSING

    def _range(self) -> Any:
        """What stands for a range that profilers are told of, while there is none; else ``MISSING``."""
        trace = self.trace
        if trace.enter(is_profiled(), trace.facts.place("computed", None, (is_profiled,))):
            return MISSING
        return trace.remember(nullcontext())
