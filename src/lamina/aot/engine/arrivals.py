"""Hooks of results of a compiled graph, as it runs: see ``aot.absent_gradients``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import is_inference_mode_enabled

from lamina.aot.engine.torch_private import is_grad_enabled, never_captured, transforms_are_active
from lamina.aot.watched.torch_private import without_absent
from lamina.base.recipes import made_of

__all__ = ["called_with_gradients"]


def called_with_gradients(
    compiled: Callable[..., Any], places: Sequence[int], shared: Callable[[], Collection[int]]
) -> Callable[..., Any]:
    """``compiled``, the hooks of whose results at ``places`` are not called where no gradient arrives.

    Those that are ``shared``, one call's in eager too, have hooks that get None there.
    """

    def asking(place: int) -> Callable[[], bool]:
        return lambda: place in shared()

    asked = {place: asking(place) for place in places}

    def run(*inputs: Any) -> Any:
        results = compiled(*inputs)
        if is_inference_mode_enabled() or not is_grad_enabled() or transforms_are_active():
            return results
        for place in places:
            if results[place].grad_fn is not None:
                without_absent(results[place], asked[place])
        return results

    never_captured(run)
    return made_of(run, "hooks of arrivals", compiled=compiled, places=places, shared=shared)
