"""Results that lead autograd past others which they depend on, as they run: see ``aot.dependent_results``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import is_inference_mode_enabled

from lamina.aot.engine.leading import told_of_watch
from lamina.aot.engine.torch_private import is_grad_enabled, never_captured, transforms_are_active
from lamina.aot.notes import Notes
from lamina.aot.watched.torch_private import asked_of_engine, has_hooks, looked_at
from lamina.base.followed import followed
from lamina.base.reasons import Reason
from lamina.base.recipes import made_of
from lamina.base.torch_private import base_of, version_of

__all__ = ["Past", "leading_past"]


@dataclass(frozen=True, slots=True)
class Past:
    """The result at ``place``, whose gradient goes to the graph's inputs alone, and the ``others`` it depends on.

    Those are the places of results, or -1-i for input i as it was written to. ``limit`` says why.
    """

    place: int
    others: tuple[int, ...]
    limit: Reason


def leading_past(compiled: Callable[..., Any], pasts: Sequence[Past], notes: Notes) -> Callable[..., Any]:
    """``compiled``, where a gradient that goes past others which are watched is refused, or told of to their hooks."""
    telling = [told_of_watch(past.limit, notes) for past in pasts]

    def run(*inputs: Any) -> Any:
        results = compiled(*inputs)
        if is_inference_mode_enabled() or not is_grad_enabled() or transforms_are_active():
            return results
        for past, tell in zip(pasts, telling, strict=True):
            result = results[past.place]
            if result.grad_fn is not None:
                _follow(result, [results[k] if k >= 0 else inputs[-1 - k] for k in past.others], tell)
        return results

    never_captured(run)
    return made_of(run, "leading past", compiled=compiled, pasts=pasts, notes=notes)


def _follow(result: torch.Tensor, others: Sequence[torch.Tensor], tell: Callable[[frozenset[str]], None]) -> None:
    """Look whether one of the ``others`` is watched when a gradient of ``result`` arrives."""
    base = base_of(result)
    made = result if base is None else base
    known = [(followed(t), version_of(t)) for t in others]

    def arrives(gradient: Any) -> None:
        if gradient is None:
            return
        held = [(t, version) for reference, version in known if (t := reference()) is not None]
        unwritten = [t for t, version in held if version_of(t) == version and t.grad_fn is not None]
        kinds = {"hook" for t in unwritten if has_hooks(t)}
        kinds.update("retain_grad" for t in unwritten if t.retains_grad)
        asked = asked_of_engine() if unwritten else None
        if asked is not None and not asked.isdisjoint([(t.grad_fn, t.output_nr) for t in unwritten]):
            kinds.add("asked")
        if kinds:
            tell(frozenset(kinds))

    if made.grad_fn is not None:
        looked_at(made, arrives)
