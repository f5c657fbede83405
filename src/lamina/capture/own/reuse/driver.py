"""A trace as one flat function of Python's: the facts hold, its graphs run, its writes are done again."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from types import MemberDescriptorType, MethodType
from typing import Any

import torch

from lamina.capture.own.frame import MISSING
from lamina.capture.own.guards.guard import Guard
from lamina.capture.own.guards.library import Library
from lamina.capture.own.results import distinct
from lamina.capture.own.reuse.facts import Fact, Place, constant_key, is_settled
from lamina.capture.own.reuse.trace import DICTS, Trace
from lamina.capture.own.torch_private import SET_GRAD, autocast_states, is_wrapped, settings

__all__ = ["Driver", "Miss", "Run", "Unbuildable", "cannot_tell", "share_memory", "state_of_torch"]

_BUILT = (list, tuple, set, dict)
Run = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Gives the result of a call with these arguments, or says that it is not for it."""


def state_of_torch() -> tuple[Any, ...]:
    """What torch's state is that decides what calls compute: grad mode, autocast and settings."""
    return torch.is_grad_enabled(), autocast_states(), settings()


def share_memory(tensors: tuple[torch.Tensor, ...]) -> bool:
    """Whether two tensors lie in the same memory."""
    memories = [tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()]
    return len(set(memories)) < len(memories)


class Miss:
    """What a driver gives for a call that it is not for: ``fact`` is the first that does not hold.

    None: a place is not there, or a graph failed before anything was written.
    """

    __slots__ = ("fact",)

    def __init__(self, fact: Fact | None) -> None:
        self.fact = fact


class Unbuildable(Exception):
    """A trace cannot say how to make a value again."""


