"""Results of graphs, put in the place of the pending tensors that they were computed for."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node

from lamina.base.followed import held_by_followers, moved
from lamina.base.lowering import is_programs_own
from lamina.base.torch_private import is_leaf
from lamina.capture.own.pending import Pending
from lamina.capture.own.torch_private import held_beneath, take_place, unhooked

__all__ = ["become", "computed_before", "distinct"]


def computed_before(
    error: BaseException, graph: Graph, inputs: list[torch.Tensor], alive: list[Pending], outputs: list[Node]
) -> tuple[BaseException, Node | None]:
    """Compute call by call up to the one that raises, as eager does; gives what it raises and the call.

    That is ``error`` and None where no call raises. The grad mode is then as it was at the call.
    The tensors that are computed before it have their values. The caller's hooks on saved tensors, one of which may
    have raised the error, have seen what was saved, and see nothing again. An operator of the program's own does not
    run again, and nothing after it does.
    """
    calls = Interpreter(GraphModule(torch.nn.Module(), graph))
    calls.args_iter = iter(inputs)
    raised, place = error, None
    with unhooked():
        for node in graph.nodes:
            if is_programs_own(node.target):
                break
            try:
                calls.env[node] = calls.run_node(node) if node.op != "output" else None
            except Exception as its_own:
                raised, place = its_own, node
                break
    computed = [(made, node) for made, node in zip(alive, outputs, strict=True) if node in calls.env]
    results = distinct([calls.env[node] for _, node in computed], inputs)
    calls.env.clear()
    for made, _ in reversed(computed):
        become(made, results)
    return raised, place


def become(made: Pending, results: list[torch.Tensor]) -> None:
    """Make a pending tensor the last of the ``results``, which is taken from there."""
    real = results.pop()
    # Counted here: how many references a call of a function holds depends on who runs frames, Dynamo or Python.
    with_it = held_beneath(real) + held_by_followers(real)
    if sys.getrefcount(real) - with_it > _HELD_HERE:  # somebody else's object keeps its tensor
        real = _again(real)
    made.__dict__.clear()
    moved(real, made)
    take_place(made, real)


_HELD_HERE = sys.getrefcount(object()) + 1
"""References to what a variable and the argument of ``getrefcount`` hold."""


def _again(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor that is ``tensor``, with its history and its memory."""
    with torch.set_grad_enabled(not (is_leaf(tensor) and tensor.requires_grad)):  # such a view was made without
        return tensor.view_as(tensor)


def distinct(results: Iterable[torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a graph, none of which is an input or another result: each takes the place of a tensor."""
    taken = {id(tensor) for tensor in inputs}
    found = []
    for result in results:
        found.append(_again(result) if id(result) in taken else result)
        taken.add(id(result))
    return found
