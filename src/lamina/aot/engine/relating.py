"""Results in one memory that are made views of one tensor, as eager's are, after a compiled graph has run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, is_inference_mode_enabled, no_grad

from lamina.aot.engine.torch_private import SET_GRAD, is_grad_enabled, never_captured, transforms_are_active
from lamina.base.byte_ranges import span
from lamina.base.recipes import made_of
from lamina.base.torch_private import (
    base_of,
    is_view,
    makes_parts,
    note_how_made,
    set_versions,
    storage_of,
    version_of,
)

__all__ = ["Below", "Family", "Group", "Relations", "made_again"]

Below = tuple[tuple[int, int, Any], ...]
"""Places of results that are views of other results, with the places of these and the ways, those that others are views
of first."""


@dataclass(frozen=True, slots=True)
class Family:
    """Results that are views of one tensor, by their places; ``root`` is the place of that tensor, if it is one.

    ``made`` says for each view how it was made, which decides whether it may be written to with a gradient. ``alike``:
    the root has the place and strides of the tensor beside which it is made. ``parents`` has for each view the place of
    the view that it was made of, None if that is the root or no result.
    """

    root: int | None
    views: tuple[int, ...]
    made: tuple[Any, ...]
    parents: tuple[int | None, ...]
    alike: bool

    @property
    def members(self) -> tuple[int, ...]:
        """All its places."""
        return self.views if self.root is None else (self.root, *self.views)


@dataclass(frozen=True, slots=True)
class Group:
    """The families that have one version: those with a history, which AOTAutograd has given them by then, and others.

    ``input`` is the place of an input that has this version too. What is a view of it is so already, and in none of the
    families. ``known`` is the place of a result with a history, if there is one. ``apart``: something else in the same
    memory has another version, as behind ``data``.
    """

    trained: tuple[Family, ...]
    others: tuple[Family, ...]
    input: int | None
    known: int | None
    apart: bool


@dataclass(frozen=True, slots=True)
class Relations:
    """The families of results that share memory: ``detach`` begins another one.

    ``same`` has, for each result, the first place of the same object, ``made`` the places of results that are views of
    inputs in another way than autograd takes for granted, with that way and whether they require a gradient. ``below``
    has the places of views of inputs that were made of another result, with the place of that one and the way, ``anew``
    those of views of inputs that are written to after the view was made.
    """

    groups: tuple[Group, ...]
    same: tuple[int, ...]
    made: tuple[tuple[int, Any, bool], ...]
    below: Below
    anew: tuple[int, ...]

    def applied(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """``compiled`` with results that are related as eager's are. Inference tensors have nothing to share."""
        groups, same, views, below, anew = self.groups, self.same, self.made, self.below, self.anew
        families = [family for group in groups for family in group.trained]

        def run(*inputs: Any) -> Any:
            results = compiled(*inputs)
            if is_inference_mode_enabled() or transforms_are_active():
                return results
            made = list(results)
            for place, how, trained in views:
                made[place] = _made_so(made[place], how, trained)
            if below or families:
                _with_history(made, below, families)
            for place in anew:
                _made_anew(made[place])
            for group in groups:
                if group.input is not None:
                    known = inputs[group.input]
                    _relate_to(known, made, [family for family in group.others if not _is_free(made, family)])
                elif group.known is not None:
                    _relate_to(made[group.known], made, group.others)
                else:
                    _relate(made, group.others, group.apart)
            return tuple([made[place] for place in same])

        never_captured(run)
        return made_of(run, "related", compiled=compiled, relations=self)


def _with_history(results: list[Any], below: Below, families: Sequence[Family]) -> None:
    """Relate results with a history, which they have whatever grad mode the graph leaves."""
    grad = is_grad_enabled()
    if not grad:
        SET_GRAD(True)
    try:
        made_again(results, below)
        for family in families:
            _rejoin(results, family)
    finally:
        if not grad:
            SET_GRAD(False)


def made_again(results: list[Any], below: Below) -> None:
    """Make results views of the results that they were made of."""
    for place, parent, how in below:
        if results[parent].grad_fn is not None:
            results[place] = _placed(results[parent], results[place])
            note_how_made(results[place], how)


def _relate(results: list[Any], families: Sequence[Family], apart: bool) -> None:
    """Make the results of one memory again as views of one tensor for each family."""
    first, *others = families
    members = [i for family in families for i in family.members]
    if len({storage_of(results[i]) for i in members}) > 1:
        return  # kept apart by whoever compiled the graph
    known = _whole(results[members[0]]) if first.root is None else results[first.root]
    if apart and first.root is not None:
        known = known.data
    _make_views(known, results, first)
    _relate_to(known if first.root is not None else results[first.views[0]], results, others)


