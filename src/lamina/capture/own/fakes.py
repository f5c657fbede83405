"""Tensors without values that stand for those of a graph, and what calls on them give."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from lamina.base.symbolic.torch_private import detached
from lamina.base.torch_private import is_leaf, storage_of
from lamina.capture.own.frame import MOST_KEPT
from lamina.capture.own.nested import flat, tensors_only
from lamina.capture.own.torch_private import fake_mode, looking_like, unhooked

__all__ = ["OTHER_KIND", "Fakes", "NotHeld", "kind_of_look", "look"]


OTHER_KIND = "kind"
"""Why no graph holds a call that gives tensors of another type, rank or layout than those computed without values."""


class NotHeld(Exception):
    """No graph holds what a call gives: its sizes depend on data ("size"), it is "sparse", no tensor (""), or of
    another "kind" in eager.
    """

    def __init__(self, cause: str = "") -> None:
        super().__init__(cause)
        self.cause = cause


class Fakes:
    """Tensors that stand for the inputs of graphs, by how those look; one graph after the other uses them.

    ``copied``: a call was not computed, so that the history of its results leads nowhere. ``computed`` counts those
    that were. Each is computed ``within`` a mode.
    """

    def __init__(self, mode: Any = None) -> None:
        self.mode = fake_mode() if mode is None else mode
        self.made: dict[Any, list[Any]] = {}
        self.results: dict[Any, Any] = {}
        self._views: dict[Any, tuple[Any, list[Any]]] = {}
        self._source: torch.Tensor | None = None
        self.copied = False
        self.computed = 0
        self.within: Callable[[], AbstractContextManager[Any]] = nullcontext

    def result(self, key: Any, compute: Callable[[], Any], operands: list[Any], place: int) -> Any:
        """What a call gives, by what decides how its results look; computed once, then as many as are asked for.

        ``operands`` are the tensors it is given: a result that is one of them is that one again. ``place`` is that of
        the call among those of a graph with this ``key``: one graph after the other uses the same results. Raises
        ``NotHeld`` where no graph holds the results, and what the call raises.
        """
        found = self.results.get(key)
        if found is OTHER_KIND:
            raise NotHeld(OTHER_KIND)
        if found is _VIEWS:
            return self._view((key, tuple(map(id, operands)), place), compute, operands)
        if found is None:
            computed, outline = self._computed(compute, operands)
            if len(self.results) >= MOST_KEPT:
                self.results.clear()
            self.results[key] = _VIEWS if _is_view(computed, operands) else (outline, {})
            return computed
        self.copied = True
        outline, copies = found
        if place not in copies:
            copies[place] = self._copied(outline)
        return _with_operands(copies[place], operands)

    def refuse(self, key: Any) -> None:
        """Hold no call with this ``key``: eager gives other tensors."""
        self.results[key] = OTHER_KIND

    def _computed(self, compute: Callable[[], Any], operands: list[Any]) -> tuple[Any, Any]:
        """What a call gives, and the outline of it."""
        self.computed += 1
        with self.mode, unhooked(), self.within():
            computed = compute()
        if not tensors_only(computed):
            raise NotHeld
        if symbolic := [*filter(_is_symbolic, flat(computed))]:
            raise NotHeld("size" if all(t.layout is torch.strided for t in symbolic) else "sparse")
        return computed, _outlined(computed, {id(operand): at for at, operand in enumerate(operands)})

    def _view(self, key: Any, compute: Callable[[], Any], operands: list[Any]) -> Any:
        """The same of a call that gives views: copies of them would not share the memory of these ``operands``."""
        found = self._views.get(key)
        if found is not None:
            self.copied = True
            return _with_operands(found[0], operands)
        computed, outline = self._computed(compute, operands)
        if len(self._views) >= MOST_KEPT:
            self._views.clear()
        self._views[key] = _plain(outline), operands  # which are kept, so that no others have their identities
        return computed

    def _copied(self, outline: Any) -> Any:
        if outline is None or isinstance(outline, int):
            return outline
        if isinstance(outline, torch.Tensor):
            with self.mode, torch.no_grad():
                return looking_like(outline).requires_grad_(outline.requires_grad)
        if isinstance(outline, _WithHistory):
            with self.mode, torch.enable_grad(), unhooked():
                if self._source is None:
                    self._source = torch.empty(0, requires_grad=True)
                return _Made.apply(self._source, outline.look)  # type: ignore[no-untyped-call]
        kind, parts = outline
        return kind, [self._copied(part) for part in parts]

    def of(self, tensor: torch.Tensor, look: Any, place: int) -> Any:
        """What stands for a tensor of this look, the one at ``place`` among those of a graph that look so."""
        made = self.made.setdefault(look, [])
        while len(made) <= place:
            with self.mode, torch.no_grad():
                made.append(looking_like(tensor).requires_grad_(tensor.requires_grad))
        return made[place]


class Stale(Exception):
    """A tensor whose history autograd refuses to make: a view that somebody wrote to the base of."""


def look(t: torch.Tensor) -> Any:
    """What a compiled graph assumes of a tensor that it is given; raises ``Stale``."""
    try:
        leaf = is_leaf(t)
    except RuntimeError as error:
        raise Stale from error
    return (
        type(t), t.dtype, t.device, tuple(t.shape), t.stride(), t.storage_offset(), t.requires_grad, leaf,
        t.is_conj(), t.is_neg(), t.is_inference(),
    )  # fmt: skip


def kind_of_look(t: torch.Tensor) -> Any:
    """What the type, the rank and the layout of a call's results may depend on."""
    order = tuple(sorted(range(t.dim()), key=t.stride().__getitem__))
    return t.dtype, t.device, t.requires_grad, order, tuple(size == 1 for size in t.shape), t.is_contiguous()


