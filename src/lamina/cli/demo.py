"""`lamina demo`: three models compiled, checked against eager in double precision, timed, in one table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from lamina.base.devices import kind_of
from lamina.bench import Rivals, alternate
from lamina.cli.demo_models import DEMOS, Demo, Example
from lamina.cli.progress import announced
from lamina.ir.plan import Plan
from lamina.record import Record
from lamina.runtime.build import BuildResult
from lamina.testing import DRAWS, Comparison, compare_draws

__all__ = ["CompileFunction", "Counts", "Row", "as_data", "counts", "demonstrate", "table"]

HEADERS = (
    "graphs",
    "kernels",
    "library\ncalls",
    "torch\ncompile s",
    "lamina\ncompile s",
    "eager\nms",
    "torch\nms",
    "lamina\nms",
    "eager\nerror",
    "lamina\nerror",
)

CompileFunction: TypeAlias = Callable[[nn.Module], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Counts:
    """What one compiled callable consists of: graphs, and kernel and library calls in one run of all of them.

    ``fallbacks`` are the forward or backward graphs that run as ATen calls throughout, because compiling them failed.
    """

    graphs: int
    kernels: int
    library_calls: int
    fallbacks: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. ``seconds`` are those of the first call, by compiler; ``failure`` is "" if all is well."""

    title: str
    step: str
    counts: Counts | None
    seconds: dict[str, float]
    times: Rivals | None
    comparison: Comparison | None
    failure: str = ""


def demonstrate(
    demos: Sequence[Demo],
    compile_function: CompileFunction,
    rival: CompileFunction | None,
    progress: Console,
    seconds: float = 1.0,
    device: str = "cpu",
) -> Iterator[Row]:
    """Run each demo's inference call and training step; yields a row as soon as it is measured.

    ``rival`` is the compiler to compare with, if any; ``seconds`` is how long each callable is timed; ``device`` is
    where models and inputs are.
    """
    for demo in demos:
        there = replace(demo, make=partial(_made, demo, torch.device(device)))
        for training in (False, True):
            torch.compiler.reset()
            yield _row(there, training, compile_function, rival, progress, seconds)


def _made(demo: Demo, device: torch.device) -> Example:
    """The demo's example on another device, its numbers drawn on the CPU."""
    made = demo.make()
    inference, training = (tuple(t.to(device) for t in args) for args in (made.inference, made.training))
    return Example(made.model.to(device), inference, training)


def _row(
    demo: Demo,
    training: bool,
    compile_function: CompileFunction,
    rival: CompileFunction | None,
    progress: Console,
    seconds: float,
) -> Row:
    step = "training" if training else "inference"
    torch.manual_seed(0)
    example = demo.make()
    model = example.model.train(training)
    args = example.training if training else example.inference
    runs: dict[str, Callable[..., Any]] = {"eager": model}
    first: dict[str, float] = {}
    try:
        for name, function in (("torch.compile", rival), ("lamina", compile_function)):
            if function is not None:
                runs[name] = function(model)
                with announced(progress, f"{demo.name}, {step}: {name} compiles"):
                    first[name] = _seconds(_step(model, runs[name], training), args)
        with announced(progress, f"{demo.name}, {step}: comparing with double precision"):
            comparison = compare_draws(model, runs["lamina"], _draws(demo, model, training), grads=training)
        with announced(progress, f"{demo.name}, {step}: measuring"):
            times = alternate({n: _step(model, run, training) for n, run in runs.items()}, *args, seconds=seconds)
    except Exception as error:
        # The demo is a check as well: a crash in one model is a row that says so, and the others still run.
        return Row(demo.title, step, None, first, None, None, f"{type(error).__name__}: {error}")
    failure = "" if comparison.ok else str(comparison)
    return Row(demo.title, step, counts(runs["lamina"]), first, times, comparison, failure)


def _draws(demo: Demo, model: nn.Module, training: bool) -> Iterator[tuple[tuple[Tensor, ...], dict[str, Any]]]:
    """Arguments of one call after another; ``model`` gets new weights before each."""
    for seed in range(1, 4 * DRAWS + 1):
        torch.manual_seed(seed)
        example = demo.make()
        model.load_state_dict(example.model.state_dict())
        yield example.training if training else example.inference, {}


