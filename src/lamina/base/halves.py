"""What the forward and the backward of one graph, compiled apart, know of each other while they run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Half", "Halves", "as_halves", "half_of"]

_META = "lamina_half"


@dataclass(slots=True)
class Halves:
    """One graph with gradients. ``backward_waits``: whether a GPU waits for its backward's launches; None: unknown."""

    backward_waits: bool | None = None


@dataclass(frozen=True, slots=True)
class Half:
    """One of the two, and what it shares with the other."""

    halves: Halves
    is_backward: bool


def as_halves(forward: Any, *backwards: Any) -> None:
    """Note in the ``meta`` of graph modules that they belong together."""
    halves = Halves()
    forward.meta[_META] = Half(halves, False)
    for backward in backwards:
        backward.meta[_META] = Half(halves, True)


def half_of(gm: Any) -> Half | None:
    """What was noted of this graph module, None if nothing was: an inference, or a graph that somebody made anew."""
    found: Half | None = gm.meta.get(_META)
    return found
