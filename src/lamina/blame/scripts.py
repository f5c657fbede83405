"""Runs a user's script, or a function of a module, with what it compiles left to eager, and shows each first call."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lamina
from lamina.errors import BadArgument
from lamina.options import Options
from lamina.record import Record

__all__ = ["Call", "Stop", "run_target", "runner"]


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


def run_target(target: str, look: Callable[[Call], None], arguments: tuple[str, ...] = (), calls: int = 1) -> int:
    """Run a script ("train.py", with its ``arguments``) or a function ("package.module:function").

    ``look`` is called before each of the first ``calls`` calls of every function and module that is compiled with
    Lamina; they run in eager. A function ``program(compile)``, as the fuzzer writes it, is run as well. Gives how many
    calls were looked at. Raises ``BadArgument`` for what cannot be run.
    """
    watch = _Watch(look, calls)
    run = runner(target, arguments)
    with watch.compiling(), contextlib.suppress(Stop):
        found = run()
        program = found.get("program") if isinstance(found, dict) else None
        if callable(program) and list(inspect.signature(program).parameters) == ["compile"]:
            for _ in program(watch.compile):
                pass
    return watch.looked_at


def runner(target: str, arguments: tuple[str, ...] = ()) -> Callable[[], Any]:
    """What runs a script or a function, as ``run_target`` names them. Raises ``BadArgument`` for what cannot be run."""
    module, _, name = target.rpartition(":")
    return _function(module, name) if module else functools.partial(_script, Path(target), arguments)


def _script(path: Path, arguments: tuple[str, ...]) -> dict[str, Any]:
    if not path.is_file():
        raise BadArgument(f"there is no script {path}", remedy="name a Python file, or package.module:function")
    before, sys.argv = sys.argv, [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        return runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = before
        sys.path.pop(0)


def _function(module: str, name: str) -> Callable[[], Any]:
    """A function of no arguments; it is compiled itself unless it compiles something."""
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as problem:
        raise BadArgument(f"{module}:{name}: {problem}", remedy="name package.module:function") from None
    finally:
        sys.path.pop(0)
    if not callable(found) or not _takes_nothing(found):
        raise BadArgument(f"{module}:{name} takes arguments", remedy="name a function that takes none and calls yours")
    return found  # type: ignore[no-any-return]


def _takes_nothing(function: Callable[..., Any]) -> bool:
    try:
        return all(p.default is not p.empty for p in inspect.signature(function).parameters.values())
    except ValueError:  # functions written in C say nothing
        return False


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
        given = options if isinstance(options, Mapping) else {} if options is None else _as_mapping(options)
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


def _as_mapping(options: Options) -> dict[str, Any]:
    """The options that are not the usual ones."""
    usual = Options()
    return {n: getattr(options, n) for n in options.__dataclass_fields__ if getattr(options, n) != getattr(usual, n)}
