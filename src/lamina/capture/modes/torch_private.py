"""Modes that are open where Dynamo ends a graph; names as read in torch 2.11 to 2.13."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

import torch
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.variables.ctx_manager import ContextWrappingVariable, GradModeVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._guards import TracingContext
from torch.fx import GraphModule, Node
from torch.utils._device import DeviceContext

from lamina.base.modes import SWITCHED_BY_HAND
from lamina.capture.modes.frame_reads import asks_for_own_frame
from lamina.capture.modes.handlers import caught_errors
from lamina.capture.modes.switches import (
    enters_by_hand,
    keeps_gradient_mode,
    place_of,
    returns_gradient_mode,
    switches_autocast,
    switches_gradients,
)
from lamina.capture.reasons import COROUTINE

__all__ = [
    "has_function_modes",
    "is_checkpointed",
    "refused_code",
    "refused_frame",
    "refused_trace",
    "traced_function",
]

_MODES = frozenset({"autocast", "inference_mode", "set_grad_enabled"})


def refused_frame(code: CodeType) -> str:
    """Why Python is to run a frame of ``code``, which is not to be one graph; "" if Dynamo may have it."""
    if torch.is_inference_mode_enabled() and torch.is_grad_enabled():
        return "gradients are switched on within inference mode"
    if torch.is_inference_mode_enabled() and "requires_grad" in code.co_names:
        return "it asks within inference mode for requires_grad, which a trace answers as outside of it"
    if (
        code.co_flags & inspect.CO_COROUTINE
    ):  # what Dynamo makes of one ends the process when it is freed, whatever the backend
        return COROUTINE(name=code.co_qualname)
    if name := asks_for_own_frame(code):
        return f"it calls {name}, which looks for its variables where Python keeps them"
    if returns_gradient_mode(code):
        return f"{code.co_qualname} returns a context manager of the grad mode"
    return _refused_code([code])


_MODULE_CALL = torch.nn.Module._call_impl.__code__
_CHECKPOINTS = "torch.distributed._composable.checkpoint_activation"


def is_checkpointed(entry: CodeType | None) -> bool:
    """Whether a module that the function of ``entry`` calls has hooks that discard what it saves, to call it again.

    They do so in the backward, which is not within a compiled function: what is called then would save other tensors
    than kernels did.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not entry:
        if frame.f_code is _MODULE_CALL:
            hooks = vars(frame.f_locals["self"]).get("_forward_pre_hooks") or {}
            if any(getattr(hook, "__module__", "") == _CHECKPOINTS for hook in hooks.values()):
                return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def refused_code(code: CodeType, made: CodeType) -> str:
    """Why Python is to run ``code``, of which Dynamo ``made`` code; "" if that may be used.

    A graph break before any call of torch has no graph, and ``refused_trace`` is not asked.
    """
    if not any("resume" in name for name in made.co_names):
        return ""
    if not _MODES.isdisjoint(made.co_names) and switches_gradients(code):
        return _SWITCHED
    if keeps_gradient_mode(code):
        return _KEPT
    return ""


_SWITCHED = "a graph break in a with statement may come after the grad mode was switched in it"
_KEPT = "a graph break comes while a variable may hold a context manager of the grad mode"

_UNFINISHED = "a generator that is left within a with statement may leave its mode when it is freed"


def _leaves_a_mode(gm: GraphModule) -> bool:
    """Whether a graph that starts in the grad mode there is now ends in another mode."""
    called = [(getattr(n.target, "__name__", ""), n) for n in gm.graph.nodes if n.op == "call_function"]
    grads = [node.args[0] for name, node in called if name == "_set_grad_enabled"]
    entered, left = (
        sum(name.startswith(start) and name.endswith(("autocast", "inference_mode")) for name, _ in called)
        for start in ("_enter_", "_exit_")
    )
    return entered != left or (bool(grads) and grads[-1] != torch.is_grad_enabled())


def refused_trace(gm: GraphModule, refused_in_eager: Callable[[Node], bool]) -> str:
    """Why Python is to run the frame whose graph was just traced; "" if the graph may be compiled.

    ``refused_in_eager`` tells of calls that only tracing takes.
    To be called while Dynamo's trace is open. A frame that is to be one graph is never refused here. The metadata of
    ``gm`` says from then on whether the grad mode is switched by other means than ``with``.
    """
    context, tx = TracingContext.try_get(), _translator()
    if context is None or tx is None:
        return ""
    traced: list[CodeType] = list(context.traced_code or ())
    by_hand = gm.meta[SWITCHED_BY_HAND] = any(map(switches_gradients, traced))
    if tx.one_graph:
        return ""
    if refused := _refused_code(traced) or caught_errors(gm, traced, refused_in_eager):
        return refused
    if any(code.co_flags & inspect.CO_GENERATOR for code in traced) and _leaves_a_mode(gm):
        return _UNFINISHED
    reason = tx.output.compile_subgraph_reason
    if reason is None or not reason.graph_break:
        return ""
    if any(map(_within_a_mode, _stack(tx))) and (by_hand or any(map(_switches, _called(tx)))):
        return _SWITCHED
    if any(map(keeps_gradient_mode, traced)) or any(map(_holds_gradient_mode, _stack(tx))):
        return _KEPT
    return ""


def _called(tx: Any) -> Iterator[CodeType]:
    """Code of functions that a call that breaks the graph may call: Python calls them, and none was traced."""
    for variable in tx.stack:
        held = vars(variable)
        if issubclass(type(variable), LazyVariableTracker):  # asked for anything else it would go on tracing
            held = vars(variable.realize()) if variable.is_realized() else {"value": variable.peek_value()}
        function = next((held[name] for name in ("value", "fn") if held.get(name) is not None), None)
        code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
        if isinstance(code, CodeType):
            yield code


def _switches(code: CodeType) -> bool:
    return switches_gradients(code) or switches_autocast(code)


def _holds_gradient_mode(tx: Any) -> bool:
    return any(issubclass(type(v), GradModeVariable) for v in (*tx.symbolic_locals.values(), *tx.stack))


def traced_function() -> str:
    """Which function Dynamo traces now, and where it is."""
    tx = _translator()
    return "a function" if tx is None else place_of(tx.f_code)


def has_function_modes() -> bool:
    """Whether what Dynamo traces now is called within modes that see functions of torch, other than a default device.

    They are traced with it: what they do is in the graph. Every call of the graph is within the same modes.
    """
    tx = _translator()
    return tx is not None and any(type(mode) is not DeviceContext for mode in tx.output.torch_function_mode_stack)


def _refused_code(codes: Sequence[CodeType]) -> str:
    for code in codes:
        if enters_by_hand(code):
            return f"{code.co_qualname} calls __enter__ by hand"
        if switches_autocast(code):
            return f"{code.co_qualname} switches autocast by hand"
    return ""


def _translator() -> Any:
    try:
        return InstructionTranslator.current_tx()
    except AttributeError:  # none has ever run in this thread
        return None


def _stack(tx: Any) -> Iterator[Any]:
    """The frames that are traced into one another, from the innermost."""
    while tx is not None:
        yield tx
        tx = tx.parent


def _within_a_mode(tx: Any) -> bool:
    return any(isinstance(block.with_context, ContextWrappingVariable) for block in tx.block_stack)
