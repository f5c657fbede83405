"""Gradients of a region from its captured graph under autograd: to be differentiated again, or of sparse gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from itertools import compress
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.aot import reasons
from lamina.aot.draws import draws_numbers
from lamina.aot.engine.inputs import Inputs, Taken
from lamina.aot.norm_statistics import unread
from lamina.aot.notes import Notes
from lamina.aot.torch_private import autocast_states, transforms_are_active
from lamina.base.fx.torch_private import flatten, forward_of
from lamina.base.reasons import Reason
from lamina.base.recovery import brief
from lamina.base.torch_private import HigherOrderOperator

__all__ = ["Rerun", "why_not_again"]


class Rerun:
    """The captured graph of a region, run again where its gradients are to be differentiated (``create_graph=True``).

    That gives eager's gradients with eager's history. It is also run again for gradients that arrive sparse, of which
    eager may make sparse ones and which not all formulas take, and for batches of gradients (``is_grads_batched``). It
    needs the inputs as the forward had them: those with a gradient are kept by the region, the others must still be
    alive, and none may have been written to since. A graph that draws numbers, writes to an input that it reads or
    calls graphs within is not run again. What it writes to without reading it, as the statistics of a batch norm, is
    then a copy.
    """

    def __init__(
        self,
        gm: GraphModule,
        with_gradient: Sequence[bool],
        mutated: Sequence[int],
        notes: Notes,
        detached: Sequence[bool] = (),
        numbers: Sequence[int] = (),
    ) -> None:
        self._gm, self._notes = gm, notes
        self._with_gradient = tuple(with_gradient)
        self._mode, self._autocast = torch.is_grad_enabled(), autocast_states()
        self._told: set[str] = set()
        self._unread = unread(gm).intersection(mutated) if mutated else frozenset()
        self.limit = why_not_again(gm, set(mutated) - self._unread)
        """Why the graph is never run again, None if it may be."""
        self.inputs = Inputs(with_gradient, detached, self.limit is None, numbers)
        self.taken = self.inputs.taken

    def keep(self, node: Any, inputs: Sequence[Any]) -> None:
        """Let a ``node`` of AOTAutograd's keep what its inputs are known by later; see ``of``."""
        node.anchors = [*compress(inputs, self._with_gradient)]
        node.taken = self.taken(inputs)

    def of(self, node: Any, gradients: Sequence[Any]) -> tuple[Any, ...] | None:
        """The gradients of all inputs of a ``node`` that keeps them, for the ``gradients`` of all results, or None."""
        return self.gradients(node.taken, node.anchors, gradients) if node.anchors else None

    def gradients(
        self, taken: Taken | None, anchors: Sequence[torch.Tensor], gradients: Sequence[Any], sparse: bool = False
    ) -> tuple[Any, ...] | None:
        """The gradients of all inputs for the ``gradients`` ones of all results, None where they cannot be had.

        ``anchors`` are the inputs with a gradient. With ``sparse`` gradients arriving these are not to be
        differentiated again, and what eager raises about them is raised.
        """
        found, why = None, self.limit
        if why is None:
            inputs = None if taken is None or transforms_are_active() else self._inputs(taken, anchors)
            if inputs is None:
                why = reasons.INPUT_CHANGED()
            else:
                try:
                    found = self._differentiated(inputs, gradients, not sparse)
                except Exception as error:
                    if sparse:
                        raise
                    why = reasons.NOT_DIFFERENTIATED(error=brief(error))
        kind = "sparse gradient" if sparse else "second derivative"
        if kind not in self._told:
            self._told.add(kind)
            reason = reasons.SPARSE_GRADIENT if sparse else reasons.SECOND_DERIVATIVE
            self._notes.decided(kind, found is not None, why or reason())
        return found

    def _inputs(self, taken: Taken, anchors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        versions, references = taken
        wanted, others = iter(anchors), iter(references)
        inputs = [next(wanted) if has else next(others)() for has in self._with_gradient]
        alive = [t for t in inputs if t is not None]
        if len(alive) < len(inputs):
            return None
        return alive if self.inputs.changed(versions, alive) <= self._unread else None

    def _differentiated(
        self, inputs: Sequence[torch.Tensor], gradients: Sequence[Any], create_graph: bool
    ) -> tuple[Any, ...]:
        with torch.enable_grad():
            given = [t.view_as(t) if has else t for t, has in zip(inputs, self._with_gradient, strict=True)]
        for i in self._unread:
            given[i] = given[i].detach().clone()
        with contextlib.ExitStack() as modes:
            for state in self._autocast:
                modes.enter_context(torch.autocast(**state))
            modes.enter_context(torch.set_grad_enabled(self._mode))
            results, _ = flatten(forward_of(self._gm)(*given))
        pairs = [(r, g) for r, g in zip(results, gradients, strict=True) if g is not None and r.requires_grad]
        wanted = [t for t, has in zip(given, self._with_gradient, strict=True) if has]
        values = [g for _, g in pairs]
        found = iter(
            torch.autograd.grad([r for r, _ in pairs], wanted, values, create_graph=create_graph, allow_unused=True)
            if pairs
            else [None] * len(wanted)
        )
        return tuple(next(found) if has else None for has in self._with_gradient)


def why_not_again(gm: GraphModule, mutated: Collection[int]) -> Reason | None:
    """Why a captured graph that writes to the ``mutated`` inputs is not run a second time, None if it may be."""
    if mutated:
        return reasons.WRITES_INPUT()
    if draws_numbers(gm):
        return reasons.DRAWS_NUMBERS()
    if any(n.op == "get_attr" or isinstance(n.target, HigherOrderOperator) for n in gm.graph.nodes):
        return reasons.HOLDS_GRAPHS()
    return None
