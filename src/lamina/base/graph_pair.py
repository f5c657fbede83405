"""The forward and the backward graph of one function, which are compiled apart and share state while they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["GraphPair", "PairedGraph", "pair_graphs", "pair_of"]

_META = "lamina_graph_pair"


@dataclass(slots=True)
class GraphPair:
    """One graph with gradients. ``backward_waits``: whether a GPU waits for its backward's launches; None: unknown."""

    backward_waits: bool | None = None


@dataclass(frozen=True, slots=True)
class PairedGraph:
    """One of the two, and what it shares with the other."""

    pair: GraphPair
    is_backward: bool


def pair_graphs(forward: Any, *backwards: Any) -> None:
    """Note in the ``meta`` of graph modules that they belong together."""
    pair = GraphPair()
    forward.meta[_META] = PairedGraph(pair, False)
    for backward in backwards:
        backward.meta[_META] = PairedGraph(pair, True)


def pair_of(gm: Any) -> PairedGraph | None:
    """What was noted of this graph module, None if nothing was: an inference, or a graph that somebody made anew."""
    found: PairedGraph | None = gm.meta.get(_META)
    return found
