"""A trace as one flat function of Python's: the facts hold, its graphs run, its writes are done again."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MethodType
from typing import Any

import torch

from lamina.base.torch_private import is_leaf
from lamina.capture.own.autocast import Autocast
from lamina.capture.own.frame import MISSING
from lamina.capture.own.guards.guard import Guard
from lamina.capture.own.guards.library import Library
from lamina.capture.own.results import distinct
from lamina.capture.own.reuse.asking import Line, Names, asked, condition
from lamina.capture.own.reuse.expressions import Path
from lamina.capture.own.reuse.facts import Fact, Facts, constant_key
from lamina.capture.own.reuse.paths import Node, joined, program
from lamina.capture.own.reuse.run import Ran, begun_anew
from lamina.capture.own.reuse.trace import Trace
from lamina.capture.own.torch_private import SET_GRAD, autocast_states, is_from_a_hook, is_wrapped, settings
from lamina.capture.own.writing import Anew

__all__ = ["Driver", "Miss", "Run", "cannot_tell", "state_of_torch"]

Run = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Gives the result of a call with these arguments, or says that it is not for it."""
_TOO_LARGE = SyntaxError, RecursionError, MemoryError
"""What Python raises for a text beyond its bounds."""
_PLACE = re.compile(r"\bp\d+\b")


def state_of_torch() -> tuple[Any, ...]:
    """What torch's state is that decides what calls compute: grad mode, autocast and settings."""
    return torch.is_grad_enabled(), autocast_states(), settings()


class Miss:
    """What a driver gives for a call that it is not for: ``fact`` is the first that does not hold.

    None: a place is not there, a graph failed before anything was written, or, ``learnt``, a value that the call has
    learnt is another one.
    """

    __slots__ = ("fact", "learnt")

    def __init__(self, fact: Fact | None, learnt: bool = False) -> None:
        self.fact, self.learnt = fact, learnt


