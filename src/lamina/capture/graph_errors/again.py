"""A frame whose graph may raise: whether Python can run it again from its begin, and how it does."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.base.aliasing import tensors_written
from lamina.base.batch_norms import statistics_written
from lamina.base.lowering import is_programs_own
from lamina.base.modes import autocast_kept
from lamina.base.retryable import CALLER, is_retryable
from lamina.base.source import operation_name
from lamina.capture.log import CaptureLog
from lamina.capture.modes.switches import place_of
from lamina.ops.raising import holds

__all__ = ["Again", "Engine", "arguments_of", "may_raise"]

_TOKEN = "__lamina_again__"
_GRAD = "_set_grad_enabled"


def may_raise(gm: GraphModule) -> bool:
    """Whether a call of a captured graph may raise for what its operands hold."""
    return any(
        node.op in ("call_function", "call_method", "call_module") and not holds(node) for node in gm.graph.nodes
    )


@dataclass(frozen=True, slots=True)
class Engine:
    """What frames need of torch's inside.

    ``uncompiled`` gives a function that is not compiled, nor is what it calls; ``set_grad`` sets the grad mode,
    ``is_hooked`` says whether hooks see tensors that are saved for a backward.
    """

    uncompiled: Callable[[Callable[..., Any]], Callable[..., Any]]
    set_grad: Callable[[bool], object]
    is_hooked: Callable[[], bool]


class Again:
    """A frame of ``code``, which Python runs from its begin where its graph ``gm`` has raised before it has written.

    So the program has done what it does before the error, and its handlers see it. ``changes``: its code changes
    objects after the graph; ``draws``: it draws Python's random numbers before it, which it must not do twice. Where
    the frame cannot run again, ``log`` is told of what is lost; where it raises nothing then, of the error of the
    graph, which is raised if ``strict``.
    """

    def __init__(
        self,
        code: CodeType,
        gm: GraphModule,
        changes: bool,
        draws: bool,
        engine: Engine,
        log: CaptureLog,
        strict: bool,
    ) -> None:
        self.code, self.log, self.strict, self.engine = code, log, strict, engine
        self.changes = changes
        nodes = list(gm.graph.nodes)
        self.possible = not draws and not any(map(_acts_outside, nodes))
        self.writes = any(tensors_written(node) or statistics_written(node) for node in nodes)
        self.autocast = any("autocast" in operation_name(node.target) for node in nodes)

    def watched(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """``run``, the compiled graph, whose errors are known by ``takes`` where the frame can run again."""
        is_grad_enabled, set_grad_enabled = torch.is_grad_enabled, self.engine.set_grad

        def call(*inputs: Any) -> Any:
            before, CALLER.takes_errors = CALLER.takes_errors, self.possible
            grad, set_back = is_grad_enabled(), autocast_kept() if self.autocast else None
            try:
                return run(*inputs)
            except Exception as error:
                if self._can_run_again(error):
                    set_grad_enabled(grad)
                    if set_back is not None:
                        set_back()
                    setattr(error, _TOKEN, self)
                raise
            finally:
                CALLER.takes_errors = before

        return call

    def _can_run_again(self, error: Exception) -> bool:
        if self.possible and not self.engine.is_hooked() and (not self.writes or is_retryable(error)):
            return True
        if self.changes:
            self.log.changes_lost(place_of(self.code), type(error).__name__)
        return False

    def takes(self, error: BaseException) -> bool:
        """Whether the frame runs again for an error, which its code has caught."""
        if getattr(error, _TOKEN, None) is not self:
            return False
        delattr(error, _TOKEN)
        return True

    def run(self, error: BaseException, names: dict[str, Any], *values: Any) -> Any:
        """What Python makes of the frame with these globals, values of arguments and cells of free variables."""
        code = self.code
        count = len(arguments_of(code))
        function = FunctionType(code, names, code.co_name, None, values[count:])
        positional, named = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
        args = values[:positional]
        kwargs = dict(zip(code.co_varnames[positional:named], values[positional:named], strict=True))
        rest = list(values[named:count])
        if code.co_flags & inspect.CO_VARARGS:
            args = (*args, *rest.pop(0))
        if code.co_flags & inspect.CO_VARKEYWORDS:
            kwargs.update(rest.pop(0))
        found = self.engine.uncompiled(function)(*args, **kwargs)
        if self.strict:
            raise error
        self.log.run_by_python(place_of(code), f"its graph raised {type(error).__name__}, and eager does not", False)
        return found


def arguments_of(code: CodeType) -> tuple[str, ...]:
    """The variables of a function that are its arguments, those for the rest included."""
    flags = (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS)
    count = code.co_argcount + code.co_kwonlyargcount + sum(bool(code.co_flags & flag) for flag in flags)
    return code.co_varnames[:count]


def _acts_outside(node: Node) -> bool:
    """Whether a call may do something else than compute, which must not be done twice."""
    if node.op == "call_function" and is_programs_own(node.target):
        return True
    name = operation_name(node.target)
    return node.op == "call_function" and name.lstrip("_").startswith("set_") and name != _GRAD
