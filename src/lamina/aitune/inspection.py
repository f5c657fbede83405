"""Which modules of an object take the time of its calls."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lamina.base.tables import Table, plain_console
from lamina.errors import BadArgument
from lamina.tuner.parts import modules_in, tensors_of
from lamina.tuner.samples import calls_of
from lamina.tuner.shares import watched
from lamina.tuner.table import duration, table_text

__all__ = ["InspectedModulesInfo", "ModuleInfo", "PerformanceProfile", "inspect", "profile"]


@dataclass(frozen=True, slots=True)
class ModuleInfo:
    """A module by its path in the object; ``seconds`` of all ``calls`` and ``share`` of the time of the object's calls,
    hooks included; ``parameters`` and ``layers`` are counts, ``precisions`` the dtypes of its parameters.
    """

    name: str
    kind: str
    calls: int
    seconds: float
    share: float
    parameters: int
    layers: int
    precisions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InspectedModulesInfo:
    """The modules that were called, in the order in which the object holds them."""

    modules: tuple[ModuleInfo, ...]

    def get_modules(self, min_share: float = 0.0) -> list[ModuleInfo]:
        """The outermost modules with that share of the time, for ``wrap``; no module within another."""
        found: list[ModuleInfo] = []
        for info in self.modules:
            inside = any(not f.name or info.name.startswith(f"{f.name}.") for f in found)
            if not inside and info.share >= min_share:
                found.append(info)
        return found

    def __str__(self) -> str:
        return table_text(self._table())

    def describe(self) -> None:
        """Print the table."""
        plain_console().print(self._table())

    def _table(self) -> Table:
        table = Table(title="modules", title_justify="left")
        for name in ("module", "class", "calls", "total", "mean", "share", "parameters", "layers", "precisions"):
            table.add_column(name, overflow="fold", justify="left" if name in ("module", "class") else "right")
        for m in self.modules:
            each, count = duration(m.seconds / m.calls), f"{m.parameters:,}"
            told = (str(m.calls), duration(m.seconds), each, f"{m.share:.0%}", count, str(m.layers))
            table.add_row(m.name or "(the object)", m.kind, *told, " ".join(m.precisions))
        return table


@dataclass(frozen=True, slots=True)
class PerformanceProfile:
    """Seconds of each measured call: of the object under "", of each module by its path."""

    data: Mapping[str, tuple[float, ...]]

    def markdown(self) -> str:
        """A table of medians and extremes."""
        lines = ["| module | median | least | most |", "|---|---:|---:|---:|"]
        for name, times in self.data.items():
            told = (statistics.median(times), min(times), max(times))
            lines.append(f"| {name or 'whole'} | {' | '.join(duration(seconds) for seconds in told)} |")
        return "\n".join(lines)


def inspect(
    obj: Any,
    dataset: Any,
    inference_function: Callable[..., Any] | None = None,
    number_of_iterations: int = 10,
    warmup_iterations: int = 5,
    min_depth: int = 0,
    max_depth: int = 5,
) -> InspectedModulesInfo:
    """Call ``obj``, or ``inference_function(obj, ...)``, with the inputs of ``dataset`` in turn, and see its modules.

    ``min_depth`` and ``max_depth``: levels of modules within the outermost, which is 0. Raises ``BadArgument`` for an
    object without modules, and whatever the calls raise.
    """
    held = {path: m for path, m in modules_in(obj).items() if min_depth <= _depth(path) <= max_depth}
    if not held:
        raise BadArgument(
            f"{type(obj).__name__} holds no module of depth {min_depth} to {max_depth}",
            remedy="give a module, or an object or function that holds modules",
        )
    call = _calls(obj, dataset, inference_function)
    device = next((t.device for t in tensors_of(obj)), torch.device("cpu"))
    _check(number_of_iterations, warmup_iterations)
    watches = watched(held, call, device, number_of_iterations, warmup_iterations)
    whole = sum(watch.whole for watch in watches)
    seconds: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for watch in watches:
        seconds.update(watch.seconds)
        calls.update(watch.calls)
    return InspectedModulesInfo(
        tuple(
            ModuleInfo(
                path,
                type(module).__name__,
                calls[path],
                seconds[path],
                seconds[path] / whole,
                sum(p.numel() for p in module.parameters()),
                sum(1 for _ in module.modules()),
                tuple(sorted({str(p.dtype).removeprefix("torch.") for p in module.parameters()})),
            )
            for path, module in held.items()
            if calls[path]
        )
    )


def profile(
    obj: Any,
    input_data: Any,
    *,
    inference_function: Callable[..., Any] | None = None,
    warmup_runs: int = 3,
    measured_runs: int = 10,
) -> PerformanceProfile:
    """Seconds of ``measured_runs`` calls of ``obj`` and of the modules within. Raises whatever the calls raise."""
    _check(measured_runs, warmup_runs)
    held = {path: m for path, m in modules_in(obj).items() if path}
    call = _calls(obj, input_data, inference_function)
    device = next((t.device for t in tensors_of(obj)), torch.device("cpu"))
    watches = watched(held, call, device, measured_runs, warmup_runs)
    names = [path for path in held if any(path in watch.seconds for watch in watches)]
    of_modules = {path: tuple(w.seconds[path] for w in watches if path in w.seconds) for path in names}
    return PerformanceProfile({"": tuple(w.whole for w in watches), **of_modules})


def _depth(path: str) -> int:
    return path.count(".") + 1 if path else 0


def _check(count: int, warm: int) -> None:
    if count < 1 or warm < 0:
        raise BadArgument(f"{count} calls after {warm}", remedy="measure one call or more, after none or more")


def _calls(obj: Any, dataset: Any, function: Callable[..., Any] | None) -> Callable[[], Any]:
    """A call with the next of the inputs, from the first again after the last."""
    if function is None and not callable(obj):
        raise BadArgument(
            f"a {type(obj).__name__} cannot be called",
            remedy="give what is called with the inputs, or inference_function, which is given it",
        )
    samples = list(calls_of(dataset))
    place = 0

    def call() -> Any:
        nonlocal place
        sample = samples[place % len(samples)]
        place += 1
        with torch.no_grad():
            if function is not None:
                return function(obj, *sample.args, **sample.kwargs)
            return obj(*sample.args, **sample.kwargs)

    return call