class Driver:
    """The program of a trace whose call gave ``result``; raises ``Unbuildable`` if it cannot be written.

    ``source`` is its text; ``run(args, kwargs)`` gives the call's result, or a ``Miss``. ``quick(args, kwargs)`` asks
    the facts by a guard machine where ``library`` is one, and gives ``MISSING`` where that cannot tell that they hold;
    a program with decisions has none. ``takes`` has the driver serve the calls of another trace too, where the two
    differ from a value on that calls learn.
    """

    def __init__(self, trace: Trace, result: Any, library: Library | None = None) -> None:
        names = Names()
        self._have(names, trace.facts, Path(trace, result, names).node, _graphs_of(trace))
        self.views.update((id(view), kind) for kind, view in trace.views.items())
        self.have_guard(library, {place.number: value for value, place in trace.known.values()})

    @classmethod
    def of_program(
        cls,
        names: Names,
        facts: Facts | Callable[[], Facts],
        root: Node,
        graphs: list[Callable[..., Any]],
        fixed: Mapping[int, Any],
    ) -> Driver:
        """The driver of a program that another one has written, ``fixed`` the objects at places of such, by numbers.

        Where ``facts`` makes the facts when they are needed, ``root`` is without what asks them, which is all of them.
        """
        made = cls.__new__(cls)
        made._have(names, facts, root, graphs)
        made.fixed = fixed
        return made

    def _have(
        self, names: Names, facts: Facts | Callable[[], Facts], root: Node, graphs: list[Callable[..., Any]]
    ) -> None:
        self.names, self._facts, self._root, self.graphs = names, facts, root, graphs
        self._unasked = not isinstance(facts, Facts)
        self.decides = bool(root.name)
        """Whether values that are learnt decide what its program does."""
        self.fixed: Mapping[int, Any] = {}
        self.leaves = 1
        self._source = ""
        self.run: Run = self._written_now
        self.views: dict[int, type] = {}
        self._asks: Run | None = None
        self.guard: Guard | None = None
        self.quick: Run = cannot_tell
        self.with_machine = False

    @property
    def facts(self) -> Facts:
        """What holds of the calls that it serves."""
        if not isinstance(self._facts, Facts):
            self._facts = self._facts()
        return self._facts

    @property
    def root(self) -> Node:
        """Its program."""
        if self._unasked:
            self._root.asks = asked(self.facts.rows, self.names)
            self._unasked = False
        return self._root

    @property
    def source(self) -> str:
        """The text of ``run``."""
        if not self._source:
            self._write()
        return self._source

    def _written_now(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The first call of ``run``, whose text a guard machine may make needless."""
        try:
            self._write()
        except _TOO_LARGE as error:
            if isinstance(error, SyntaxError):
                self.run = _never
            return Miss(None)
        return self.run(args, kwargs)

    def _asked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._asks is None:
            self._asks = self._compiled(*_text(Node(asked(self.facts.rows, self.names), end=["return None"])))
        return self._asks(args, kwargs)

    def runs_with(self, values: Mapping[int, Any]) -> Callable[[], Any]:
        """What makes one call for which all facts hold, with what is at each place; no decision is asked before it."""
        used = [number for number in _named_places(self._root) if number in values]
        places = [f"p{number} = {self.names.object(self.fixed[number])}" for number in used if number in self.fixed]
        found = [number for number in used if number not in self.fixed]
        rest = _with_found([f"p{number}" for number in found], [*self._root.steps, *self._root.end])
        source, facts = _text(Node([Line(line) for line in places], end=rest))
        run = self._compiled(source, facts, found=tuple(values[number] for number in found))

        def once() -> Any:
            try:
                return run((), {})
            finally:
                del run.__globals__["found"]  # a function is in its own namespace, which only the collector lets go

        return once

    def have_guard(self, library: Library | None, values: dict[int, Any]) -> None:
        """Have the facts asked by a machine, of which ``values`` are what was found at the places; once."""
        self.with_machine = True
        if library is not None and not self.decides:
            with suppress(Exception):  # what is only faster must not keep a call from being done
                self._have_guard(library, values)

    def _have_guard(self, library: Library, values: dict[int, Any]) -> None:
        """Have the facts asked by a machine in ``quick``, where it knows what to do with the places."""
        steps, end = self._root.steps, self._root.end
        places = self.facts.places
        used = [places[number] for number in _named_places(self._root) if number < len(places)]
        found = tuple(place for place in used if place.how != "object")
        guard = self.guard = Guard(library, self.facts, found, self._question)
        guard.meet(values)
        lines = (
            "found = guard.check(args, kwargs)",
            "if found is None: return gone",
            *(f"{place.variable} = {self.names.object(place.key)}" for place in used if place.how == "object"),
        )
        rest = _with_found([place.variable for place in found], [*steps, *end])
        source, facts = _text(Node([Line(line) for line in lines], end=rest))
        self.quick = self._compiled(source, facts, gone=MISSING, guard=guard)

    def _question(self, fact: Fact) -> Callable[..., bool]:
        """A function that tells of the values at a fact's places whether it is broken."""
        names = [f"q{number}" for number in range(len(fact.places))]
        broken = condition(fact.kind, names, fact.value, self.names)
        asks: Callable[..., bool] = eval(f"lambda {', '.join(names)}: bool({broken})", self._space())
        return asks

    def learn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tell the machine of a call for which Python has found that all facts hold."""
        if self.guard is not None and self.quick is not cannot_tell:
            self.guard.learn(args, kwargs)
            if not self.guard.useful:
                self.quick = cannot_tell

    @property
    def hits(self) -> int:
        """Calls for which the machine could tell that the facts hold."""
        return 0 if self.guard is None else self.guard.hits

    def holds(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether all facts hold for a call, as Python finds."""
        return self._asked(args, kwargs) is None

    def found(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, Any]:
        """What is at each place, by numbers, for a call for which all facts hold."""
        return {place.number: place.value(args, kwargs) for place in self.facts.places}

    def failing(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fact | None:
        """The first fact that does not hold for a call; None if all do, or if a place is not there."""
        found = self._asked(args, kwargs)
        return found.fact if type(found) is Miss else None

    def takes(self, trace: Trace, result: Any) -> bool:
        """Whether this driver does what ``trace`` says as well from now on."""
        changed = joined(self.root, Path(trace, result, self.names).node)
        if changed is None:
            return False
        try:
            self._write()
        except _TOO_LARGE:
            changed.nexts.pop()
            self._write()
            return False
        self.leaves += 1
        self.graphs += _graphs_of(trace)
        return True

    def _write(self) -> None:
        self._source, facts = _text(self.root)
        self.run = self._compiled(self._source, facts)

    def _space(self) -> dict[str, Any]:
        return {
            **self.names.objects, "gone": Miss(None), "another": Miss(None, learnt=True), "state": state_of_torch,
            "is_wrapped": is_wrapped, "is_leaf": is_leaf, "new": object.__new__, "constant_key": constant_key,
            "bound": MethodType, "within": _within, "distinct": distinct, "hooked": is_from_a_hook,
            "anew": Anew, "begun_anew": begun_anew,
        }  # fmt: skip

    def _compiled(self, source: str, facts: list[Fact], **names: Any) -> Run:
        space = {**self._space(), **{f"m{number}": Miss(fact) for number, fact in enumerate(facts)}, **names}
        exec(compile(source, "<driver of a call>", "exec"), space)
        run: Run = space["driver"]
        return run


def _graphs_of(trace: Trace) -> list[Callable[..., Any]]:
    return [step.run for step in trace.learning.steps if isinstance(step, Ran)]


def _named_places(root: Node) -> list[int]:
    """Numbers of the places that the steps and the end of a program name, and of what looks like one."""
    return [int(name[1:]) for name in dict.fromkeys(_PLACE.findall("\n".join((*root.steps, *root.end))))]


def _text(root: Node) -> tuple[str, list[Fact]]:
    """The function of Python's that a tree is, and the facts that it asks."""
    lines, facts = program(root)
    body = [f"        {line}" for line in lines]
    head = ["def driver(args, kwargs):", "    spoiled = False", "    try:"]
    return "\n".join(
        (
            *head,
            *body,
            "    except Exception as error:",
            "        if spoiled and not isinstance(error, anew) or hooked(error): raise",
            "        return gone",
            "",
        )
    ), facts


def _with_found(names: list[str], program: list[str]) -> list[str]:
    """A program that has the values of ``names`` in a tuple called ``found``."""
    if not names:
        return program
    text = "\n".join(program).replace(f"({', '.join(names)})", "(*found)", 1)
    if set(names).isdisjoint(re.findall(r"\w+", text)):
        return text.split("\n")
    return [f"({', '.join(names)},) = found", *program]


def cannot_tell(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What is asked in place of a machine."""
    return MISSING


def _never(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What runs in place of a program that Python does not take."""
    return Miss(None)


def _within(
    grad: bool | None,
    run: Callable[..., Any],
    inputs: tuple[Any, ...],
    autocast: tuple[Any, ...],
    /,
    **named: Any,
) -> Any:
    """Run a graph, or make a call, in a grad mode and a state of autocast; those that there are if none is told."""
    if autocast:
        with Autocast(autocast):
            return _within(grad, run, inputs, (), **named)
    before = torch.is_grad_enabled()
    SET_GRAD(before if grad is None else grad)
    try:
        return run(*inputs, **named)
    finally:
        SET_GRAD(before)
