"""The versions of one callable: drivers of earlier calls, each for the calls in which its facts hold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from itertools import takewhile
from typing import Any

import torch

from lamina.base.decision import Decision
from lamina.base.user_warnings import calling_line
from lamina.capture.frame_reasons import ALWAYS_ANOTHER, FORGOTTEN, INTERPRETED, REUSED, VERSION_WITHOUT_GRAPHS
from lamina.capture.own.frame import MISSING
from lamina.capture.own.guards.library import Library
from lamina.capture.own.reuse.conditions import Names, OwnConditions
from lamina.capture.own.reuse.differences import failed_fact
from lamina.capture.own.reuse.driver import Driver, Miss, Run, cannot_tell, state_of_torch
from lamina.capture.own.reuse.expressions import Unbuildable
from lamina.capture.own.reuse.facts import Fact, Place, constant_key
from lamina.capture.own.reuse.holding import holds, values_of
from lamina.capture.own.reuse.kinds import Remembered
from lamina.capture.own.reuse.learning import NUMBERS
from lamina.capture.own.reuse.trace import Trace, looks_but_for_sizes, tensor_look
from lamina.capture.own.torch_private import SET_GRAD, is_plain
from lamina.capture.recompiles.guard_texts import FailedGuard
from lamina.record import Record

__all__ = ["Versions"]

_MOST = 64
"""Versions that one callable keeps."""
_MOST_UNUSED = 8
"""Versions in a row that were made without a call that one of them fitted."""
_MOST_LOOKS = 256
"""Calls that are told apart where versions are made only for those that come again."""
_MOST_ENDED = 4
"""Traces that ended early, more than calls that were done without interpretation, until no more are tried."""
_NO_NAMES = Names()


class Versions:
    """Drivers, the one used last first, whose ``quick`` is ``first``; ``uses`` counts the calls that they have done.

    ``wanted`` tells whether a call that none of them is for is to be traced; if it is not, one is that looks as an
    earlier one did, as far as its tensors have ``looked`` other than those of the versions. ``names`` are those of the
    callable.
    """

    def __init__(
        self,
        subject: tuple[str, ...],
        record: Record,
        machine: Callable[[], Library | None] = lambda: None,
        names: Names = _NO_NAMES,
    ) -> None:
        self.subject, self.record, self.machine, self.names = subject, record, machine, names
        self.drivers: list[Driver] = []
        self.first: Run = cannot_tell
        self.ended = self.unused = self._done = self._seen = 0
        self.wanted = True
        self.missed: FailedGuard | None = None
        """Why the version used last is not for the call in progress."""
        self._differs: Driver | None = None
        self._others: dict[str, int] = {}
        self.sizes: dict[str, frozenset[int]] = {}
        """Positions of sizes and strides, by the texts of tensors' places, that were others in a call."""
        self.graphs: list[Callable[..., Any]] = []
        """Those of a version whose facts hold for the call in progress but for sizes."""
        self._sizes_vary = self._comes_again = self._by_look = False
        self._looked: set[frozenset[Any]] = set()
        self._noted: set[str] = set()

    @property
    def traced(self) -> bool:
        """Whether the call in progress, which no version is for, is to be traced."""
        return self.wanted or (self._comes_again and sum(driver.leaves for driver in self.drivers) < _MOST)

    @property
    def uses(self) -> int:
        """Calls that a driver has done."""
        return self._done + sum(driver.hits for driver in self.drivers)

    def quick(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call gives if the guard machine can tell which driver but the first is for it, else ``MISSING``."""
        for driver in self.drivers[1:]:
            found = driver.quick(args, kwargs)
            if found is not MISSING:
                self._keep([driver, *(other for other in self.drivers if other is not driver)])
                return found
        return MISSING

    def with_machine(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Have the machine of the first driver asked from now on; what it gives for a call."""
        self._keep(self.drivers)
        return self.first(args, kwargs)

    def take(self, driver: Driver) -> None:
        """Have a driver that another process has made, which has done a call."""
        self._done += 1
        self._note_facts(driver)
        self._keep([driver, *self.drivers])

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a call in the ordinary state gives, or ``MISSING`` if it is to be interpreted."""
        self.missed = self._differs = None
        self._comes_again, failed, self.graphs = False, [], []
        grad = torch.is_grad_enabled()
        for place, driver in enumerate(self.drivers):
            if not driver.with_machine and driver.holds(args, kwargs):
                driver.have_guard(self.machine(), driver.found(args, kwargs))
                self._keep(self.drivers)
            if driver.guard is not None and driver.guard.useful and driver.holds(args, kwargs):
                driver.learn(args, kwargs)
                self._keep(self.drivers)
            found = driver.run(args, kwargs)
            if type(found) is not Miss:
                self._done += 1
                if place:
                    self._keep([driver, *(other for other in self.drivers if other is not driver)])
                return found
            SET_GRAD(grad)  # what ended its graph may have kept it from doing so
            if not place:
                self._miss(driver, found.fact, args, kwargs)
            failed.append(found.fact)
            if found.learnt and self._differs is None:
                self._differs = driver
        with contextlib.suppress(Exception):
            self._compare_sizes(args, kwargs)
        if self._sizes_vary:
            with contextlib.suppress(Exception):
                self._note_looks(failed, args, kwargs)
        return MISSING

    def _compare_sizes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Find a version whose facts hold for a call but for sizes of tensors, which are inputs from now on."""
        differing: dict[str, set[int]] = {}

        def holds_but_for_sizes(fact: Fact, values: list[Any]) -> bool:
            if fact.kind not in ("look", "varies") or not is_plain(values[0]):
                number = fact.kind == "constant" and type(fact.value) in NUMBERS
                return holds(fact, values) or (number and type(values[0]) is type(fact.value))
            look, found = fact.value if fact.kind == "look" else fact.value[0], tensor_look(values[0])
            at = range(2 * len(look[2]))
            others = zip(at, (*look[2], *look[3]), (*found[2], *found[3]), strict=False)
            differing[str(fact.places[0])] = {place for place, one, other in others if one != other}
            return bool(found == looks_but_for_sizes(look, found, at))

        for driver in self.drivers[:_MOST_UNUSED]:
            differing.clear()
            rows = [*takewhile(_runs_nothing, driver.facts.rows)]
            if type(values_of(rows, args, kwargs, holds_but_for_sizes)) is dict:
                self.graphs = driver.graphs
                for place, positions in differing.items():
                    if positions:
                        self.sizes[place] = self.sizes.get(place, frozenset()) | positions
                return

    def _note_looks(self, failed: list[Fact | None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note how the tensors look that are the first to keep versions from a call, and whether they have before."""
        tensors = {str(f.places[0]): f.places[0] for f in failed if f is not None and f.kind == "look"}
        looks = frozenset((name, tensor_look(place.value(args, kwargs))) for name, place in tensors.items())
        self._comes_again = looks in self._looked
        if len(self._looked) < _MOST_LOOKS:
            self._looked.add(looks)

    @property
    def varying(self) -> frozenset[str]:
        """Places whose numbers have been others twice: they are inputs of what is compiled from then on."""
        return frozenset(place for place, count in self._others.items() if count > 1)

    def _miss(self, driver: Driver, fact: Fact | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The version used last is not for a call: keep why, without what the call was given."""
        self._by_look = fact is not None and fact.kind == "look"
        if fact is not None:
            if fact.kind == "constant" and type(fact.value) in NUMBERS:
                with contextlib.suppress(Exception):
                    values_of([*takewhile(_runs_nothing, driver.facts.rows)], args, kwargs, self._holds_but_for_numbers)
            with contextlib.suppress(Exception):
                self.missed = failed_fact(fact, args, kwargs, self.names)

    def _holds_but_for_numbers(self, fact: Fact, values: list[Any]) -> bool:
        """Whether a fact holds, or is one about a number that is another one, which is counted."""
        if fact.kind != "constant" or type(fact.value) not in NUMBERS or type(values[0]) is not type(fact.value):
            return holds(fact, values)
        if constant_key(values[0]) != constant_key(fact.value):
            name = str(fact.places[0])
            self._others[name] = self._others.get(name, 0) + 1
        return True

    def _keep(self, drivers: list[Driver]) -> None:
        """Have these drivers only, in this order."""
        kept = {id(driver) for driver in drivers}
        self._done += sum(driver.hits for driver in self.drivers if id(driver) not in kept)
        self.drivers = drivers
        self.first = drivers[0].quick if drivers else cannot_tell

    def add(self, trace: Trace, result: Any, compiled: bool = True) -> list[Driver]:
        """Make a version of a call that was traced; gives its driver, if it has one of its own.

        ``compiled``: graphs were compiled for it.
        """
        missed, self.missed = self.missed, None
        differs, self._differs = self._differs, None
        trace.finish(state_of_torch())
        if trace.ended is None:
            try:
                taken = differs is not None and differs.takes(trace, result)
                made = [] if taken else [Driver(trace, result, self.machine())]
            except Unbuildable as why:
                trace.end(f"the call makes {why}, which is kept or returned")
        if trace.ended is not None:
            self._has_ended(trace.ended)
            return []
        self._note_once("reused", Decision("capture", self.subject, True, REUSED(count=len(trace.facts.facts))))
        if missed is not None:
            self._note_version(missed, compiled)
        for driver in made:
            self._note_facts(driver)
        self._keep([*made, *self.drivers])
        uses = self.uses
        self.unused = 1 if uses > self._seen else self.unused + 1
        self._seen = uses
        self._limit(missed)
        return made

    def _note_facts(self, driver: Driver) -> None:
        """Note a version, whose facts are read when somebody asks for them."""
        with self.record.harmless("guards"):
            self.record.keep("", "guards", OwnConditions(driver, self.names))

    def _note_version(self, failed: FailedGuard, compiled: bool) -> None:
        """Note the fact for which there is one version more."""
        if compiled:
            at = ("called at", calling_line())
            facts = (*failed.facts(), at, ("versions before", len(self.drivers)))
            self.record.note("", "capture", Decision("recompile", self.subject, True, failed.reason, facts))
        else:
            told = VERSION_WITHOUT_GRAPHS(why=str(failed.reason))
            self.record.note("", "capture", Decision("capture", self.subject, True, told))

    def _has_ended(self, why: str) -> None:
        self.ended += 1
        self._note_once(why, Decision("capture", self.subject, True, INTERPRETED(why=why)))
        if self.ended >= _MOST_ENDED and self.ended > self.uses:
            self.wanted = False
            self._keep([])

    def _limit(self, missed: FailedGuard | None) -> None:
        """Forget the version used least lately if there are too many, or all if none is used."""
        fact = "it" if missed is None else missed.guard
        if self.wanted and self.unused >= _MOST_UNUSED and self.unused > self.uses // 4:
            self.wanted = False
            told = ALWAYS_ANOTHER(count=len(self.drivers), fact=fact)
            self.record.note("", "capture", Decision("capture", self.subject, True, told))
            self._sizes_vary = self._by_look
            if not self._by_look:
                self._keep([])
        elif sum(driver.leaves for driver in self.drivers) > _MOST:
            self._keep(self.drivers[:-1])
            told = FORGOTTEN(most=_MOST, fact=fact)
            self.record.note("", "capture", Decision("capture", self.subject, False, told))

    def _note_once(self, name: str, decision: Decision) -> None:
        if name not in self._noted and len(self._noted) < _MOST:
            self._noted.add(name)
            self.record.note("", "capture", decision)


def _runs_nothing(row: Place | Fact) -> bool:
    """Whether a place is found without a function of the user's, which is not asked unless all before it holds."""
    return not (isinstance(row, Place) and row.how == "computed" and type(row.key[0]) is Remembered)
