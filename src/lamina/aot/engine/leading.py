"""Results of a compiled graph that lead autograd to others, as it runs: see ``aot.dependent_results``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import is_inference_mode_enabled

from lamina.aot import reasons
from lamina.aot.engine.relating import Below, made_again
from lamina.aot.engine.torch_private import (
    direct_apply,
    graph_is_kept,
    is_grad_enabled,
    never_captured,
    running_backward,
    transforms_are_active,
)
from lamina.aot.notes import Notes
from lamina.aot.watched.torch_private import asked_of_engine, hooks_noticed
from lamina.base.followed import Kept, followed
from lamina.base.reasons import Reason
from lamina.base.recipes import made_of
from lamina.base.torch_private import as_usual, base_of, how_made, is_view, note_how_made, storage_of, version_of
from lamina.base.user_warnings import warn_user
from lamina.errors import UnknownGradient

__all__ = ["Part", "leading", "told_of_watch"]

MODIFIED = "modified by an inplace operation"
"""What autograd says of a value that it saved and that was written to since."""


@dataclass(frozen=True, slots=True)
class Part:
    """The captured calls between a result and what it depends on.

    ``calls`` take the graph's inputs at the places ``inputs`` and then the results ``others`` (for -1-i input i as it
    was written to), and give the result that is returned at ``places``. ``leads`` says of each of its inputs whether a
    gradient reaches it. ``limit`` is why the calls are never run again, None if they may be. ``below`` are the results
    that are views of this one, ``unread`` those of its inputs that it writes to without reading them.
    """

    places: tuple[int, ...]
    calls: Callable[..., Any]
    inputs: tuple[int, ...]
    others: tuple[int, ...]
    leads: tuple[bool, ...]
    limit: Reason | None
    below: Below
    unread: tuple[int, ...]
    autocast: tuple[dict[str, Any], ...]
    behind: tuple[int, ...]

    def gradients(self, given: Sequence[Any], gradient: torch.Tensor, written: Sequence[torch.Tensor]) -> list[Any]:
        """The gradients of all that the part is ``given``, None where none arrives, to be differentiated again or not.

        Raises autograd's error if other values than those of inputs are needed and some were ``written`` to since.
        """
        create_graph = is_grad_enabled()
        with torch.enable_grad(), _saving_only(given[: len(self.inputs)], written):
            own = [t.view_as(t) if leads else t for t, leads in zip(given, self.leads, strict=True)]
            result = self.value(own)
        wanted = [t for t, leads in zip(own, self.leads, strict=True) if leads]
        found = iter(torch.autograd.grad(result, wanted, gradient, create_graph=create_graph, allow_unused=True))
        return [next(found) if leads else None for leads in self.leads]

    def value(self, given: Sequence[Any]) -> torch.Tensor:
        """The result, of all that the part is ``given``."""
        own = [x.clone() if i in self.unread else x for i, x in enumerate(given)]
        with contextlib.ExitStack() as modes:
            for state in self.autocast:
                modes.enter_context(torch.autocast(**state))
            (result,) = self.calls(*own)
        return result  # type: ignore[no-any-return]


def leading(compiled: Callable[..., Any], parts: Sequence[Part], notes: Notes) -> Callable[..., Any]:
    """``compiled`` with results that lead autograd to those they depend on, by the captured calls of the ``parts``."""
    watches = [_Watch(part, notes) for part in parts]

    def run(*inputs: Any) -> Any:
        results = compiled(*inputs)
        if is_inference_mode_enabled() or not is_grad_enabled() or transforms_are_active():
            return results
        made = list(results)
        for watch in watches:
            part = watch.part
            result = made[part.places[0]]
            if result.grad_fn is not None:
                others, behind = (
                    [made[k] if k >= 0 else inputs[-1 - k] for k in p] for p in (part.others, part.behind)
                )
                given = [*(inputs[i] for i in part.inputs), *others]
                apart = [x if leads else _apart(x) for x, leads in zip(given, part.leads, strict=True)]
                made_leading = _direct(watch, (result, *others, *behind), result, *apart)
                if is_view(made_leading):
                    note_how_made(made_leading, how_made(result))
                for place in part.places:
                    made[place] = made_leading
                made_again(made, part.below)
        return tuple(made)

    never_captured(run)
    return made_of(run, "leading", compiled=compiled, parts=parts, notes=notes)


def _apart(value: Any) -> Any:
    """What no gradient goes to, without its history: that would be gone through, and freed, with the result's."""
    return value.detach() if isinstance(value, torch.Tensor) and value.requires_grad else value


