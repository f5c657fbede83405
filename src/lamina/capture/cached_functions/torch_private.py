"""Calls of functions whose results Python keeps; names as read in torch 2.11 to 2.13.

Dynamo traces the function behind ``functools.cache``: what it does, draws and reads happens at each call. Here the
function with its cache gives the result, as it does in eager: asked for at each call, before the graph, if it does
nothing but compute a value; else by Python, between two graphs.
"""

from __future__ import annotations

import functools
from typing import Any, NoReturn

from torch._dynamo.exc import unimplemented
from torch._dynamo.source import CallFunctionNoArgsSource, GlobalSource
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.functions import WrapperUserFunctionVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._guards import TracingContext

from lamina.capture.cached_functions.pure import is_pure, is_settled
from lamina.capture.external_state.reads import names_read
from lamina.capture.trace_corrections.torch_private import compiles_for_lamina

__all__ = ["keep_cached_results"]

_NOT_CONSTANT = "its arguments are not constant, or modes are on"
_NOT_PURE = "it may do more than compute a value"


def keep_cached_results() -> None:
    """Replace Dynamo's method, once, for traces of Lamina's."""
    call_any = WrapperUserFunctionVariable.call_function

    @functools.wraps(call_any)
    def call(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if not _is_cached(self) or not compiles_for_lamina(tx.output):
            return call_any(self, tx, args, kwargs)
        given = _constants([*self.self_args(), *args, *kwargs.values()])
        pure = is_pure(getattr(self.wrapper_obj, "__wrapped__", None))
        if given is not None and pure and not _in_modes(tx) and not _reads_caches():
            count = len(given) - len(kwargs)
            ask = functools.partial(self.wrapper_obj, *given[:count], **dict(zip(kwargs, given[count:], strict=True)))
            try:
                result = ask()
            except Exception:
                _break_at_cached(self, "it raises")
            place = GlobalSource(tx.output.install_global("__lamina_cached", ask))
            return VariableTracker.build(tx, result, CallFunctionNoArgsSource(place))
        if tx.one_graph:
            return call_any(self, tx, args, kwargs)
        _break_at_cached(self, _NOT_CONSTANT if pure else _NOT_PURE)

    WrapperUserFunctionVariable.call_function = call  # type: ignore[method-assign]


def _is_cached(variable: Any) -> bool:
    """Whether it is a function of the user's behind a cache."""
    function = variable.wrapper_obj
    if variable.attr_to_trace != "__wrapped__" or not hasattr(function, "cache_info"):
        return False
    return str(getattr(function, "__module__", "")).split(".")[0] != "torch"


def _constants(variables: list[Any]) -> list[Any] | None:
    """The values of ``variables``, None if one of them is not known to be the same at each call."""
    found = []
    for variable in variables:
        value = variable.realize() if issubclass(type(variable), LazyVariableTracker) else variable
        if not value.is_python_constant():
            return None
        found.append(value.as_python_constant())
    return found if all(map(is_settled, found)) else None


def _in_modes(tx: Any) -> bool:
    """Whether modes are on that were not before the graph, where the function runs at the calls that come."""
    if any(getattr(node.target, "__name__", "") in _SWITCHES for node in tx.output.graph.nodes):
        return True
    while tx is not None:
        if any(block.with_context is not None for block in tx.block_stack):
            return True
        tx = tx.parent
    return False


_SWITCHES = ("set_grad_enabled", "_set_grad_enabled", "_enter_autocast", "_exit_autocast")


def _reads_caches() -> bool:
    """Whether the program counts the calls of its caches: it sees more of them."""
    context = TracingContext.try_get()
    return context is not None and "cache_info" in names_read(context.traced_code)


def _break_at_cached(variable: Any, why: str) -> NoReturn:
    name = getattr(variable.wrapper_obj, "__qualname__", "a function")
    unimplemented(
        gb_type="call of a function behind functools.cache",
        context=name,
        explanation=f"{name} runs once for equal arguments, and a trace runs it at each call; {why}",
        hints=["Call it before the compiled function", "Remove the cache"],
    )
