"""Graphs run as they are: "eager" the captured torch calls, "aten" the ATen calls after autograd and our rewrites."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from lamina.backends.api import Backend

__all__ = ["ATEN", "EAGER"]


def _as_it_is(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    del example_inputs
    return gm.forward


EAGER = Backend("eager", _as_it_is, graph="torch", writes=True)
"""The captured graph, call by call through torch; of an ATen graph that others leave to it, through ATen."""

ATEN = Backend("aten", _as_it_is, writes=True)
"""What our kernels would be made of, call by call through ATen: autograd and rewrites on, kernels off."""
