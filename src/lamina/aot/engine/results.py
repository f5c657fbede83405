"""Results of a compiled graph as those of the captured one: objects that are one, and views that are made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lamina.aot.engine.torch_private import never_captured
from lamina.base.recipes import made_of

__all__ = ["with_numbers", "with_places", "with_views"]


def with_places(
    compiled: Callable[..., Any], places: Sequence[int], twins: Sequence[Sequence[int]], detached: Sequence[int]
) -> Callable[..., Any]:
    """``compiled`` with the results of the original graph: see ``identities.Distinct``."""

    def run(*inputs: Any) -> Any:
        results = compiled(*inputs)
        if twins:
            results = list(results)
            for one, other in twins:
                if results[one] is results[other]:
                    results[other] = results[one].view_as(results[one])
        if detached:
            results = [*results, *[results[place].detach() for place in detached]]
        return tuple([results[place] if place >= 0 else inputs[-1 - place] for place in places])

    never_captured(run)
    return made_of(run, "with places", compiled=compiled, places=places, twins=twins, detached=detached)


def with_views(compiled: Callable[..., Any], views: Callable[..., Any], places: Sequence[int]) -> Callable[..., Any]:
    """``compiled`` with the results of the original graph: see ``replayed.Replayed``."""

    def run(*inputs: Any) -> Any:
        results = compiled(*inputs)
        made = views(*inputs)
        return tuple([results[place] if place >= 0 else made[-1 - place] for place in places])

    never_captured(run)
    return made_of(run, "with views", compiled=compiled, views=views, places=places)


def with_numbers(compiled: Callable[..., Any], values: Sequence[int]) -> Callable[..., Any]:
    """``compiled``, which takes numbers before other inputs, with these ``values`` of them."""
    given = tuple(values)

    def run(*inputs: Any) -> Any:
        return compiled(*given, *inputs)

    never_captured(run)
    return made_of(run, "with numbers", compiled=compiled, values=given)
