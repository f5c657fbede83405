"""Which gradients arrive at a region that AOTAutograd has differentiated.

Its autograd function is handed zeros for a gradient that is not there. Times a derivative that is infinite these are
NaN, where eager does not run the derivative at all; so the backward is told which gradients are not there, by a hook
of its node that sees them first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.aot.absent import without_absent
from lamina.aot.backwards import Boxed
from lamina.aot.torch_private import never_captured

__all__ = ["Arriving"]


class Arriving:
    """The gradients of one region's results that are not there in the backward that is about to run."""

    def __init__(self) -> None:
        self._now = threading.local()
        self._hooks: dict[tuple[int, ...], Callable[[Sequence[Any]], None]] = {}

    def watched(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """``compiled``, whose results note which of their gradients are not there."""

        def run(*inputs: Any) -> Any:
            results = compiled(*inputs)
            node: Any = None
            places: list[int] = []
            for result in results:
                made_by = result.grad_fn if isinstance(result, torch.Tensor) else None
                if made_by is not None:
                    node = node or made_by
                    if made_by is node:
                        places.append(result.output_nr)
            if len(places) > 1:
                node.register_prehook(self._hook(tuple(sorted(set(places)))))
            return results

        never_captured(run)
        return run

    def _hook(self, places: tuple[int, ...]) -> Callable[[Sequence[Any]], None]:
        if places not in self._hooks:

            def hook(gradients: Sequence[Any]) -> None:
                absent = tuple(k for k, place in enumerate(places) if gradients[place] is None)
                self._now.found = (len(places), absent) if absent else None

            self._hooks[places] = hook
        return self._hooks[places]

    def absent(self, tangents: int) -> tuple[int, ...]:
        """Numbers of the gradients, of so many in all, that are not there now; none if that is not known."""
        found = getattr(self._now, "found", None)
        self._now.found = None
        return found[1] if found is not None and found[0] == tangents else ()

    def served(
        self,
        usual: Boxed,
        backward: GraphModule,
        tangents: Sequence[str],
        compile: Callable[[GraphModule], Boxed | None],
    ) -> Boxed:
        """``usual``, the compiled ``backward``, or what ``compile`` makes of it for the ``tangents`` that are there.

        ``usual`` runs with the zeros where there is no such graph.
        """
        names = [n.name for n in backward.graph.find_nodes(op="placeholder")]
        lock = threading.Lock()
        made: dict[tuple[int, ...], Boxed | None] = {}

        def without(absent: tuple[int, ...]) -> Boxed | None:
            with lock:
                if absent not in made:
                    graph = without_absent(backward, tangents, [tangents[k] for k in absent])
                    made[absent] = None if graph is None else compile(graph)
            return made[absent]

        def run(arguments: list[Any]) -> Any:
            absent = self.absent(len(tangents))
            compiled = without(absent) if absent else None
            if compiled is None:
                return usual(arguments)
            gone = {tangents[k] for k in absent}
            left = [a for name, a in zip(names, arguments, strict=True) if name not in gone]
            arguments.clear()
            return compiled(left)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run