def _with_operands(outline: Any, operands: list[Any]) -> Any:
    """The results that an outline stands for."""
    if isinstance(outline, int):
        return operands[outline]
    if outline is None or isinstance(outline, torch.Tensor):
        return outline
    kind, parts = outline
    return kind([_with_operands(part, operands) for part in parts])


def _plain(outline: Any) -> Any:
    """An outline of tensors that are leaves."""
    if isinstance(outline, _WithHistory):
        return outline.look.requires_grad_()
    if isinstance(outline, tuple):
        return outline[0], [*map(_plain, outline[1])]
    return outline


def _outlined(found: Any, places: dict[int, int]) -> Any:
    """Results of a call as what others are made from: operands by their places, the others as they look."""
    if isinstance(found, torch.Tensor):
        if id(found) in places:
            return places[id(found)]
        if found.requires_grad and not found.is_leaf:
            return _WithHistory(detached(found))
        return detached(found).requires_grad_(found.requires_grad)
    if found is None:
        return None
    return type(found), [_outlined(part, places) for part in found]


@dataclass(frozen=True)
class _WithHistory:
    """A result that is no leaf, so that a call may write to it: ``look`` is how it looks."""

    look: torch.Tensor


class _Made(torch.autograd.Function):
    """Gives a tensor that looks as another does, and has a history."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, look: torch.Tensor) -> torch.Tensor:
        return looking_like(look)  # type: ignore[no-any-return]


_VIEWS = object()
"""In place of the results of calls that give views."""


def _is_view(found: Any, operands: list[Any]) -> bool:
    """Whether a result lies in the memory of an operand, and is not that."""
    known = {id(operand) for operand in operands}
    made = [tensor for tensor in flat(found) if id(tensor) not in known]
    memories = {storage_of(operand) for operand in operands if operand.layout is torch.strided}
    return any(storage_of(tensor) in memories for tensor in made)


def _is_symbolic(tensor: torch.Tensor) -> bool:
    return tensor.layout is not torch.strided or any(not isinstance(size, int) for size in tensor.shape)
