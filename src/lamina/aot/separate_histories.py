"""Results of one region that lead autograd to different inputs, though one node computes the gradients of all.

The engine goes through all that is behind a node, and frees it, also for an input that gets no gradient. A function
that returns the loss of a discriminator on ``fake.detach()`` beside that on ``fake`` would so free the generator's
history in the first loss's backward. Where an input has a history and not all results depend on it, the region's node
is taken out of the graph that the engine walks. For the inputs that the same results depend on there is one node
(``engine.separated``), which leads to these inputs, and for each result one that leads to the nodes of its inputs.
The first of the inputs' nodes that is reached in a backward asks the region's own node for the gradients of all, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lamina.aot.eager_history import Reach
from lamina.aot.engine.separated import separated
from lamina.aot.notes import Notes
from lamina.aot.torch_private import is_grad_enabled, never_captured

__all__ = ["separating", "without_histories"]


def separating(
    compiled: Callable[..., Any],
    candidates: Sequence[int],
    differentiable: Sequence[int],
    find: Callable[[], Reach | None],
    notes: Notes,
) -> Callable[..., Any]:
    """``compiled`` with results ``separated``, if there are several and gradients are recorded."""
    if len(differentiable) < 2 or not candidates or not is_grad_enabled():
        return compiled
    return separated(compiled, candidates, differentiable, find, notes)


def without_histories(compiled: Callable[..., Any], places: Sequence[int]) -> Callable[..., Any]:
    """``compiled`` with the inputs at ``places``, which get no gradient from it, apart from what they were computed of.

    AOTAutograd does so itself where such an input had a history when the graph was compiled; another call's may have.
    """
    if not places:
        return compiled

    def run(*inputs: Any) -> Any:
        given = list(inputs)
        for i in places:
            if given[i].grad_fn is not None:
                given[i] = given[i].detach()
        return compiled(*given)

    never_captured(run)
    return run
