"""Runs a user's script, or a function of a module, with what it compiles left to eager, and shows each first call."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import lamina
from lamina.options import Options
from lamina.programs import Ended, Program
from lamina.record import Record

__all__ = ["Call", "Stop", "run_target"]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of what a script compiles: the original function or module, its arguments, and the options."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: dict[str, Any]
    number: int

    @property
    def name(self) -> str:
        """What is called."""
        return str(getattr(self.fn, "__qualname__", type(self.fn).__name__))


class Stop(BaseException):
    """Raised by who looks at calls, when it has seen enough: the script ends."""


def run_target(
    program: Program, look: Callable[[Call], None], calls: int = 1, quiet: bool = False
) -> tuple[int, Ended]:
    """Run a program; ``look`` is called before each of the first ``calls`` calls of all that it compiles with Lamina.

    Calls run in eager. A function ``program(compile)`` in it, as the fuzzer writes it, is run as well; a function that
    compiles nothing is looked at itself. With ``quiet`` what it prints goes to standard error. Gives how many calls
    were looked at, and how the program ended.
    """
    watch = _Watch(look, calls)

    def run() -> Any:
        with contextlib.suppress(Stop):
            found = program.run()
            inner = found.get("program") if isinstance(found, dict) else None
            if callable(inner) and list(inspect.signature(inner).parameters) == ["compile"]:
                for _ in inner(watch.compile):
                    pass
            if program.of_function and not watch.looked_at:
                watch.compile(program.run)()

    with watch.compiling():
        ended = Program(program.name, run).ended(quiet)
    return watch.looked_at, ended


class _Watch:
    """Stands in the place of ``lamina.compile``."""

    def __init__(self, look: Callable[[Call], None], calls: int) -> None:
        self.look, self.calls, self.looked_at = look, calls, 0
        self.looking = False
        self.watched: list[tuple[nn.Module, Callable[..., Any]]] = []
        self.of_torch = torch.compile

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Inside, ``lamina.compile`` and ``torch.compile(backend="lamina")`` are this."""
        ours = lamina.compile
        lamina.compile = self.compile
        torch.compile = self.behind_torch
        try:
            yield
        finally:
            lamina.compile = ours
            torch.compile = self.of_torch

    def behind_torch(self, model: Any = None, *, backend: Any = "inductor", **settings: Any) -> Any:
        """``torch.compile``, which this is for its backend "lamina"."""
        if backend == "lamina":
            return self.compile(model, **settings)
        return self.of_torch(model, backend=backend, **settings)

    def compile(self, model: Any = None, *, options: Mapping[str, Any] | Options | None = None, **settings: Any) -> Any:
        """As ``lamina.compile``; the result is the original, whose first calls are looked at."""
        if model is None:
            return functools.partial(self.compile, options=options, **settings)
        if isinstance(model, type) or settings.get("disable"):
            return model
        given = options if isinstance(options, Mapping) else {} if options is None else options.changed()
        if isinstance(model, nn.Module):
            return self.module(model, dict(given))
        return self.function(model, dict(given))

    def function(self, fn: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
        """A function whose first calls are looked at."""
        count = 0

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if count < self.calls and not self.looking:
                count += 1
                self.seen(Call(fn, args, kwargs, options, count))
            return fn(*args, **kwargs)

        call.record = Record()  # type: ignore[attr-defined]
        return call

    def module(self, model: nn.Module, options: dict[str, Any]) -> nn.Module:
        """A module whose first calls are looked at."""
        plain, count = model.forward, 0

        def forward(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if count < self.calls and not self.looking:
                count += 1
                self.seen(Call(model, args, kwargs, options, count))
            return plain(*args, **kwargs)

        self.watched.append((model, forward))
        model.forward = forward
        return model

    def seen(self, call: Call) -> None:
        """One call is looked at; what it calls itself meanwhile is not, and is the user's own."""
        self.looked_at += 1
        self.looking = True
        for model, _ in self.watched:
            del model.forward
        try:
            self.look(call)
        finally:
            self.looking = False
            for model, forward in self.watched:
                model.forward = forward
