"""Backwards of several results of one call, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["in_turn"]

Gradients = list[torch.Tensor | None]


def in_turn(
    results: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], wanted: Sequence[tuple[int, ...]], kept: bool
) -> list[Gradients | None]:
    """The leaves' gradients after each backward, of the results at ``wanted`` places, until one is refused: None.

    ``kept``: the first one retains the graph.
    """
    found: list[Gradients | None] = []
    for places in wanted:
        loss = sum(results[i].sum() for i in places)
        assert isinstance(loss, torch.Tensor)
        try:
            loss.backward(retain_graph=kept and not found)
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            return [*found, None]
        found.append([None if x.grad is None else x.grad.clone() for x in leaves])
    return found