class _Telling:
    """What the user was told about results that others depend on."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._noted = self._warned = False

    def told(self, kinds: frozenset[str], limit: Reason | None) -> bool:
        """Whether all of the gradient is found for results that are watched in these ways; tells where a ``limit``
        says that it is not.
        """
        notes = self._notes
        if not self._noted:
            self._noted = True
            notes.decided("watched result", limit is None, limit or reasons.WATCHED_RESULT())
        if limit is None:
            return True
        if kinds != {"hook"}:
            what = f"the gradient of a result of {notes.name} is not known, as others depend on it: {limit}"
            raise UnknownGradient(what, where=notes.place, remedy=_REMEDY)
        if not self._warned:
            self._warned = True
            what = f"hooks of a result of {notes.name} ({notes.place}) see only what arrives from outside"
            warn_user(f"{what}, not what comes from other results, which depend on it: {limit}", _REMEDY)
        return False


def told_of_watch(limit: Reason, notes: Notes) -> Callable[[frozenset[str]], Any]:
    """What tells the user that results are watched whose gradients are not all found, for this reason."""
    telling = _Telling(notes)
    return lambda kinds: telling.told(kinds, limit)


class _Watch(_Telling):
    """A part, and what the user was told about it."""

    def __init__(self, part: Part, notes: Notes) -> None:
        super().__init__(notes)
        self.part = part

    def again(self, kinds: frozenset[str], gone: Reason | None) -> bool:
        """Whether the part is run for others that are watched in these ways; tells where it cannot be.

        ``gone`` is the reason for that if one of the others is not there any more.
        """
        return self.told(kinds, self.part.limit or gone)

    def inputs(self, ctx: Any) -> Sequence[torch.Tensor]:
        """The inputs that the node of the part saved; ``UnknownGradient`` if one of them was written to since."""
        try:
            return ctx.saved_tensors  # type: ignore[no-any-return]
        except RuntimeError as raised:
            if MODIFIED not in str(raised):
                raise
            notes = self._notes
            what = f"the gradient of a result of {notes.name} is not known, as an input was written to since: {raised}"
            raise UnknownGradient(what, where=notes.place, remedy=_WRITTEN_REMEDY) from raised


_WRITTEN_REMEDY = "write to a copy of that input, or ask for the gradient before"
_REMEDY = "return it from a compiled function of its own, and compute what depends on it in another"


class _Dependent(torch.autograd.Function):
    """A result, which leads to the region's node and to what it depends on.

    What it depends on is held as long as anybody else holds it, or has hooks on it.
    """

    @staticmethod
    def forward(ctx: Any, watch: _Watch, hidden: tuple[torch.Tensor, ...], result: torch.Tensor, *given: Any) -> Any:
        ctx.set_materialize_grads(False)
        count, place = len(watch.part.inputs), 1 + len(watch.part.others)
        others, behind = hidden[1:place], [t for t in hidden[place:] if t.requires_grad]
        ctx.watch, ctx.count, ctx.held, ctx.unwatched = watch, len(given), None, None
        # Those made without a node of a part.
        ctx.views = [Kept(t) for t in others if base_of(t) is not None] if behind else None
        ctx.others = [followed(t) for t in others]
        ctx.versions = [version_of(t) for t in others]
        leads = watch.part.leads[count:]
        leading = [t for t, leading in zip(others, leads, strict=True) if leading]
        ctx.behind = [(followed(t), (t.grad_fn, t.output_nr)) for t in behind]
        ctx.hooks = [hooks_noticed(t, ctx, _hold) for t in (*leading, *behind)]
        if watch.part.limit is None:
            places = [i for i in range(count) if isinstance(given[i], torch.Tensor)]
            ctx.places, ctx.numbers = places, [None if isinstance(x, torch.Tensor) else x for x in given[:count]]
            ctx.save_for_backward(*(given[i] for i in places))
        result = hidden[0]
        if not is_view(result) or as_usual(result):
            return result.detach()
        return result.view_as(result)  # a view for autograd, which can be noted as one that eager refuses writes to

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        nothing = (None,) * ctx.count
        if gradient is None:
            return None, None, None, *nothing
        watch = ctx.watch
        kinds = _watched(ctx)
        if not kinds:
            return None, None, gradient, *nothing
        others, changed = _others(ctx)
        if not watch.again(kinds, None if all(t is not None for t in others) else reasons.INPUT_CHANGED()):
            return None, None, gradient, *nothing
        given = _inputs(ctx)
        if not graph_is_kept():
            ctx.held = ctx.views = None
        return None, None, None, *watch.part.gradients([*given, *others], gradient, changed)


def _inputs(ctx: Any) -> list[Any]:
    """The region's inputs that a part takes."""
    given = list(ctx.numbers)
    for place, tensor in zip(ctx.places, ctx.watch.inputs(ctx), strict=True):
        given[place] = tensor
    return given


