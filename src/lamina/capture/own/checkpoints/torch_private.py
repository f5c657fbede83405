"""``torch.utils.checkpoint`` as calls of a graph that are computed again; names as read in torch 2.11 to 2.13."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, noop_context_fn

__all__ = ["CHECKPOINT", "checkpointed", "checkpointed_parts", "draws_again", "is_checkpointed", "mark_checkpointed"]

CHECKPOINT: Any = checkpoint
_REGION = "ac_graph_id"
_USUAL = {"context_fn": noop_context_fn, "determinism_check": "default", "debug": False, "early_stop": True}
"""Arguments that ask for nothing else."""


def checkpointed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """The call that ``checkpoint`` is to make; None where it is not one that may be captured.

    It runs the function twice, or once if no gradients are wanted. The reentrant way detaches results from parameters.
    """
    if not args or kwargs.get("use_reentrant") is not False or type(kwargs.get("preserve_rng_state", True)) is not bool:
        return None
    if any(kwargs.get(name, usual) is not usual for name, usual in _USUAL.items()):
        return None
    known = {*_USUAL, "use_reentrant", "preserve_rng_state"}
    return args[0], args[1:], {name: value for name, value in kwargs.items() if name not in known}


def draws_again(kwargs: dict[str, Any]) -> bool:
    """Whether the second run draws the random numbers of the first."""
    return kwargs.get("preserve_rng_state", True) is True


def mark_checkpointed(node: Node, region: int) -> None:
    """Have what ``node`` gives computed again in the backward; regions are numbered in their order."""
    node.meta["recompute"], node.meta[_REGION] = CheckpointPolicy.PREFER_RECOMPUTE, region


def is_checkpointed(graph: Graph) -> bool:
    """Whether a call of a graph is marked so."""
    return any(_REGION in node.meta for node in graph.nodes)


def checkpointed_parts(graph: Graph) -> tuple[int, ...]:
    """For each node the position of its region among those of the graph, 0 if it is in none; () if none is."""
    regions = {0: 0}
    found = tuple(regions.setdefault(node.meta.get(_REGION, 0), len(regions)) for node in graph.nodes)
    return found if len(regions) > 1 else ()
