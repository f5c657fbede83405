"""Which gradients of a region that AOTAutograd has differentiated are defined when its backward runs.

Its autograd function is handed zeros for a gradient that is not there. Times a derivative that is infinite these are
NaN, where eager does not run the derivative at all; so the backward is told which gradients are not there, by a hook
of its node that sees them first. It also asks for its saved tensors, if there are any or not, and torch refuses that
question once a backward has freed them; where eager's nodes allow another backward, it is given what it needs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.aot.autograd.nodes.torch_private import node_class, serve_nothing, serve_saved, serve_sparse
from lamina.aot.backwards import Boxed
from lamina.aot.engine.again import Again
from lamina.aot.engine.inputs import leading_to
from lamina.aot.engine.torch_private import saved_and_changed, saved_tensors
from lamina.aot.torch_private import graph_is_kept, never_captured
from lamina.aot.undefined_gradients import without_undefined, without_unread
from lamina.base.symbolic.environment.torch_private import AskedTooLate, answers_settled
from lamina.base.torch_private import boxed

__all__ = ["DefinedGradients"]


class _Now(threading.local):
    """What a backward in progress in this thread knows."""

    found: tuple[int, tuple[int, ...]] | None = None
    """How many gradients may arrive, and the numbers of those that are not there; None if all are."""
    freed: RuntimeError | None = None
    """Torch's error for saved tensors that are freed, or written to, in whose place the backward gets None."""


def _unchanged(ctx: Any, partial: bool) -> tuple[Sequence[Any], RuntimeError | None]:
    """The saved tensors of a context; in a backward of a part of the gradients None for what was written to.

    And torch's error for that, which is to be raised if the backward reads it.
    """
    try:
        return saved_tensors(ctx), None
    except RuntimeError as error:
        if not partial:
            raise
        tensors, changed = saved_and_changed(ctx)
        return [None if place in changed else tensor for place, tensor in enumerate(tensors)], error


