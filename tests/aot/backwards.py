"""Backwards of several results of one call, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["in_turn"]

Gradients = list[torch.Tensor | None]


def in_turn(
    results: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], wanted: Sequence[tuple[int, ...]], kept: bool
) -> list[Gradients | None]:
    """The leaves' gradients after each backward, of the results at ``wanted`` places; None for one that is refused.

    ``kept``: the first one retains the graph. One that is refused changes no gradient: which leaves the engine reached
    by then is its own affair.
    """
    found: list[Gradients | None] = []
    for places in wanted:
        before = [None if x.grad is None else x.grad.clone() for x in leaves]
        loss = sum(results[i].sum() for i in places)
        assert isinstance(loss, torch.Tensor)
        try:
            loss.backward(retain_graph=kept and not found)
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            found.append(None)
            for leaf, gradient in zip(leaves, before, strict=True):
                leaf.grad = gradient
            continue
        found.append([None if x.grad is None else x.grad.clone() for x in leaves])
    return found
