"""What ``lamina.compile`` was given, checked: the callable, the switches, and the options its backend takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

import torch

from lamina.backends.api import Backend
from lamina.backends.compose import joined
from lamina.backends.kernels import KERNEL_OPTIONS
from lamina.backends.torch_private import inductor_modes, inductor_options, torch_backend
from lamina.errors import BadArgument, UnknownOption
from lamina.options import Options
from lamina.runtime.toolchain import ISAS, host_isa

__all__ = ["check_arguments", "options_for", "torch_settings"]


def check_arguments(model: Any, fullgraph: Any, dynamic: Any, disable: Any = False) -> None:
    """Raise ``BadArgument`` for what cannot be compiled, and for switches that are no switches."""
    switch = (True, False)
    switches = (("fullgraph", fullgraph, switch), ("dynamic", dynamic, (*switch, None)), ("disable", disable, switch))
    for name, value, allowed in switches:
        if not any(value is one for one in allowed):
            raise BadArgument(f"{name} is {value!r}", remedy=f"use one of {', '.join(map(str, allowed))}")
    if not callable(model):
        raise BadArgument(
            f"lamina.compile was given a {type(model).__name__}",
            remedy="pass a function, a method or a torch.nn.Module",
        )
    if isinstance(model, type):
        _check_class(model)


def _check_class(given: type) -> None:
    """A class of one's own is compiled in place, so that all its instances are; others' classes are left alone."""
    if not issubclass(given, torch.nn.Module):
        raise BadArgument(
            f"lamina.compile was given the class {given.__name__}", remedy="pass a function, a method or a module"
        )
    if given.__module__.split(".")[0] == "torch":
        raise BadArgument(
            f"lamina.compile was given torch's class {given.__name__}, which every module of that kind shares",
            remedy=f"pass an instance: lamina.compile({given.__name__}(...))",
        )


def options_for(backend: Backend, mode: str | None, options: Mapping[str, Any] | Options | None) -> Options:
    """The options of one compilation.

    Raises ``UnknownOption`` for a wrong name or value and ``BadArgument`` for one that ``backend`` does not heed.
    """
    chosen = Options.of(mode, options)
    if chosen.simd != "auto" and ISAS.index(chosen.simd) < ISAS.index(host_isa()):
        raise UnknownOption(
            f"option 'simd' is {chosen.simd!r}, which this machine does not have", remedy=f"use auto or {host_isa()}"
        )
    if isinstance(options, Mapping):
        given = set(options)
    elif options is not None:
        given = {f.name for f in fields(options) if getattr(options, f.name) != f.default}
    else:
        given = set()
    if mode not in (None, "default"):
        given.add("mode")
    heeded = {*backend.takes, *(("mode",) if backend.candidates is not None else ())}
    idle = [name for name in KERNEL_OPTIONS if name in given and name not in heeded]
    if idle:
        raise BadArgument(
            f"backend {backend.name!r} does not take {' and '.join(idle)}",
            remedy='leave it out, or use backend="lamina"',
        )
    if backend.passes or backend.rules:
        passes = joined(backend.passes, chosen.passes)
        chosen = chosen.replace(passes=passes, rules=(*backend.rules, *chosen.rules))
    return chosen


def torch_settings(name: str, mode: str | None, options: Any) -> dict[str, Any]:
    """Mode and options for one of torch.compile's own backends; ``BadArgument`` for those that it does not have."""
    if options is not None and not isinstance(options, Mapping):
        raise BadArgument(
            f"backend {name!r} is torch.compile's, its options are not Lamina's", remedy="pass a mapping or None"
        )
    given = [word for word, value in (("mode", mode), ("options", options)) if value not in (None, "default")]
    if name != "inductor" and given and not _takes(torch_backend(name), given):
        raise BadArgument(f"backend {name!r} does not take {' and '.join(given)}", remedy="leave it out")
    if name == "inductor":
        if len(given) == 2:
            raise BadArgument(
                f"inductor was given mode {mode!r} and options", remedy="give one of them: a mode stands for options"
            )
        _check_inductors("mode", [] if mode is None else [mode], inductor_modes(), "")
        also = '; Lamina\'s options go with backend="lamina"'
        _check_inductors("option", list(options or ()), inductor_options(), also)
    return {"mode": mode, "options": None if options is None else dict(options)}


def _check_inductors(kind: str, given: list[Any], known: Collection[str], also: str) -> None:
    """``UnknownOption`` for a mode or an option that Inductor, which would list all of its names, does not have."""
    for one in given:
        if isinstance(one, str) and one.replace("-", "_") in {name.replace("-", "_") for name in known}:
            continue
        close = get_close_matches(one, known, n=3) if isinstance(one, str) else []
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"use one of torch's {kind}s"
        raise UnknownOption(f"inductor has no {kind} {one!r}", remedy=hint + also)


def _takes(function: Callable[..., Any], words: list[str]) -> bool:
    parameters = inspect.signature(function).parameters
    any_word = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    # Torch's own take any word and ignore it, or fail on it later.
    any_word = any_word and not getattr(function, "__module__", "torch.").startswith("torch.")
    return any_word or all(word in parameters for word in words)
