"""Hooks of results that a backward brings no gradient for.

In eager each result has a node of its own, as a rule, and a hook of a result is called in those backwards only that
reach it. All results of a region have one node, whose hooks autograd calls in each backward of any of them, with None
for gradients that are not there. A hook that computes with its gradient fails then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.aot.eager_history import shared_in_eager
from lamina.aot.engine.arrivals import called_with_gradients
from lamina.base.captured import example
from lamina.base.fx.torch_private import flatten

__all__ = ["hooks_of_arrivals"]


def hooks_of_arrivals(
    compiled: Callable[..., Any], gm: GraphModule, example_inputs: Sequence[Any], written: Sequence[int]
) -> Callable[..., Any]:
    """``compiled``, which computes what ``gm`` does, with results whose hooks are called with gradients only.

    ``written`` are the inputs that it gives a history: their new values have the node of the results as well. Results
    that are one call's in eager too (``unbind``) have one node there: their hooks get None as well.
    """
    returned, _ = flatten(gm.graph.output_node().args[0])
    places = [i for i, one in enumerate(returned) if isinstance(one, torch.fx.Node) and _differentiable(one)]
    if len(places) + len(written) < 2:
        return compiled
    return called_with_gradients(compiled, places, shared_in_eager(gm, example_inputs, places))


def _differentiable(node: torch.fx.Node) -> bool:
    value = example(node)
    return isinstance(value, torch.Tensor) and value.requires_grad
