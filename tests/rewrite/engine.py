"""Compiles small functions with rules and without kernels, and compares them with eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import lamina

__all__ = ["applied", "compiled"]


def compiled(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    rules: Sequence[Any] = (),
    *,
    tolerance: float = 1e-5,
    dynamic: bool | None = None,
    **options: Any,
) -> lamina.Record:
    """The record of ``function`` compiled; its results, their strides, and its gradients are eager's."""
    torch.compiler.reset()
    changed = lamina.compile(
        function,
        fullgraph=True,
        dynamic=dynamic,
        backend="aten",
        options={"rules": rules, "verify": True, "strict": True} | options,
    )
    (ours, our_gradients), (theirs, their_gradients) = (_results(f, inputs) for f in (changed, function))
    assert [t.stride() for t in ours] == [t.stride() for t in theirs]
    for a, b in zip([*ours, *our_gradients], [*theirs, *their_gradients], strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    return changed.record


def applied(record: lamina.Record, rule: str) -> int:
    """How many times a rule was applied."""
    return sum(d.taken and d.subject[0] == rule for d in record.decisions("rewrite"))


def _results(function: Callable[..., Any], inputs: Sequence[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    copies = [x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in inputs]
    out = function(*copies)
    found = list(out) if isinstance(out, (tuple, list)) else [out]
    trained = [x for x in copies if isinstance(x, torch.Tensor) and x.requires_grad]
    differentiable = [t for t in found if t.requires_grad]
    if not trained or not differentiable:
        return found, []
    total = sum((t * t + t).sum() for t in differentiable)
    return found, [g for g in torch.autograd.grad(total, trained, allow_unused=True) if g is not None]
