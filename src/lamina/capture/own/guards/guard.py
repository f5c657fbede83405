"""A driver's facts asked by the guard machine, which learns from calls for which Python finds that they hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lamina.capture.own.guards.library import Library
from lamina.capture.own.guards.program import Program
from lamina.capture.own.reuse.facts import Fact, Facts, Place
from lamina.capture.own.reuse.trace import tensor_look
from lamina.capture.own.torch_private import is_plain

__all__ = ["Guard"]

_MOST_IN_VAIN = 16
"""Calls for which facts hold though the machine does not say so, until it is not asked any more."""


class Guard:
    """``check(args, kwargs)`` gives the values of the places ``results`` if all ``facts`` hold, in the ordinary state.

    None if one does not, or if the machine cannot tell. ``asked`` is as ``Program`` wants it. ``useful`` becomes false
    when it is seldom able to tell.
    """

    def __init__(
        self, library: Library, facts: Facts, results: tuple[Place, ...], asked: Callable[[Fact], Callable[..., bool]]
    ) -> None:
        self.library, self.facts, self.results, self.asked = library, facts, results, asked
        self.exact: frozenset[int] = frozenset()
        self.vain = self._before = 0
        self.useful = True
        self._build()

    @property
    def hits(self) -> int:
        """Calls for which the machine could tell that all facts hold."""
        return self._before + self.program.hits

    def _build(self) -> None:
        self.program = Program(self.library, self.facts, self.results, self.asked, self.exact)
        self.check = self.program.check

    def meet(self, found: dict[int, Any]) -> None:
        """Tell the machine of the tensors that were found, by numbers of places, if they still are what facts say."""
        for fact in self.facts.facts:
            if fact.kind == "look":
                value = found.get(fact.places[0].number)
                if value is not None and _looks_so(fact, value):
                    self.program.knows(fact, value)

    def learn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call for which all facts hold, as Python has just found."""
        self.vain += 1
        if self.vain > _MOST_IN_VAIN:
            self.useful = False
            return
        looks = [(fact, fact.places[0].value(args, kwargs)) for fact in self.facts.facts if fact.kind == "look"]
        unknown = {fact.places[0].number for fact, found in looks if self.library.head(found) is None}
        if self.program.knows_all(looks) or unknown - self.exact:
            self.exact |= unknown
            self._before = self.hits
            self._build()
        for fact, found in looks:
            if fact.places[0].number not in self.exact and _looks_so(fact, found):
                self.program.knows(fact, found)


def _looks_so(fact: Fact, tensor: torch.Tensor) -> bool:
    return is_plain(tensor) and tensor_look(tensor) == fact.value
