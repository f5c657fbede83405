"""What eager's own history of a captured graph holds: which of its results can be differentiated after which others."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.fx import GraphModule

from lamina.aot.autograd.nodes.torch_private import sequence_number
from lamina.aot.engine.again import Held
from lamina.aot.torch_private import autocast_states, mode_apart, tracing_state
from lamina.base.devices import kind_of
from lamina.base.fx.torch_private import flatten
from lamina.base.symbolic.torch_private import hint

__all__ = ["Place", "Reach", "held_by_eager", "reach_in_eager", "shared_in_eager"]

Reach = Sequence[frozenset[int] | None]
"""For each input the results that lead to it, None if it gets no gradient."""

Place = tuple[str, int]
"""The "result", or the "input" as it is after the graph, of a number."""

Found = TypeVar("Found")

_LIKELY = 1.5
"""What a float is that is an input: no number for which a call does something of its own."""


def held_by_eager(gm: GraphModule, example_inputs: Sequence[Any], places: Sequence[Place]) -> Callable[[], Held | None]:
    """A function that finds what eager's history holds behind each place of ``gm``.

    The graph runs once on fake tensors of a mode of its own, in the modes there are now. None where it does not run so.
    A node that is not torch's own counts as one that holds tensors.
    """

    def read(given: Sequence[Any], _: Sequence[Any], results: Sequence[Any]) -> Held:
        return _numbered([{n for n in _history(_at(place, given, results)) if _saves(n)} for place in places])

    return _of_eager(gm, example_inputs, read)


def reach_in_eager(
    gm: GraphModule, example_inputs: Sequence[Any], places: Mapping[int, Place]
) -> Callable[[], Reach | None]:
    """A function that finds for each input of ``gm`` which of the ``places``, by their numbers, lead to it in eager.

    None where the graph does not run on fake tensors.
    """

    def read(given: Sequence[Any], beginnings: Sequence[Any], results: Sequence[Any]) -> Reach:
        behind = {k: _history(_at(place, given, results)) for k, place in places.items()}
        return [frozenset(k for k, nodes in behind.items() if node in nodes) or None for node in beginnings]

    return _of_eager(gm, example_inputs, read)


def shared_in_eager(
    gm: GraphModule, example_inputs: Sequence[Any], places: Sequence[int]
) -> Callable[[], Collection[int]]:
    """A function that finds which of the results at ``places`` have a node in eager that another one has as well.

    None of them where the graph does not run on fake tensors. It is found once.
    """

    def read(_: Sequence[Any], __: Sequence[Any], results: Sequence[Any]) -> Collection[int]:
        edges = {(_node(results[k]), results[k].output_nr): k for k in places}
        nodes = [node for node, _ in edges]
        return frozenset(k for k in places if nodes.count(_node(results[k])) > 1)

    find = _of_eager(gm, example_inputs, read)
    return functools.cache(lambda: find() or ())


def _at(place: Place, given: Sequence[Any], results: Sequence[Any]) -> Any:
    kind, i = place
    return (results if kind == "result" else given)[i]


def _of_eager(
    gm: GraphModule, example_inputs: Sequence[Any], read: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Found]
) -> Callable[[], Found | None]:
    """A function that runs ``gm`` on fake tensors and gives what is ``read``; None where the graph does not run so.

    That is of its inputs as they are after it, the nodes behind them before, and its results.
    """
    try:
        likely = [_likely(x) for x in example_inputs]
    except Exception:  # an integer that only a run tells
        return lambda: None
    autocast = autocast_states()

    def find() -> Found | None:
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(torch.inference_mode(False))
                stack.enter_context(tracing_state(mode_apart()))
                for state in autocast:
                    stack.enter_context(torch.autocast(**state))
                stack.enter_context(torch.enable_grad())
                given = [make() for make in likely]
                beginnings = [_node(value) for value in given]
                results, _ = flatten(gm(*given))
                return read(given, beginnings, results)
        except Exception:
            return None

    return find


def _numbered(nodes: Sequence[set[Any]]) -> Held:
    order = sorted(set().union(*nodes), key=sequence_number, reverse=True)
    numbers = {node: k for k, node in enumerate(order)}
    return tuple(frozenset(numbers[n] for n in found) for found in nodes)


def _likely(value: Any) -> Callable[[], Any]:
    """Makes a tensor or integer as the graph is likely to be given. Its sizes are numbers, so no guard is added."""
    if isinstance(value, torch.SymInt):
        number = hint(value)
        return lambda: number
    if not isinstance(value, torch.Tensor):
        return lambda: value
    sizes, strides = [hint(n) for n in value.shape], [hint(n) for n in value.stride()]
    dtype, device, requires_grad = value.dtype, value.device, value.requires_grad
    if dtype is torch.float64 and not sizes and not requires_grad and kind_of(device).host:
        return lambda: torch.tensor(_LIKELY, dtype=dtype, device=device)  # a number as a tensor, which a call may ask

    def make() -> torch.Tensor:
        leaf = torch.empty_strided(sizes, strides, dtype=dtype, device=device)
        if not requires_grad:
            return leaf
        copy = leaf.requires_grad_().clone()  # a graph may write to it, as to no leaf nor a view of one
        return copy if copy.stride() == leaf.stride() else leaf.view_as(leaf)

    return make


def _history(tensor: Any) -> set[Any]:
    """Every node behind a tensor."""
    first = _node(tensor)
    stack = [] if first is None else [first]
    seen = set(stack)
    while stack:
        for node, _ in stack.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                stack.append(node)
    return seen


def _node(value: Any) -> Any:
    return value.grad_fn if isinstance(value, torch.Tensor) else None


def _saves(node: Any) -> bool:
    """Whether a node holds a tensor, or may: what a custom function saved does not show in its attributes.

    A write to a view has its node inside of one for the view's base, which a backward always frees.
    """
    if isinstance(node, torch.autograd.function.BackwardCFunction) or type(node).__name__ == "CopySlices":
        return True
    names = [name for name in dir(node) if name.startswith("_raw_saved_")]
    return any(getattr(node, name) is not None for name in names)
