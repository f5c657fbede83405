"""Joint graphs with the user's activation checkpointing, which torch's partitioner splits, and their random numbers.

What the backward computes again must draw what the forward drew. Counter-based numbers do once their seed is saved.
For every other draw torch's partitioner wraps the operation of the forward into ``run_and_save_rng_state`` and that of
the backward into ``run_with_rng_state``: higher-order operators, which are taken apart here, for kernels around them to
be compiled.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from lamina.aot.autograd.torch_private import torch_partition
from lamina.aot.torch_private import (
    RUN_AND_SAVE_RNG_STATE,
    RUN_WITH_RNG_STATE,
    detect_fake_mode,
    is_checkpointed,
    keep_for_backward,
)
from lamina.base.fx.editing import replace_node
from lamina.base.rng_state import rng_state, set_rng_state

__all__ = ["partition_checkpointed"]


def partition_checkpointed(joint: GraphModule, inputs: Any, **keywords: Any) -> tuple[GraphModule, GraphModule]:
    """The forward and the backward graph of torch's partitioner, every draw in them a plain operation."""
    for node in joint.graph.nodes:
        if str(node.target) == "lamina.philox_seed.default" and is_checkpointed(node):
            keep_for_backward(node)
    forward, backward = torch_partition(joint, inputs, **keywords)
    drawn = forward.graph.find_nodes(op="call_function", target=RUN_AND_SAVE_RNG_STATE)
    again = {n.args[0]: n for n in backward.graph.find_nodes(op="call_function", target=RUN_WITH_RNG_STATE)}
    # The states are passed in the order of the draws.
    states = [n for n in backward.graph.find_nodes(op="placeholder") if n in again]
    for first, state in zip(drawn, states, strict=True):
        meta = _take_apart_forward(first)
        state.meta["val"] = _state_like(meta)  # torch gives it a size known only at run time
        _take_apart_backward(again[state], meta)
    if drawn:
        forward.recompile()
        backward.recompile()
    return forward, backward


def _take_apart_forward(node: Node) -> dict[str, Any]:
    """Replace ``node``, a draw and the state before it, by the two; the result is what is known of the draw."""
    graph, (target, *args) = node.graph, node.args
    users = {user.args[1]: user for user in node.users}
    saved, result = users[0], users[1]
    with graph.inserting_before(node):
        state = graph.call_function(rng_state, (_device(result.meta),))
        draw = graph.call_function(target, tuple(args), node.kwargs)  # type: ignore[arg-type]
    state.meta = {**result.meta, "val": _state_like(result.meta)}
    draw.meta = dict(result.meta)
    replace_node(saved, state)
    replace_node(result, draw)
    graph.erase_node(node)
    return draw.meta


def _take_apart_backward(node: Node, meta: dict[str, Any]) -> None:
    """Replace ``node``, a draw from a state of the forward's, by the draw with the generator in that state."""
    graph, (state, target, *args) = node.graph, node.args
    assert isinstance(state, Node)
    device = _device(meta)
    with graph.inserting_before(node):
        own = graph.call_function(rng_state, (device,))
        before = graph.call_function(set_rng_state, (state, device))
        draw = graph.call_function(target, tuple(args), node.kwargs)  # type: ignore[arg-type]
        after = graph.call_function(set_rng_state, (own, device))
    own.meta = {**meta, "val": state.meta["val"]}
    before.meta = after.meta = {**meta, "val": None}
    draw.meta = dict(meta)
    replace_node(node, draw)


def _state_like(meta: dict[str, Any]) -> torch.Tensor:
    """A fake state of the generator of ``_device``."""
    mode = detect_fake_mode(meta["val"])
    assert mode is not None
    with mode:
        state: torch.Tensor = rng_state(_device(meta))
    return state


def _device(meta: dict[str, Any]) -> torch.device:
    """The device whose generator a draw with such results takes its numbers from."""
    value = meta["val"]
    first: torch.Tensor = value[0] if isinstance(value, (tuple, list)) else value
    return first.device
