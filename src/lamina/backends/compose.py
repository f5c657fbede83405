"""Rewrites of one's own in front of any backend, as one backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from lamina.backends.api import Backend
from lamina.backends.registry import as_backend
from lamina.base.passes import Passes
from lamina.base.rule import NestRule, Rule
from lamina.errors import BadArgument

__all__ = ["compose"]


def compose(*passes: Any, then: str | Backend | Callable[..., Any] = "inductor", name: str = "") -> Backend:
    """A backend that is ``then`` behind ``passes``: Lamina's autograd and rewrites, these, then ``then``.

    ``passes`` are functions ``GraphModule -> GraphModule``, which run on each functional ATen graph (inference,
    forward, backward) right before ``then`` is given it; rules; a ``Passes`` for other places; or sequences of those.
    ``then`` is anything ``lamina.compile(backend=...)`` takes; one that torch.compile knows is given our graphs. Raises
    ``BadArgument`` for what is none of these.
    """
    last = as_backend(then)
    found, rules = last.passes, list(last.rules)
    for given in _flat(passes):
        if isinstance(given, (Rule, NestRule)):
            rules.append(given)
        elif isinstance(given, Passes):
            found = joined(found, given)
        elif callable(given):
            found = joined(found, Passes(lowered=given))
        else:
            raise BadArgument(
                f"compose was given {given!r}", remedy="pass functions GraphModule -> GraphModule, rules or a Passes"
            )
    return last.replace(name=name or last.name, graph="aten", passes=found, rules=tuple(rules))


def joined(first: Passes, second: Passes) -> Passes:
    """The passes of both at every place, those of ``first`` first."""
    return Passes(**{f.name: getattr(first, f.name) + getattr(second, f.name) for f in fields(Passes)})


def _flat(given: Iterable[Any]) -> list[Any]:
    found = []
    for one in given:
        found += _flat(one) if isinstance(one, (list, tuple)) else [one]
    return found
