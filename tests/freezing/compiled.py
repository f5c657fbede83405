"""Modules compiled with the option freeze, on ATen calls: nothing here needs kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

import lamina

__all__ = ["calls", "check", "decisions", "folds", "frozen"]


def calls(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend that makes no kernels."""
    return gm.forward


def frozen(model: nn.Module, **options: Any) -> Any:
    """``model`` compiled so."""
    options = {"freeze": True, "strict": True, "verify": True, **options}
    return lamina.compile(model, backend=calls, fullgraph=True, options=options)


def check(compiled: Any, model: nn.Module, *inputs: torch.Tensor, factor: float = 1.0) -> None:
    """The compiled module gives what the module gives now, at the first call and when nothing has changed since."""
    with torch.no_grad():
        wanted = model(*inputs)
        for _ in range(2):
            torch.testing.assert_close(compiled(*inputs), wanted, rtol=1e-5 * factor, atol=1e-5 * factor)


def folds(compiled: Any) -> int:
    """How often the folding graphs of a compiled module have run."""
    return sum(stage.name == "fold" for stage in compiled.record.stages)


def decisions(compiled: Any, kind: str, name: str = "") -> list[lamina.Decision]:
    """What was decided of a kind, and of a rewrite of that name."""
    found = [d for stage in compiled.record.stages for d in stage.decisions if d.kind == kind]
    return [d for d in found if not name or d.subject[0] == name]
