"""Calls of functions whose results Python keeps; names as read in torch 2.11 to 2.13.

Dynamo traces the function behind ``functools.cache``: what it does, draws and reads happens at each call. Here the
function with its cache gives the result, as it does in eager: asked for at each call, before the graph, if it does
nothing but compute a value; else by Python, between two graphs.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any, NoReturn

import torch
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

_NOT_CONSTANT = "its arguments, or what comes before it, are not constant"
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
        if given is not None and pure and not _in_with(tx) and _nothing_happened(tx.output):
            count = len(given) - len(kwargs)
            ask = functools.partial(self.wrapper_obj, *given[:count], **dict(zip(kwargs, given[count:], strict=True)))
            result = _first_result(self, ask)
            place = GlobalSource(tx.output.install_global("__lamina_cached", ask))
            return VariableTracker.build(tx, result, CallFunctionNoArgsSource(place))
        if tx.one_graph:
            return call_any(self, tx, args, kwargs)
        _break_at_cached(self, _NOT_CONSTANT if pure else _NOT_PURE)

    WrapperUserFunctionVariable.call_function = call  # type: ignore[method-assign]


def _first_result(variable: Any, ask: Callable[[], Any]) -> Any:
    """What ``ask`` gives, unless it raises or draws random numbers: Dynamo takes back what is drawn in a trace."""
    cached = variable.wrapper_obj
    before, was_empty = _random_states(), cached.cache_info().currsize == 0
    try:
        result = ask()
    except Exception:
        _break_at_cached(variable, "it raises")
    if _random_states() != before:
        if was_empty:
            cached.cache_clear()
        _break_at_cached(variable, "it draws random numbers")
    return result


def _random_states() -> tuple[Any, ...]:
    return random.getstate(), torch.get_rng_state().numpy().tobytes()


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


def _in_with(tx: Any) -> bool:
    """Whether a context manager is open: the function runs outside of it at the calls that come."""
    while tx is not None:
        if any(block.with_context is not None for block in tx.block_stack):
            return True
        tx = tx.parent
    return False


def _nothing_happened(output: Any) -> bool:
    """Whether what was traced so far has no effect that the function could see: it runs before the graph does.

    A program that counts the calls of its caches sees more of them.
    """
    context = TracingContext.try_get()
    if context is not None and "cache_info" in names_read(context.traced_code):
        return False
    return output.side_effects.is_empty() and all(map(_is_pure, output.graph.nodes))


def _is_pure(node: torch.fx.Node) -> bool:
    if node.op in ("placeholder", "get_attr", "output"):
        return True
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.op == "call_module" or "out" in node.kwargs or not isinstance(name, str):
        return False
    return not (name.strip("_") in _DRAWS or (name.endswith("_") and not name.endswith("__")) or name in _WRITING)


_WRITING = frozenset({"setitem", "__setitem__", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"})
_DRAWS = (
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli"),
    *("multinomial", "poisson", "binomial", "dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d"),
    *("dropout2d", "dropout3d", "rrelu", "gumbel_softmax", "fractional_max_pool2d", "fractional_max_pool3d"),
    *("scaled_dot_product_attention", "multi_head_attention_forward", "manual_seed", "seed", "print"),
    *("set_grad_enabled", "enter_autocast", "exit_autocast"),
)
"""Functions that draw random numbers, may do so or set their state, switch modes or print."""


def _break_at_cached(variable: Any, why: str) -> NoReturn:
    name = getattr(variable.wrapper_obj, "__qualname__", "a function")
    unimplemented(
        gb_type="call of a function behind functools.cache",
        context=name,
        explanation=f"{name} runs once for equal arguments, and a trace runs it at each call; {why}",
        hints=["Call it before the compiled function", "Remove the cache"],
    )
