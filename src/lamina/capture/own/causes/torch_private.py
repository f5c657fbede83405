"""What kind of call does not go into a graph, by what is called; names as read in torch 2.11 to 2.13."""

from __future__ import annotations

from inspect import CO_COROUTINE
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch.utils.hooks import BackwardHook

from lamina.base.torch_private import HigherOrderOperator

__all__ = ["cause_of_call", "is_of_tensors", "maker_of", "only_dynamo_captures"]

_RUN_FUNCTIONS = (
    "torch._higher_order_ops",
    "torch._functorch",
    "torch.nn.attention.flex_attention",
    "torch.utils.checkpoint",
    "torch.autograd.function",
)
"""Modules of torch's whose functions run those of the program's, by the beginning of their names."""
_QUANTISED = "torch.ao.nn"
_MARKS = "torch._compile"
"""The module of what stands for functions of torch's that Dynamo is not to look into."""


_ONLY_DYNAMO = ("torch._higher_order_ops", "triton.")
_WITHIN = "_flex_attention_hop_wrapper"


def only_dynamo_captures(called: Any) -> bool:
    """Whether a call launches a kernel of the program's in Triton, or is of an operator that runs its functions.

    Calls of ``torch.func`` are not among them, nor are checkpoints: they run where nothing is known of what they
    change.
    """
    if type(called) is BuiltinFunctionType:
        return False
    if isinstance(called, HigherOrderOperator):
        return True
    owner = _owner(called)
    of = type(owner) if owner is not None else called if isinstance(called, FunctionType) else type(called)
    module = str(getattr(of, "__module__", ""))
    return f"{module}.".startswith(_ONLY_DYNAMO) or getattr(called, "__name__", "") == _WITHIN


def cause_of_call(called: Any) -> str:
    """Why a call of ``called`` cannot be recorded (``reasons.OWN_CAUSES``); "" where its kind does not tell."""
    if isinstance(called, HigherOrderOperator):
        return "functions"
    if called is BackwardHook or type(_owner(called)) is BackwardHook:
        return "hooks"
    function = _function(called)
    if function is None:
        return ""
    if vars(function).get("_torchdynamo_disable"):
        return "disabled"
    if function.__code__.co_flags & CO_COROUTINE:
        return "coroutine"
    module = function.__globals__.get("__name__", "")
    if not isinstance(module, str):
        return ""
    if module.startswith(_QUANTISED):
        return "quantised"
    return "functions" if module.startswith(_RUN_FUNCTIONS) else ""


def maker_of(called: Any) -> str:
    """The function of torch's that has made ``called``, as ``torch.vmap`` does, which names it as what it was given."""
    function = _function(called)
    if function is None or cause_of_call(function) != "functions":
        return ""
    return function.__code__.co_qualname.partition(".<locals>")[0]


def is_of_tensors(called: Any, args: tuple[Any, ...]) -> bool:
    """Whether an optimizer or a module is called, or given to ``called``: they compute without being given a tensor."""
    owners = (_owner(called), *args)
    return any(issubclass(type(owner), torch.optim.Optimizer | torch.nn.Module) for owner in owners)


def _owner(called: Any) -> Any:
    return called.__self__ if type(called) is MethodType else None


def _function(called: Any) -> FunctionType | None:
    """The function of Python's that a call runs, under the mark that keeps Dynamo out of one of torch's."""
    function = called.__func__ if type(called) is MethodType else called
    if type(function) is not FunctionType:
        return None
    marked = vars(function).get("__wrapped__")
    of_torch = function.__globals__.get("__name__") == _MARKS
    return marked if of_torch and type(marked) is FunctionType else function