def _step(model: nn.Module, run: Callable[..., Any], training: bool) -> Callable[..., Any]:
    """One call as it is timed: a forward pass without gradients, or a forward and a backward pass, to its end."""

    def infer(*args: Tensor) -> None:
        with torch.no_grad():
            _finish(run(*args))

    def train(*args: Tensor) -> None:
        model.zero_grad(set_to_none=True)
        out = run(*args)
        out.backward(torch.ones_like(out))
        _finish(out)

    return train if training else infer


def _finish(result: Tensor) -> None:
    """Wait until a GPU has computed ``result`` and what was queued after it."""
    if kind_of(result).queued:
        torch.cuda.synchronize(result.device)


def _seconds(step: Callable[..., Any], args: tuple[Tensor, ...]) -> float:
    start = time.perf_counter()
    step(*args)
    return time.perf_counter() - start


def counts(compiled: Callable[..., Any]) -> Counts | None:
    """Graphs, kernels and library calls of a callable that Lamina compiled; None if it keeps no record."""
    record = getattr(compiled, "record", None)
    if not isinstance(record, Record):
        return None
    fallen = {stage.region for stage in record.stages if stage.name == "aten" or _unbuilt(stage.value)}
    plans = [s.value for s in record.stages if isinstance(s.value, Plan) and s.region not in fallen]
    return Counts(
        graphs=sum(stage.name == "aot" for stage in record.stages),
        kernels=sum(plan.kernel_count for plan in plans),
        library_calls=sum(plan.library_count for plan in plans),
        fallbacks=len(fallen),
    )


def _unbuilt(value: object) -> bool:
    return isinstance(value, BuildResult) and bool(value.errors)


def table(rows: Sequence[Row]) -> Table:
    """The rows as one table; times in milliseconds, errors relative to each tensor's largest element."""
    result = Table(caption=_caption(rows), caption_justify="left", box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    result.add_column("model", no_wrap=True)
    result.add_column("step", no_wrap=True)
    for header in HEADERS:
        result.add_column(header, justify="right", no_wrap=True)
    result.add_column("check", no_wrap=True)
    for row in rows:
        result.add_row(*_cells(row))
    return result


def as_data(row: Row) -> dict[str, Any]:
    """A row as JSON: medians of times and seconds of first calls by compiler, errors relative to double precision."""
    times = {m.name: m.median for m in row.times.measurements} if row.times else {}
    compared = row.comparison
    errors = {"eager": compared.max_error_eager, "lamina": compared.max_error_compiled} if compared else {}
    return {
        "model": row.title,
        "step": row.step,
        "counts": asdict(row.counts) if row.counts else None,
        "first_call_seconds": row.seconds,
        "call_seconds": times,
        "errors": errors,
        "failure": row.failure,
    }


def _cells(row: Row) -> list[str | Text]:
    number = ["-"] * 3
    if row.counts:
        number = [str(row.counts.graphs), str(row.counts.kernels), str(row.counts.library_calls)]
    compiling = [f"{row.seconds[name]:.1f}" if name in row.seconds else "-" for name in ("torch.compile", "lamina")]
    times = {m.name: f"{m.median * 1e3:.2f}" for m in row.times.measurements} if row.times else {}
    errors = ["-", "-"]
    if row.comparison:
        errors = [f"{row.comparison.max_error_eager:.1e}", f"{row.comparison.max_error_compiled:.1e}"]
    verdict = Text("failed", style="red") if row.failure else Text("ok", style="green")
    if not row.failure and row.counts and row.counts.fallbacks:
        verdict = Text("ok, not compiled", style="yellow")
    speeds = [times.get(name, "-") for name in ("eager", "torch.compile", "lamina")]
    return [row.title, row.step, *number, *compiling, *speeds, *errors, verdict]


def _caption(rows: Sequence[Row]) -> str:
    checked = sum(len(row.comparison.tensors) for row in rows if row.comparison)
    return (
        "torch: torch.compile's default mode. training: forward and backward. compile s: the first call, caches\n"
        f"as they were. ms: median of calls in turns, {torch.get_num_threads()} threads. error: largest distance from\n"
        f"double precision, relative to the tensor's largest element, mean of {DRAWS} draws of weights and inputs,\n"
        f"of {checked} outputs, gradients and buffers in all; ok: none more than twice as far as eager's."
    )


def chosen(only: Sequence[str]) -> list[Demo]:
    """The demos with these names, all for none. Raises ``KeyError`` for a name that is no demo."""
    by_name = {demo.name: demo for demo in DEMOS}
    return [by_name[name] for name in only] if only else list(DEMOS)