def _others(ctx: Any) -> tuple[list[Any], list[torch.Tensor]]:
    """The results that a part takes, None for those that are gone for good; and which of them were written to."""
    edges = ctx.next_functions[-len(ctx.others) :]
    found: list[Any] = []
    changed = []
    for reference, version, (node, _) in zip(ctx.others, ctx.versions, edges, strict=True):
        one = reference()
        if one is not None and version_of(one) != version:
            changed.append(one)
        found.append(_computed_again(node) if one is None else one)
    return found, changed


def _computed_again(node: Any) -> torch.Tensor | None:
    """A result that nobody holds, of what its own node leads to; None where that is not known."""
    watch = _watch_of(node)
    if watch is None or watch.part.limit is not None:
        return None
    others, changed = _others(node)
    if changed or any(one is None for one in others):
        return None
    result = watch.part.value([*_inputs(node), *others])
    return result if result.requires_grad else result.requires_grad_()  # gradients are off where none is kept


never_captured(_Dependent.backward)
_direct: Callable[..., Any] = direct_apply(_Dependent)


def _watched(ctx: Any) -> frozenset[str]:
    """In which ways one of the results that a node leads to, directly or not, is watched in the backward that runs."""
    task = running_backward()
    kinds: set[str] = set()
    nodes, stack = {id(ctx): ctx}, [ctx]
    while stack:
        node = stack.pop()
        if node.unwatched == task:
            continue
        edges = [*node.next_functions[-len(node.others) :], *(edge for _, edge in node.behind)]
        kinds |= _watched_here(node, edges)
        more = {id(one): one for one, _ in edges if id(one) not in nodes and _watch_of(one) is not None}
        nodes.update(more)
        stack += more.values()
    if not kinds:
        for node in nodes.values():
            node.unwatched = task
    return frozenset(kinds)


def _watched_here(ctx: Any, edges: Sequence[Any]) -> set[str]:
    """The same of the results that a node knows of itself."""
    kinds = {"hook" for hooks in ctx.hooks if hooks}
    references = [*ctx.others, *(one for one, _ in ctx.behind)]
    for reference, (node, number) in zip(references, edges, strict=True):
        other = reference()
        # What somebody wrote to since has another node, which keeps the gradient instead.
        if other is not None and other.retains_grad and other.grad_fn is node and other.output_nr == number:
            kinds.add("retain_grad")
    asked = asked_of_engine()
    if asked is None or not asked.isdisjoint(edges):
        kinds.add("asked")
    return kinds


def _watch_of(node: Any) -> _Watch | None:
    """What a node knows of a part; None if it is no part's."""
    watch = getattr(node, "watch", None)
    return watch if isinstance(watch, _Watch) else None


def _hold(ctx: Any) -> None:
    """Hold what a node's result depends on: somebody has a hook on it, and may let go of it."""
    ctx.held = [reference() for reference in (*ctx.others, *(one for one, _ in ctx.behind))]


def _saving_only(tensors: Sequence[Any], written: Sequence[torch.Tensor]) -> contextlib.AbstractContextManager[Any]:
    """Inside, autograd's error is raised where it saves anything but these tensors, if others were ``written`` to."""
    if not written:
        return contextlib.nullcontext()
    places = {storage_of(t) for t in tensors if isinstance(t, torch.Tensor)}

    def saved(tensor: torch.Tensor) -> torch.Tensor:
        if storage_of(tensor) not in places:
            raise RuntimeError(
                f"one of the variables needed for gradient computation has been {MODIFIED}: "
                f"[{written[0].type()} {list(written[0].shape)}] is at version {version_of(written[0])}"
            )
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(saved, lambda tensor: tensor)
