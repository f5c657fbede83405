"""The graphs of one callable by families, and which compiled forms stand for several graphs of one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule, Node

from lamina.capture.own.frame import MOST_KEPT
from lamina.capture.own.segment import Segment
from lamina.capture.own.sharing.form import Bound, Form
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
    """What is known of graphs that differ in integers only; ``told`` is given how many, and which, are inputs."""

    def __init__(self, told: Callable[[int, str], None] = lambda count, numbers: None) -> None:
        self.found: dict[Any, Family] = {}
        self.told = told

    def compiled(self, segment: Segment, outputs: list[Node], backend: Backend) -> Callable[..., Any] | None:
        """A form that stands for a graph, which is made if there is none; None if it is to be compiled by itself."""
        outline = Outline(segment, outputs)
        if not outline.fits_in_words:
            return None
        numbers = tuple(outline.numbers)
        family = self.found.get(outline.family)
        if family is None:
            if len(self.found) >= MOST_KEPT:
                self.found.clear()
            self.found[outline.family] = Family([numbers])
            return None
        for form in family.forms:
            bound = _bound(form, segment, numbers)
            if bound is not None:
                return bound
        bound = self._new_form(segment, outline, family, backend)
        family.samples = [*family.samples[1 - _MOST :], numbers]
        return bound

    def _new_form(self, segment: Segment, outline: Outline, family: Family, backend: Backend) -> Bound | None:
        numbers = tuple(outline.numbers)
        while family.tries < _MOST:
            alike = [s for s in family.samples if all(s[at] == numbers[at] for at in family.fixed)]
            varying = [at for at, number in enumerate(numbers) if any(s[at] != number for s in alike)]
            if not varying:
                return None
            family.tries += 1
            samples = sorted([numbers, *reversed(alike)], key=lambda s: sum(s[at] in (0, 1) for at in varying))
            form = _made(segment, outline, samples, varying, family.fixed)
            if form is not None:
                try:
                    form.compile(backend)
                except Exception:  # the graph by itself tells
                    return None
                family.forms.insert(0, form)
                family.fixed |= form.fixed()
                self.told(len(form.places), ", ".join(outline.name(places[0]) for places in form.places[:_MOST]))
                return _bound(form, segment, numbers)
            if not family.fixed.intersection(varying):
                return None
        return None


def _made(
    segment: Segment, outline: Outline, samples: list[tuple[int, ...]], varying: list[int], fixed: set[int]
) -> Form | None:
    """A form that stands for a graph, not compiled yet; ``fixed`` receives the positions that cannot vary."""
    for sizes_open in (True, False):
        with contextlib.suppress(Exception):
            form = Form(segment, outline, samples, varying, sizes_open)
            fixed |= form.fixed()
            if _bound(form, segment, tuple(outline.numbers)) is not None:
                return form
    return None


def _bound(form: Form, segment: Segment, numbers: tuple[int, ...]) -> Bound | None:
    values = form.values(numbers)
    with contextlib.suppress(Exception):
        if values is not None and form.does_the_same(segment, values):
            return Bound(form, values)
    return None