class DefinedGradients:
    """The gradients of one region's results that are not there in the backward that is about to run."""

    def __init__(self) -> None:
        self._now = _Now()
        self._node: Any = None
        self._hook: Callable[[Sequence[Any]], None] | None = None
        self._places: Sequence[int] = ()

    def watched(
        self, apply: Callable[..., Any], place: int, keep: Callable[[Any, Sequence[Any]], None] | None
    ) -> Callable[..., Any]:
        """What a function that is followed ``apply``s, whose node notes which gradients are not there.

        For gradients that are differentiated again it also notes what leads to inputs with a history, and is let
        ``keep`` the inputs, if there is use for them.

        Its result at ``place`` has a gradient.
        """
        wanted, hook = self._node, self._hook

        def run(*inputs: Any) -> Any:
            results = apply(*inputs)
            node: Any = results[place].grad_fn
            if not isinstance(node, wanted):  # a function transform has nodes of its own
                return results
            histories = [x for x in inputs if isinstance(x, torch.Tensor) and x.grad_fn is not None]
            if histories:
                node.behind = (leading_to(*histories),)
            if keep is not None:
                keep(node, inputs)
            if hook is None:
                node.set_materialize_grads(False)
            else:
                node.register_prehook(hook)
            return results

        never_captured(run)
        return run

    def arrived(self, gradients: Sequence[Any]) -> list[Any]:
        """Gradients that the followed function is handed, None in the place of zeros for those that are not there."""
        found = self._now.found
        undefined = found[1] if found is not None and found[0] == len(self._places) else ()
        absent = {self._places[k] for k in undefined}
        return [None if i in absent else g for i, g in enumerate(gradients)]

    def _noting(self, places: Sequence[int]) -> Callable[[Sequence[Any]], None]:
        def hook(gradients: Sequence[Any]) -> None:
            undefined = tuple(k for k, place in enumerate(places) if gradients[place] is None)
            self._now.found = (len(places), undefined) if undefined else None

        return hook

    def follow(self, function: Any, again: Again, places: Sequence[int]) -> None:  # noqa: C901
        """Let backwards of AOTAutograd's ``function``, which gets gradients at ``places``, follow others as eager's do.

        A single gradient that is not there is seen by the node itself, which costs less than a hook.
        """
        tangents = len(places)

        def there() -> list[int]:
            found = self._now.found
            undefined = found[1] if found is not None and found[0] == tangents else ()
            return [k for k in range(tangents) if k not in undefined]

        def saved(ctx: Any) -> Any:
            self._now.freed = None
            if not ctx.ran:
                tensors, self._now.freed = _unchanged(ctx, len(there()) < tangents)
                ctx.saves = len(tensors)
                return tensors
            if again.refused(ctx, there()):
                self._now.found = None
                return saved_tensors(ctx)  # torch raises its error for that
            if ctx.kept is not None:
                tensors, self._now.freed = ctx.kept.unchanged()
                return tensors
            if ctx.saves:
                try:
                    return saved_tensors(ctx)
                except RuntimeError as error:
                    if len(there()) == tangents:
                        raise
                    self._now.freed = error
            return (None,) * ctx.saves

        def clears(ctx: Any) -> None:
            if not graph_is_kept():
                if ctx.ran or self._now.found is not None:
                    again.goes(ctx, there(), not ctx.ran)
                ctx.ran = True

        def nothing(ctx: Any) -> None:
            if not graph_is_kept():
                if not ctx.ran:
                    with contextlib.suppress(RuntimeError):  # where one was written to, nothing is kept
                        ctx.saves = len(saved_tensors(ctx))
                again.goes(ctx, (), not ctx.ran)
                ctx.ran = True

        never_captured(saved)
        never_captured(clears)
        never_captured(nothing)
        self._node, self._places = node_class(function), places
        serve_sparse(function)
        if tangents == 1:
            serve_nothing(function, nothing)
        else:
            self._hook = self._noting(places)
        serve_saved(function, saved, clears)

    def undefined(self, tangents: int) -> tuple[int, ...]:
        """Numbers of the gradients, of so many in all, that are not there now; none if that is not known."""
        found = self._now.found
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
        saved = {n.name for n in backward.graph.find_nodes(op="placeholder") if isinstance(n.meta["val"], torch.Tensor)}
        saved.difference_update(tangents)
        lock = threading.Lock()
        made: dict[tuple[int, ...], tuple[Boxed | None, list[int]]] = {}

        def without(undefined: tuple[int, ...]) -> tuple[Boxed | None, list[int]]:
            with lock:
                if undefined not in made:
                    graph = _settled_without(backward, tangents, [tangents[k] for k in undefined])
                    if graph is None:
                        made[undefined] = None, []
                        return made[undefined]
                    graph = without_unread(graph, saved)
                    taken = {n.name for n in graph.graph.find_nodes(op="placeholder")}
                    made[undefined] = compile(graph), [i for i, name in enumerate(names) if name in taken]
            return made[undefined]

        def run(arguments: list[Any]) -> Any:
            undefined, freed = self.undefined(len(tangents)), self._now.freed
            self._now.freed = None
            compiled, taken = without(undefined) if undefined else (None, [])
            left = arguments if compiled is None else [arguments[i] for i in taken]
            if freed is not None and any(a is None for a in left):
                raise freed
            if compiled is None:
                return usual(arguments)
            arguments.clear()
            return compiled(left)

        return boxed(run)


def _settled_without(backward: GraphModule, tangents: Sequence[str], undefined: list[str]) -> GraphModule | None:
    """``without_undefined`` that holds for all sizes that ``backward`` is for; None where that is not known."""
    values = [node.meta.get("val") for node in backward.graph.find_nodes(op="placeholder")]
    with contextlib.suppress(AskedTooLate), answers_settled(values):
        return without_undefined(backward, tangents, undefined)
    return None
