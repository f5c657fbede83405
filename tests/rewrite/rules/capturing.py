"""Captured graphs for tests of rules: what Dynamo hands to a backend, changed, and run by ATen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from lamina.base.devices import DeviceKind, kind_of
from lamina.options import Options
from lamina.record import Record
from lamina.rewrite.rewriting import Rewriting

__all__ = ["applied", "calls", "gradients", "kinds_with", "rewritten", "run_changed"]

Change = Callable[[GraphModule], GraphModule]


def run_changed(function: Callable[..., Any], args: Sequence[Any], change: Change) -> tuple[Any, list[GraphModule]]:
    """``function`` of ``args`` with every captured graph changed, and the changed graphs."""
    graphs: list[GraphModule] = []

    def backend(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(change(gm))
        return graphs[-1].forward

    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(*args), graphs


def rewritten(record: Record, *, finite: bool = False) -> Change:
    """What Lamina's own rules make of a captured graph; what they did goes into ``record``."""
    return lambda gm: Rewriting(Options(assume_finite=finite), record, "test", {}).captured(gm)


def applied(record: Record) -> list[str]:
    """The names of the rules that were applied, in order."""
    found = [d for stage in record.stages if stage.name == "rewrite" for d in stage.decisions]
    return [str(d.subject[0]) for d in found if d.taken]


def calls(gm: GraphModule) -> list[str]:
    """The names of what a captured graph calls, in order."""
    return [
        n.target if isinstance(n.target, str) else getattr(n.target, "__name__", str(n.target))
        for n in gm.graph.nodes
        if n.op in ("call_function", "call_method")
    ]


def gradients(result: Tensor, leaves: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradients of a fixed weighting of ``result``."""
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype, device=result.device).reshape(result.shape)
    return list(torch.autograd.grad((result * weights).sum(), leaves, allow_unused=True))


def kinds_with(*libraries: str, **facts: Any) -> Callable[[Any], DeviceKind]:
    """``kind_of`` on a machine where every device has these ``libraries``, too, and these facts are so."""

    def kind(place: Any) -> DeviceKind:
        found = kind_of(place)
        return replace(found, libraries=found.libraries | set(libraries), **facts)

    return kind