class Driver:
    """The program of a trace whose call gave ``result``; raises ``Unbuildable`` if it cannot be written.

    ``source`` is its text; ``run(args, kwargs)`` gives the call's result, or a ``Miss``. ``quick(args, kwargs)`` asks
    the facts by a guard machine where ``library`` is one, and gives ``MISSING`` where that cannot tell that they hold.
    """

    def __init__(self, trace: Trace, result: Any, library: Library | None = None) -> None:
        self.facts = trace.facts
        self._used: dict[int, Place] = {}
        self._trace = trace
        self._built: dict[int, tuple[Any, str]] = {}
        self._making: list[str] = []
        steps = self._steps()
        effects = [self._effect(*self._parts(effect)) for effect in trace.effects]
        returned = self.expression(result)
        program = [f"    {line}" for line in (*steps, *self._making, *effects, f"return {returned}", "")]
        asked = [
            "    try:", *(f"        {line}" for line in self.facts.lines()), "        pass",
            "    except Exception:", "        return gone",
        ]  # fmt: skip
        self.source = "\n".join(("def driver(args, kwargs):", *asked, *program))
        self._constants = self.facts.objects
        self._space = self._names()
        self.run: Run = self._compiled(self.source, {})
        self._asked: Run = self._compiled("\n".join(("def driver(args, kwargs):", *asked)), {})
        self.guard: Guard | None = None
        self.quick: Run = cannot_tell
        if library is not None:
            with suppress(Exception):  # what is only faster must not keep a call from being done
                self._have_guard(library, program)
        del self._trace, self._built

    def _have_guard(self, library: Library, program: list[str]) -> None:
        """Have the facts asked by a machine in ``quick``, where it knows what to do with the places."""
        fixed = [place for place in self._used.values() if place.how == "object"]
        found = tuple(place for place in self._used.values() if place.how != "object")
        guard = self.guard = Guard(library, self.facts, found, lambda fact: self.facts.question(fact, self._space))
        guard.meet({place.number: value for value, place in self._trace.known.values()})
        lines = (
            "def driver(args, kwargs):",
            "    found = guard.check(args, kwargs)",
            "    if found is None: return gone",
            *(f"    {place.variable} = {self.facts.object(place.key)}" for place in fixed),
            *_with_found([place.variable for place in found], program),
        )
        self.quick = self._compiled("\n".join(lines), {"gone": MISSING, "guard": guard, **self.facts.objects})

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

    def failing(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fact | None:
        """The first fact that does not hold for a call; None if all do, or if a place is not there."""
        found = self._asked(args, kwargs)
        return found.fact if type(found) is Miss else None

    def _names(self) -> dict[str, Any]:
        facts = self.facts.facts
        space: dict[str, Any] = {f"m{number}": Miss(fact) for number, fact in enumerate(facts)}
        space.update(self._constants)
        space.update(
            gone=Miss(None), state=state_of_torch, is_wrapped=is_wrapped, share_memory=share_memory,
            constant_key=constant_key, new=object.__new__, bound=MethodType, within=_within, distinct=distinct,
        )  # fmt: skip
        return space

    def _compiled(self, source: str, names: dict[str, Any]) -> Run:
        space = {**self._space, **names}
        exec(compile(source, "<driver of a call>", "exec"), space)
        run: Run = space["driver"]
        return run

    def _steps(self) -> list[str]:
        trace = self._trace
        found = []
        entry = trace.state[0]
        again = not any(run.writes or run.draws for run in trace.steps)
        for number, run in enumerate(trace.steps):
            results = [f"t{number}_{place}" for place in range(len(run.results))]
            for made, name in zip(run.results, results, strict=True):
                self._built[id(made)] = made, name
            given = ", ".join(self.expression(tensor) for tensor in run.inputs)
            function = self.facts.object(run.run)
            called = f"{function}({given})"
            if run.switches or run.grad is not entry:
                called = f"within({run.grad}, {function}, ({given}{',' if given else ''}))"
            if run.aliased:
                called = f"distinct({called}, ({given}{',' if given else ''}))"
            if len(results) == 1:
                found.append(f"{results[0]} = {called}[0]")
            else:
                left = f"{', '.join((*results, '*_'))} = " if results else ""
                found.append(f"{left}{called}")
        if found and again:
            return ["try:", *(f"    {line}" for line in found), "except Exception:", "    return gone"]
        return found

    def _parts(self, effect: Any) -> tuple[Any, str, list[str]]:
        return effect.function, self.expression(effect.target), [self.expression(value) for value in effect.operands]

    def _effect(self, function: Any, target: str, operands: list[str]) -> str:
        return f"{self.facts.object(function)}({', '.join((target, *operands))})"

    def expression(self, value: Any) -> str:
        """An expression for a value as it is at the end of the call."""
        trace = self._trace
        if is_settled(value):
            return self.facts.literal(value)
        found = self._built.get(id(value))
        if found is not None:
            if not found[1]:
                raise Unbuildable(f"a {type(value).__qualname__} that holds itself")
            return found[1]
        place = trace.place_of(value)
        if place is not None:
            self._used[place.number] = place
            return place.variable
        self._built[id(value)] = value, ""
        made = self._made(value)
        name = f"v{len(self._making)}"
        self._making.append(f"{name} = {made}")
        self._built[id(value)] = value, name
        return name

    def _made(self, value: Any) -> str:
        kind = type(value)
        if kind in _BUILT:
            return self._container(value)
        if kind is MethodType:
            return f"bound({self.expression(value.__func__)}, {self.expression(value.__self__)})"
        if isinstance(value, tuple) and hasattr(kind, "n_sequence_fields"):
            return f"{self.facts.object(kind)}({self._container(tuple(value))})"
        if self._trace.is_made(value) and not isinstance(value, type) and self._is_simple(kind):
            return self._instance(value)
        raise Unbuildable(f"a {kind.__qualname__}")

    def _container(self, value: Any) -> str:
        if type(value) in DICTS:
            return "{" + ", ".join(f"{self.expression(k)}: {self.expression(v)}" for k, v in value.items()) + "}"
        parts = ", ".join(self.expression(part) for part in value)
        if type(value) is list:
            return f"[{parts}]"
        if type(value) is set:
            return f"{{{parts}}}" if value else f"{self.facts.object(set)}()"
        return f"({parts},)" if parts else "()"

    def _is_simple(self, kind: type) -> bool:
        """Whether an instance is what is in its ``__dict__``."""
        plain: bool = not any(
            isinstance(entry, MemberDescriptorType) for base in kind.__mro__ for entry in vars(base).values()
        )
        return plain and getattr(kind, "__new__", None) is object.__new__

    def _instance(self, value: Any) -> str:
        kind = type(value)
        name = f"v{len(self._making)}"
        self._making.append(f"{name} = new({self.facts.object(kind)})")
        self._built[id(value)] = value, name
        space = self._container(dict(vars(value)))
        self._making.append(f"{name}.__dict__.update({space})")
        return name


def _with_found(names: list[str], program: list[str]) -> list[str]:
    """A program that has the values of ``names`` in a tuple called ``found``."""
    if not names:
        return program
    text = "\n".join(program).replace(f"({', '.join(names)})", "(*found)", 1)
    if set(names).isdisjoint(re.findall(r"\w+", text)):
        return text.split("\n")
    return [f"    ({', '.join(names)},) = found", *program]


def cannot_tell(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What is asked in place of a machine."""
    return MISSING


def _within(grad: bool, run: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> Any:
    """Run a graph in a grad mode."""
    before = torch.is_grad_enabled()
    SET_GRAD(grad)
    try:
        return run(*inputs)
    finally:
        SET_GRAD(before)