def _relate_to(known: Tensor, results: list[Any], families: Sequence[Family]) -> None:
    """The same where a tensor is known that belongs to none of the families."""
    for family in families:
        if all(storage_of(results[i]) == storage_of(known) for i in family.members):
            beside = known.detach()
            if not family.alike:
                beside = _placed(beside, _whole(known) if family.root is None else results[family.root]).detach()
            _make_views(beside, results, family)


def _is_free(results: Sequence[Any], family: Family) -> bool:
    """Whether a family is a detached input that AOTAutograd made so."""
    return not family.views and base_of(results[family.members[0]]) is None


def _make_views(root: Tensor, results: list[Any], family: Family) -> None:
    if family.root is not None:
        results[family.root] = root
    for i, how in zip(family.views, family.made, strict=True):
        if base_of(results[i]) is not root:
            results[i] = _placed(root, results[i])
        note_how_made(results[i], how)


def _rejoin(results: list[Any], family: Family) -> None:
    """Make results with a history views of one tensor where AOTAutograd made them views of several.

    It makes a view by all that led from memory to it: what began as a copy (``flatten``) then has a base of its own.
    """
    if len({storage_of(results[i]) for i in family.members}) > 1:
        return
    root: Tensor | None = base_of(results[family.views[0]]) if family.root is None else results[family.root]
    if root is None:
        root = _only_whole(results, family)
    if root is None:
        _note_parts(results, family)
    if root is None or base_of(root) is not None or not root.requires_grad:
        return
    for i, how, parent in zip(family.views, family.made, family.parents, strict=True):
        if base_of(results[i]) is not root or parent is not None:
            results[i] = _placed(root if parent is None else results[parent], results[i])
            note_how_made(results[i], how)


def _only_whole(results: Sequence[Any], family: Family) -> Tensor | None:
    """The only result that is no part of several, if the others lie in it: parts are refused once it is written to.

    AOTAutograd returns it and the parts as tensors of their own.
    """
    wholes = [i for i, how in zip(family.views, family.made, strict=True) if not makes_parts(how)]
    if len(wholes) != 1 or len(family.views) == 1 or is_view(results[wholes[0]]):
        return None
    whole = results[wholes[0]]
    start, stop = span(whole)
    spans = [span(results[i]) for i in family.views]
    return whole if _is_dense(whole) and all(start <= one and other <= stop for one, other in spans) else None


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor has each element from its first to its last one, and each once."""
    reached = 1
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and step != reached:
            return False
        reached *= size
    return True


def _made_so(view: Tensor, how: Any, trained: bool) -> Tensor:
    """A result that is a view of an input, made as it is in eager: AOTAutograd makes it where gradients are on."""
    if view.requires_grad and not trained:
        with no_grad():
            view = view.view_as(view)
    if is_view(view):
        note_how_made(view, how)
    return view


def _made_anew(view: Tensor) -> None:
    """Let autograd make a view again of its base, as after a write to that: it no longer leads to what it was made of.

    That is another view of the base where an argument is one.
    """
    if is_view(view) and view.requires_grad:
        version = version_of(view)
        set_versions([view], [version + 1])
        _ = view.grad_fn  # asking makes it
        set_versions([view], [version])


def _note_parts(results: list[Any], family: Family) -> None:
    """Make views of what is not returned views of themselves, where they were returned as tensors of their own.

    Autograd refuses writes to parts, and a write to a view leaves hooks of before it behind. What is a view of another
    result is made of that one.
    """
    alone = len(family.views) == 1
    for i, how, parent in zip(family.views, family.made, family.parents, strict=True):
        if not results[i].requires_grad:
            continue
        if parent is not None and results[parent].requires_grad:
            results[i] = _placed(results[parent], results[i])
        elif alone or makes_parts(how):
            results[i] = results[i].view_as(results[i])
        else:
            continue
        note_how_made(results[i], how)


def _placed(root: Tensor, like: Tensor) -> Tensor:
    return root.as_strided(like.size(), like.stride(), like.storage_offset())


def _whole(tensor: Tensor) -> Tensor:
    """All elements of the memory that ``tensor`` lies in, in one dimension, and no view."""
    storage = tensor.untyped_storage()
    return tensor.new_empty(0).set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))
