"""The graphs of one callable by families, and which compiled forms stand for several graphs of one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule, Node

from lamina.base.recipes import made_of
from lamina.capture.own.frame import MOST_KEPT
from lamina.capture.own.segment import Segment
from lamina.capture.own.sharing.form import Bound, Form
from lamina.capture.own.sharing.marks import asked, settled
from lamina.capture.own.sharing.outline import Outline

__all__ = ["Families"]

Backend = Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]
_MOST = 8
"""Forms that one family gets, graphs of it whose integers are kept, and integers that are named."""


@dataclass(slots=True)
class Family:
    """The integers of graphs that were compiled by themselves, and forms that stand for several.

    Integers at the positions ``fixed`` decide what the graph computes.
    """

    samples: list[tuple[int, ...]]
    forms: list[Form] = field(default_factory=list)
    fixed: set[int] = field(default_factory=set)
    tries: int = 0


class Families:
    """What is known of graphs that differ in integers only.

    ``told`` is given how many of them, and which, are inputs; ``alone`` why a graph is compiled by itself though one
    that differs in integers was. With ``all_sizes`` those of tensors are inputs from the first graph on.
    """

    def __init__(
        self,
        told: Callable[[int, str], None] = lambda count, numbers: None,
        alone: Callable[[str], None] = lambda why: None,
        all_sizes: bool = False,
    ) -> None:
        self.found: dict[Any, Family] = {}
        self.told, self.alone, self.all_sizes = told, alone, all_sizes

    def compiled(self, segment: Segment, outputs: list[Node], backend: Backend) -> Callable[..., Any] | None:
        """A form that stands for a graph, which is made if there is none; None if it is to be compiled by itself."""
        outline = Outline(segment, outputs)
        if not outline.fits_in_words:
            return None
        numbers = tuple(outline.numbers)
        family, wanted = self.found.get(outline.family), asked(segment, outline, self.all_sizes)
        if family is None:
            if len(self.found) >= MOST_KEPT:
                self.found.clear()
            family = self.found[outline.family] = Family([])
        family.fixed |= settled(segment, outline)
        for form in family.forms:
            bound = _bound(form, segment, numbers)
            if bound is not None:
                return bound
        bound = self._new_form(segment, outline, family, backend, wanted) if family.samples or wanted else None
        family.samples = [*family.samples[1 - _MOST :], numbers]
        return bound

    def _new_form(
        self, segment: Segment, outline: Outline, family: Family, backend: Backend, wanted: set[int]
    ) -> Bound | None:
        numbers, why = tuple(outline.numbers), f"{_MOST} forms of it were made before"
        while family.tries < _MOST:
            alike = [s for s in family.samples if all(s[at] == numbers[at] for at in family.fixed)]
            varying = [
                at
                for at, number in enumerate(numbers)
                if at not in family.fixed and (at in wanted or any(s[at] != number for s in alike))
            ]
            if varying:  # a decision of the program's, which is another one sooner or later
                varying = sorted({*varying, *outline.truths} - family.fixed)
            if not varying:
                why = _deciding(outline, family)
                break
            family.tries += 1
            samples = sorted([numbers, *reversed(alike)], key=lambda s, v=varying: sum(s[at] in (0, 1) for at in v))  # type: ignore[misc]
            form = _made(segment, outline, samples, varying, family.fixed)
            if isinstance(form, Form):
                try:
                    form.compile(backend)
                except Exception as error:  # the graph by itself tells
                    why = _said(error)
                    break
                family.forms.insert(0, form)
                family.fixed |= form.fixed()
                self.told(len(form.places), ", ".join(outline.name(places[0]) for places in form.places[:_MOST]))
                bound = _bound(form, segment, numbers)
                if bound is None:
                    self.alone("what compiling it has found out does not hold for it")
                return bound
            why = form
            if not family.fixed.intersection(varying):
                break
        self.alone(why)
        return None


def _deciding(outline: Outline, family: Family) -> str:
    """Which integer it is by which a graph differs from others, and by which they compute something else."""
    last = family.samples[-1] if family.samples else outline.numbers
    names = [outline.name(at) for at in sorted(family.fixed) if last[at] != outline.numbers[at]]
    return f"{names[0]} decides what it computes, or is marked static" if names else "its integers are no inputs"


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


def _made(
    segment: Segment, outline: Outline, samples: list[tuple[int, ...]], varying: list[int], fixed: set[int]
) -> Form | str:
    """A form that stands for a graph, not compiled yet, or why there is none.

    ``fixed`` receives the positions that cannot vary.
    """
    why, found = "", set[int]()
    for sizes_open in (True, False):
        best: Form | None = None
        for in_python in (False, True):
            try:
                form = Form(segment, outline, samples, varying, sizes_open, in_python)
                found |= form.fixed()
            except Exception as error:
                why = _said(error)
                continue
            if _bound(form, segment, tuple(outline.numbers)) is None:
                why = "for these integers its calls give tensors that look otherwise or share other memory"
            elif best is None or len(form.fixed()) < len(best.fixed()):
                best = form
            if best is not None and not best.fixed():
                break
        if best is not None:
            fixed |= best.fixed()
            return best
    fixed |= found
    return why


def _bound(form: Form, segment: Segment, numbers: tuple[int, ...]) -> Bound | None:
    values = form.values(numbers)
    with contextlib.suppress(Exception):
        if values is not None and form.does_the_same(segment, values):
            form.known[values] = True
            bound = Bound(form, values)
            return bound if form.run is None else made_of(bound, "with numbers", compiled=form.run, values=values)
    return None
