"""The parts of a model that are worth a candidate of their own: their share of the time of one call."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from lamina.base.devices import kind_of
from lamina.tuner.compiled import through
from lamina.tuner.identity import model_key
from lamina.tuner.parts import modules_in
from lamina.tuner.values import Part

__all__ = ["Watch", "parts_of", "watched"]

_CALLS = 5
"""Calls that are watched; the median of their shares counts."""
_LEAST = 0.1
"""Share of the whole from which a part is worth its candidates: without it the model is 1.1 times as fast at most."""
_WHOLE = 0.9
"""Share of a module from which a part is as good as the whole, which has its own candidates; its children are taken."""
_MOST = 4
"""Parts of one model, the largest first."""


def parts_of(model: Callable[..., Any], call: Callable[[], Any], device: torch.device) -> tuple[Part, ...]:
    """The parts of ``model`` by their share of the time of ``call``, the largest first.

    A part is a module, or all modules of the same code and layout, such as the blocks of a transformer. No part holds
    another. Shares are of the forward pass, hooks of the user included.
    """
    held = modules_in(model)
    shares = _shares({path: m for path, m in held.items() if path}, call, device)
    taken: list[str] = []
    for path in held:
        inside = any(path.startswith(f"{other}.") for other in taken)
        if not inside and shares.get(path, 0.0) > 0.0 and not ("" in held and shares[path] > _WHOLE):
            taken.append(path)
    alike: dict[str, list[str]] = defaultdict(list)
    for path in taken:
        alike[model_key(held[path])].append(path)
    parts = [Part(tuple(paths), sum(shares[p] for p in paths)) for paths in alike.values()]
    return tuple(sorted((p for p in parts if p.share >= _LEAST), key=lambda part: -part.share)[:_MOST])


def _shares(modules: Mapping[str, nn.Module], call: Callable[[], Any], device: torch.device) -> dict[str, float]:
    """Of the time of a call, what passes within each module; modules that are not called have none."""
    found: dict[str, list[float]] = defaultdict(list)
    for watch in watched(modules, call, device, _CALLS if modules else 0):
        for path, seconds in watch.seconds.items():
            found[path].append(seconds / watch.whole)
    return {path: statistics.median(values) for path, values in found.items()}


@dataclass(slots=True)
class Watch:
    """Seconds of one call, and by module the seconds within it and how often it was called."""

    whole: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)


def watched(
    modules: Mapping[str, nn.Module], call: Callable[[], Any], device: torch.device, count: int, warm: int = 0
) -> list[Watch]:
    """``count`` calls after ``warm`` others, with the time within each of ``modules``; a GPU is waited for before and
    after each module.

    Hooks of modules that TorchDynamo compiles are part of the compiled code, where they do nothing. A module that the
    user compiled is therefore timed around its compiled call; those within it have no time of their own. TorchDynamo
    notices new hooks, so the calls before have them as well.
    """
    begun: dict[str, list[float]] = defaultdict(list)
    found: list[Watch] = []

    def now() -> float:
        if kind_of(device).queued:
            torch.cuda.synchronize(device)
        return time.perf_counter()

    def watch(path: str, module: nn.Module) -> None:
        def before(*given: Any) -> None:
            if torch.compiler.is_compiling():
                return
            begun[path].append(now())

        def after(*given: Any) -> None:
            if torch.compiler.is_compiling():
                return
            here = found[-1]
            here.seconds[path] = here.seconds.get(path, 0.0) + now() - begun[path].pop()
            here.calls[path] = here.calls.get(path, 0) + 1

        def around(call: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                before()
                output = call(*args, **kwargs)
                after()
                return output

            return run

        compiled = through(module, around)
        if compiled is not None:
            hooks.enter_context(compiled)
            return
        hooks.callback(module.register_forward_pre_hook(before, prepend=True).remove)
        hooks.callback(module.register_forward_hook(after).remove)

    with contextlib.ExitStack() as hooks:
        for path, module in modules.items():
            watch(path, module)
        for _ in range(warm + count):
            begun.clear()
            found.append(Watch())
            start = now()
            call()
            found[-1].whole = now() - start
    return found[warm:]
