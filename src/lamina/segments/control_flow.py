"""The graphs that control flow holds, compiled as graphs of their own: branches, bodies of loops, steps of scans.

The call itself stays torch's, between segments, and calls what is made here once for each branch taken or step made.
Kernels are for the sizes and strides that tracing had. Where a step is given others, as a slice of what is scanned may
be, the graph runs as ATen calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.backends.regions import Boxed
from lamina.base.decision import Decision
from lamina.base.fx.copying import returning
from lamina.base.reasons import Reason
from lamina.base.torch_private import HigherOrderOperator
from lamina.segments import reasons

__all__ = ["Body", "bodies_in", "decided_bodies"]

_CALLERS = ("cond", "while_loop", "scan", "map_impl", "strict_mode")
"""Operations that call the graphs they hold as plain functions of tensors. Others trace or transform them."""


@dataclass(frozen=True, slots=True)
class Body:
    """A graph that a call in ``outer`` holds and calls: to be compiled under ``name``, or not, which has a reason."""

    outer: GraphModule
    call: Node
    target: str
    name: str
    why: Reason | None

    @property
    def graph(self) -> GraphModule:
        """The graph to compile, which returns a tuple."""
        return _in_tuple(self._held)[0]

    @property
    def _held(self) -> GraphModule:
        held: GraphModule = getattr(self.outer, self.target)
        return held

    def put(self, run: Boxed) -> None:
        """Let the call find the compiled graph in the place of the graph."""
        held = self._held
        layouts = tuple(_layout(n.meta["val"]) for n in held.graph.find_nodes(op="placeholder"))
        setattr(self.outer, self.target, _Body(held, run, layouts, _in_tuple(held)[1]))

    def decision(self) -> Decision:
        """Whether it is compiled, and why or for what."""
        said = self.why or reasons.BODY_COMPILED(caller=self.call.target)
        return Decision("body", (self.name, self.call.name), not self.why, said)


def bodies_in(outer: GraphModule, name: str) -> Iterator[Body]:
    """The graphs that calls in ``outer`` hold, one after the other: those put meanwhile are none any more."""
    for node in outer.graph.nodes:
        if not isinstance(node.target, HigherOrderOperator):
            continue
        for held in node.all_input_nodes:
            body = getattr(outer, str(held.target), None) if held.op == "get_attr" else None
            if isinstance(body, GraphModule):
                yield Body(outer, node, str(held.target), f"{name}_{held.target}", _unfit(node, body))


def decided_bodies(others: Iterable[Decision], bodies: Iterable[Body]) -> Iterator[Decision]:
    """``others``, and what became of each of ``bodies``."""
    yield from others
    for body in bodies:
        yield body.decision()


def _unfit(call: Node, body: GraphModule) -> Reason | None:
    """Why ``body`` runs as ATen calls; None if it is to be compiled."""
    if str(call.target) not in _CALLERS:
        return reasons.BODY_LEFT(caller=call.target)
    for node in body.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return reasons.BODY_OF_OTHER_INPUTS(name=node.name, what="no strided tensor")
        if not all(type(n) is int for n in (*value.shape, *value.stride())):
            return reasons.BODY_OF_RUN_TIME_SIZES()
        if value.is_conj() or value.is_neg():
            return reasons.BODY_OF_OTHER_INPUTS(name=node.name, what="conjugated or negated lazily")
    computes = sum(1 for n in body.graph.nodes if n.op == "call_function")
    return None if computes > 1 else reasons.BODY_OF_ONE_CALL()


def _in_tuple(body: GraphModule) -> tuple[GraphModule, bool]:
    """The graph returning a tuple, and whether what it returned was a tensor, as a loop's condition does."""
    result = body.graph.output_node().args[0]
    if isinstance(result, (tuple, list)):
        return body, False
    return GraphModule(body, returning(body, (result,))), True


def _layout(value: torch.Tensor) -> tuple[Any, ...]:
    return value.shape, value.stride(), value.dtype, value.device, False, False


class _Body(torch.nn.Module):
    """A compiled graph in the place of itself."""

    def __init__(self, graph: GraphModule, run: Boxed, layouts: tuple[tuple[Any, ...], ...], single: bool) -> None:
        super().__init__()
        self.graph_as_it_is, self.run, self.layouts, self.single = graph, run, layouts, single

    def forward(self, *inputs: Any) -> Any:
        for given, layout in zip(inputs, self.layouts, strict=True):
            if type(given) is not torch.Tensor or layout != _given(given):
                return self.graph_as_it_is(*inputs)
        results = self.run(list(inputs))
        return results[0] if self.single else tuple(results)


def _given(x: torch.Tensor) -> tuple[Any, ...]:
    return x.shape, x.stride(), x.dtype, x.device, x.is_conj(), x.is_neg()
