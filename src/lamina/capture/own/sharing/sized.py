"""Steps of drivers that run a compiled form for the integers that each call finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lamina.base.recipes import made_of
from lamina.capture.own.reuse.sized import Sized, function_of
from lamina.capture.own.sharing.form import Bound, Form

__all__ = ["Given", "Source", "form_of", "sized"]

Source = tuple[str, bool]
"""An expression for an integer of a graph in a call, and whether facts tell that it is what it was."""
Given = Callable[[int], Source | None]
"""The source of the integer at a position; None for one of which nobody knows where it is from."""


def form_of(run: Any) -> Form | None:
    """The form that a step of a driver runs, if it runs one."""
    return run.form if isinstance(run, Sized | Bound) else None


def sized(
    bound: Bound, inputs: Sequence[torch.Tensor], numbers: Sequence[int], source: Given, offsets: Sequence[int | None]
) -> Sized | None:
    """What runs the form of ``bound`` for the integers of each call, given ``inputs`` and then ``numbers``.

    ``offsets`` are those of inputs of which no fact tells it. None where an integer comes from nobody knows where.
    """
    form, run = bound.form, bound.form.run
    names = [*(f"t{at}" for at in range(len(inputs))), *(f"n{at}" for at in range(len(numbers)))]
    lines = _lines(form, source, offsets)
    if lines is None or run is None:
        return None
    values = "".join(f"s{number}, " for number in range(len(form.places)))
    text = "\n    ".join((f"def read({', '.join(names)}):", *lines, f"return ({values})"))
    made = Sized(run, len(inputs), function_of(text, "read"), form.known, form.proven, form)
    if made.read(*inputs, *numbers) != bound.values:
        return None
    return made_of(made, "for sizes", compiled=run, tensors=len(inputs), read=text, known=form.known, form=form)


def _lines(form: Form, source: Given, offsets: Sequence[int | None]) -> list[str] | None:
    """The lines of a function that reads the integers, and asks whether the others are as they were."""
    lines = [f"if t{at}.storage_offset() != {one}: return None" for at, one in enumerate(offsets) if one is not None]
    for number, places in enumerate(form.places):
        found = [source(at) for at in places]
        if None in found:
            return None
        first, *others = [one[0] for one in found if one is not None]
        lines += [f"s{number} = {first}", *(f"if {text} != s{number}: return None" for text in others)]
    for at, constant in form.constants.items():
        one = source(at)
        if one is not None and not one[1]:
            lines.append(f"if {one[0]} != {constant}: return None")
    for at, factors in form.derived.items():
        found = [source(one) for one in (at, *factors)]
        if None in found:
            return None
        first, *others = [one[0] for one in found if one is not None]
        lines.append(f"if {first} != {' * '.join(others)}: return None")
    return lines
