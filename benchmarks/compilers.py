"""The compile functions that benchmarks and tests compare, by name."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

import lamina
from benchmarks.torch_private import aot_backend, mode_options
from lamina.options import MODES

__all__ = ["NAMES", "CompileFunction", "compile_function", "compiler_name", "wrong_backend"]

CompileFunction = Callable[..., Callable[..., Any]]
"""``(callable, *, fullgraph, dynamic, options) -> callable``; the keywords are torch.compile's."""

NAMES = ("lamina", "torch", "lamina_backend", "aot_eager", "dynamo", "eager", "wrong")
"""The names that stand for themselves; ``compile_function`` says what else there is."""

_BACKENDS: dict[str, Any] = {"lamina_backend": "lamina", "dynamo": "eager"}


def compile_function(name: str) -> CompileFunction:
    """The compile function called ``name``.

    ``eager`` returns the callable itself, ``dynamo`` captures and runs the captured graph, ``aot_eager`` adds
    AOTAutograd, ``torch`` is torch.compile's default, ``lamina_backend`` is ``torch.compile(backend="lamina")`` and
    ``wrong`` is ``aot_eager`` with every result off by one part in 300: what a test accepts from it, it cannot see.
    Besides these: a mode of torch.compile; ``lamina:MODE``; ``dynamo:BACKEND``, or just the backend's name; and
    ``package.module:function``, which takes a function or module and gives a compiled one.

    Options are Lamina's own; ``numerics="eager"`` is translated for ``torch`` and its modes and dropped elsewhere. A
    function of the user's gets ``fullgraph`` and ``dynamic`` where it has parameters of these names.
    Raises ``ValueError`` for another name.
    """
    family, colon, rest = name.partition(":")
    if name == "eager":
        return _identity
    if family == "lamina":
        if colon and rest not in MODES:
            raise ValueError(f"lamina has no mode {rest!r}; there are {', '.join(MODES)}")
        return partial(lamina.compile, mode=rest) if colon else lamina.compile
    if name == "torch" or name in mode_options():
        return partial(_inductor, mode="default" if name == "torch" else name)
    if name == "wrong":
        return partial(_behind_torch, wrong_backend)
    known = torch.compiler.list_backends(exclude_tags=())
    backend = rest if colon and family == "dynamo" else _BACKENDS.get(name, name)
    if backend in known:
        return partial(_behind_torch, backend)
    if family == "dynamo":
        raise ValueError(f"torch.compile has no backend {rest!r}; there are {', '.join(known)}")
    if colon:
        return partial(_users, _imported(name))
    raise ValueError(
        f"no compile function is called {name!r}; there are {', '.join(NAMES)}; torch.compile's modes "
        f"{', '.join(mode_options())}; lamina:MODE with {', '.join(MODES)}; dynamo:BACKEND with {', '.join(known)}; "
        "and package.module:function"
    )


def compiler_name(text: str) -> str:
    """A type of command-line arguments: ``text``, refused at once if no compile function is called so."""
    try:
        compile_function(text)
    except ValueError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    return text


def _imported(name: str) -> Callable[..., Any]:
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, TypeError, ValueError) as problem:
        raise ValueError(f"no compile function is called {name!r}: {problem}") from problem
    if not callable(found):
        raise ValueError(f"{name} is a {type(found).__name__}, which cannot be called with a function or module")
    return found  # type: ignore[no-any-return]


def _users(function: Callable[..., Any], model: Any, **keywords: Any) -> Any:
    try:
        taken = set(inspect.signature(function).parameters) & {"fullgraph", "dynamic"}
    except (TypeError, ValueError):  # a callable that does not tell
        taken = set()
    return function(model, **{key: value for key, value in keywords.items() if key in taken})


def _behind_torch(
    backend: Any,
    model: Any,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    given = dict(options or {}) if backend == "lamina" else None
    return torch.compile(model, fullgraph=fullgraph, dynamic=dynamic, backend=backend, options=given)


def _identity(model: Any, **_: Any) -> Any:
    return model


def _inductor(
    model: Any,
    *,
    mode: str,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    if (options or {}).get("numerics") != "eager":
        return torch.compile(model, fullgraph=fullgraph, dynamic=dynamic, mode=mode)
    given = {**mode_options()[mode], "fallback_random": True, "emulate_precision_casts": True}
    return torch.compile(model, fullgraph=fullgraph, dynamic=dynamic, options=given)


def wrong_backend(gm: nn.Module, example_inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
    """A backend of torch.compile whose forward and backward results are all wrong by 1/300 of their value."""
    return aot_backend(_perturb)(gm, example_inputs)  # type: ignore[no-any-return]


def _perturb(gm: nn.Module, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    def run(*args: Any) -> list[Any]:
        return [_scaled(value) for value in gm(*args)]

    return run


def _scaled(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value * (1 + 1 / 300)
    return value
