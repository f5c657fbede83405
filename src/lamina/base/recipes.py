"""What compiled callables are made of, so that another process can make them again without compiling."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["Recipe", "captured", "captured_as", "made_of", "recipe_of"]

_Made = TypeVar("_Made", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Recipe:
    """A callable is what its maker, of a ``kind``, makes of ``parts``: plain values, and callables with recipes."""

    kind: str
    parts: Mapping[str, Any]


_RECIPES: weakref.WeakKeyDictionary[Callable[..., Any], Recipe] = weakref.WeakKeyDictionary()
"""By callable; what is not in here, nobody but this process can make."""


def made_of(made: _Made, kind: str, **parts: Any) -> _Made:
    """``made``, of which it is noted what it is made of; no part may lead back to it, which would keep it alive."""
    _RECIPES[made] = Recipe(kind, parts)
    return made


def recipe_of(made: Callable[..., Any]) -> Recipe | None:
    """What ``made`` is made of; None if that was not noted."""
    try:
        return _RECIPES.get(made)
    except TypeError:  # it has no weak references, or no hash
        return None


_CAPTURED: weakref.WeakKeyDictionary[Callable[..., Any], tuple[Any, tuple[Any, ...]]] = weakref.WeakKeyDictionary()
"""By callable."""


def captured(made: Callable[..., Any], graph: Any, inputs: Sequence[Any]) -> None:
    """Note that ``made`` is the compiled form of a captured ``graph`` with ``inputs`` without values."""
    try:
        _CAPTURED[made] = graph, tuple(inputs)
    except TypeError:  # what a backend gives may be anything
        return


def captured_as(made: Callable[..., Any]) -> tuple[Any, tuple[Any, ...]] | None:
    """The captured graph, and its inputs, whose compiled form ``made`` is; None if that was not noted."""
    return _CAPTURED.get(made)
