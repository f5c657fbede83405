"""State of the thread that a captured graph switches: grad mode, inference mode, autocast, deterministic algorithms.

A functional graph has no place for such a switch, and what follows the graph, in the user's function or after it, runs
in the state the graph leaves. So a graph's switches are taken apart here: what it computes is compiled under the modes
it runs in, what it leaves behind is left behind, and a graph with a switch that does not fit runs as it was captured.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import is_inference_mode_enabled
from torch.fx import GraphModule, Node

from lamina.aot import eager_reasons
from lamina.aot.engine.state import leaving, raising_again, within
from lamina.aot.torch_private import (
    ENTER_AUTOCAST,
    ENTER_INFERENCE,
    EXIT_AUTOCAST,
    EXIT_INFERENCE,
    SET_FORWARD_GRAD,
    SET_GRAD,
    forward_grad_enabled,
    never_captured,
    switches_state,
)
from lamina.base.fx.copying import copy_nodes
from lamina.base.fx.torch_private import graph_module
from lamina.base.modes import autocast_kept
from lamina.base.reasons import Reason
from lamina.base.source import source_of

__all__ = ["State", "read_state", "undone", "without_history"]

_PAIRS = ((ENTER_AUTOCAST, EXIT_AUTOCAST), (ENTER_INFERENCE, EXIT_INFERENCE))
_KNOWN = (SET_GRAD, SET_FORWARD_GRAD, *(call for pair in _PAIRS for call in pair))


@dataclass(frozen=True, slots=True)
class State:
    """What a captured graph does to the state of its thread.

    ``gm`` computes what the graph does, without the switches that are taken care of here. It is to be compiled and run
    within ``inference`` (None: in what mode the caller has). ``grad`` is the grad mode that the graph leaves, None
    if that it finds; ``at_once`` says that it is switched before anything is computed, and so is left by a graph that
    raises as well. ``refused`` is why the graph is to run as it was captured, None if it is not. ``switches`` says
    whether it switches the grad mode at all.
    """

    gm: GraphModule
    inference: bool | None = None
    grad: bool | None = None
    at_once: bool = False
    refused: Reason | None = None
    switches: bool = False

    def entered(self) -> contextlib.AbstractContextManager[Any]:
        """The grad mode in which to compile ``gm``: tracing does not work in inference mode itself."""
        return contextlib.nullcontext() if self.inference is None else torch.set_grad_enabled(not self.inference)

    def applied(self, compiled: Callable[..., Any], again: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """``compiled`` in the mode it needs, leaving the state as the captured graph does.

        Where it raises, ``again``, which is the captured graph or None, tells in what grad mode the program does.
        """
        if self.inference is not None:
            compiled = within(compiled, self.inference)
        if again is not None and self.switches and not self.at_once:
            compiled = raising_again(compiled, again)
        return compiled if self.grad is None else leaving(compiled, self.grad, self.at_once)


def read_state(gm: GraphModule) -> State:
    """What ``gm``, which starts in the state there is now, does to it."""
    nodes = [n for n in gm.graph.nodes if n.op in ("call_function", "call_method")]
    switches = [n for n in nodes if _is_switch(n)]
    if not switches:
        return State(gm)
    if refused := _refused(switches):
        return State(gm, refused=refused)
    computing = [n for n in nodes if n not in switches]
    inference = [n for n in switches if n.target in (ENTER_INFERENCE, EXIT_INFERENCE)]
    mode = None
    dropped: list[Node] = []
    if inference:
        if not _encloses(inference, nodes):
            why = eager_reasons.INFERENCE_MODE_OF_A_PART(place=source_of(inference[0]))
            return State(gm, refused=why)
        mode = bool(inference[0].args[0])
        dropped = list(inference)
    grads = [n for n in switches if n.target is SET_GRAD]
    if mode:  # gradients are off there, whatever the grad mode
        dropped += grads
    left = bool(grads[-1].args[0]) if grads else torch.is_grad_enabled()
    if inference or left == torch.is_grad_enabled():  # leaving inference mode restores the grad mode
        return State(_without(gm, dropped), mode, switches=bool(grads) and not inference)
    at_once = len(grads) == 1 and (not computing or nodes.index(grads[0]) < nodes.index(computing[0]))
    if computing:  # what is switched behind all calls is left behind by the state
        dropped += [n for n in nodes[nodes.index(computing[-1]) + 1 :] if n.target is SET_GRAD]
    return State(_without(gm, dropped), mode, left, at_once, switches=True)


def _refused(switches: Sequence[Node]) -> Reason | None:
    """Why a graph with these switches is to run as it was captured; None if it is not."""
    for node in switches:
        if node.target not in _KNOWN:
            return eager_reasons.STATE_SWITCHED(place=source_of(node), call=_name(node))
    forward = [n for n in switches if n.target is SET_FORWARD_GRAD]
    if forward and bool(forward[-1].args[0]) != forward_grad_enabled():
        return eager_reasons.FORWARD_MODE_LEFT(place=source_of(forward[-1]))
    for enter, leave in _PAIRS:
        left = [n.args[0] for n in switches if n.target is leave]
        for node in switches:
            if node.target is enter and node not in left:
                return eager_reasons.MODE_LEFT_ENTERED(place=source_of(node), call=_name(node))
    return None


def _is_switch(node: Node) -> bool:
    if node.op != "call_function":
        return False
    return node.target in _KNOWN or (switches_state(node.target) and not node.all_input_nodes)


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _encloses(switches: Sequence[Node], nodes: Sequence[Node]) -> bool:
    """Whether the ``switches`` enter one mode before anything among ``nodes`` and leave it after everything."""
    return len(switches) == 2 and nodes[0] is switches[0] and nodes[-1] is switches[1]


def _without(gm: GraphModule, dropped: Sequence[Node]) -> GraphModule:
    """``gm``, or a copy that lacks these calls."""
    if not dropped:
        return gm
    names = {n.name for n in dropped}
    copied = torch.fx.Graph()
    copy_nodes(copied, (n for n in gm.graph.nodes if n.name not in names))
    return graph_module(gm, copied, with_meta=False)


def without_history(compiled: Callable[..., Any], captured: Callable[..., Any]) -> Callable[..., Any]:
    """``compiled``, which records a history for autograd, and ``captured`` in inference mode, which has none.

    Dynamo compiles outside of inference mode and does not guard on it, and gradients can be on within.
    """

    def run(*inputs: Any) -> Any:
        return captured(*inputs) if is_inference_mode_enabled() else compiled(*inputs)

    never_captured(run)
    return run


def undone(gm: GraphModule) -> Callable[..., Any]:
    """The captured graph ``gm``, all of whose modes are those of ``with`` statements: they end where it raises."""
    switches = [n for n in gm.graph.nodes if _is_switch(n)]
    if not switches:
        return gm.forward
    paired = any(n.target in pair for n in switches for pair in _PAIRS)
    forward = _with_modes_noted(gm) if paired else gm.forward

    def run(*inputs: Any) -> Any:
        grad, set_back, outer = torch.is_grad_enabled(), autocast_kept(), _MODES.entered
        inner: _Entered = []
        _MODES.entered = inner
        try:
            return forward(*inputs)
        except BaseException:
            for leave, mode in reversed(inner):
                leave(mode)
            SET_GRAD(grad)
            set_back()
            raise
        finally:
            _MODES.entered = outer

    never_captured(run)
    return run


_Entered = list[tuple[Callable[..., Any], Any]]


class _Modes(threading.local):
    """What a graph that runs in this thread has entered and not left: what leaves each mode, and its operand."""

    def __init__(self) -> None:
        self.entered: _Entered = []


_MODES = _Modes()


def _with_modes_noted(gm: GraphModule) -> Callable[..., Any]:
    """The captured graph, which notes the modes that it has entered and not left yet."""
    copied = torch.fx.Graph()
    copy_nodes(copied, gm.graph.nodes)
    noting = {call: noted for pair in _PAIRS for call, noted in zip(pair, _noting(*pair), strict=True)}
    for node in copied.nodes:
        if node.op == "call_function" and node.target in noting:
            node.target = noting[node.target]
    forward: Callable[..., Any] = graph_module(gm, copied, with_meta=False).forward
    return forward


def _noting(enter: Callable[..., Any], leave: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The two calls of a mode, as ``_with_modes_noted`` has them."""

    def entered(*args: Any) -> Any:
        mode = enter(*args)
        _MODES.entered.append((leave, mode))
        return mode

    def left(mode: Any) -> None:
        _MODES.entered[:] = [one for one in _MODES.entered if one[1] is not mode]
        leave(mode)

    return entered, left
