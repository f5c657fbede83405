"""The user's own passes, at four named places of the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any

from torch.fx import GraphModule

from lamina.base.identity import identity_of
from lamina.errors import BadArgument

__all__ = ["Pass", "Passes"]

Pass = Callable[[GraphModule], GraphModule]


@dataclass(frozen=True, slots=True)
class Passes:
    """Functions ``GraphModule -> GraphModule`` and where they run; at each place one function or several, in order.

    ``captured``: the user's calls as Dynamo saw them. ``joint``: functional ATen, forward and backward in one graph (or
    a graph without gradients). ``partitioned``: the forward and the backward, each by itself. ``lowered``: each
    graph right before it becomes loop nests. A pass may change its graph in place or return another one. Raises
    ``BadArgument`` for something that cannot be called.
    """

    captured: Any = ()
    joint: Any = ()
    partitioned: Any = ()
    lowered: Any = ()

    def __post_init__(self) -> None:
        for place in fields(self):
            object.__setattr__(self, place.name, _functions(place.name, getattr(self, place.name)))

    def __bool__(self) -> bool:
        return any(getattr(self, place.name) for place in fields(self))

    def identity(self) -> tuple[tuple[str, ...], ...]:
        """Names and hashes of the functions at each place: equal for equal code in any process."""
        return tuple(tuple(identity_of(p) for p in getattr(self, place.name)) for place in fields(self))


def _functions(place: str, given: Any) -> tuple[Pass, ...]:
    found = tuple(given) if isinstance(given, Iterable) and not callable(given) else (given,)
    for function in found:
        if not callable(function):
            raise BadArgument(
                f"a pass at {place!r} is {function!r}", remedy="pass functions that take and return a GraphModule"
            )
    return found
