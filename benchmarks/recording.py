"""What recording costs of compiling, and whether a failure in it harms what is compiled.

``python -m benchmarks.recording`` measures both and writes results/recording.json. The cost is the share of
compiling that is spent in what keeps stages, writes reasons and logs, in processor time of one process with a full
cache of kernels: times of whole runs with recording and without differ by more than that from run to run. The
failures: at each place where something is recorded or told an exception is raised at every call, and results,
gradients and kernels are compared with those of a run without.

``--report`` measures what the option ``report`` adds instead: compiling with it and without takes turns in one
process, and the report is written after each.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import json
import logging
import resource
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import lamina
from benchmarks.fault_injection import ERRORS
from benchmarks.gpt import batch, private_gpt
from benchmarks.report import RESULTS
from lamina.base.reasons import Code
from lamina.extend import rule
from lamina.record import Record
from lamina.report import recording
from lamina.report.write import write_report

__all__ = ["PLACES", "cost", "failures", "outcome", "program", "report_cost"]

PLACES = (
    "lamina.record.Stage",
    "lamina.record.log_stage",
    "lamina.base.logs._events",
    "lamina.base.logs.decision_line",
    "lamina.base.reasons.str",
    "lamina.compile.lowered_by_user",
    "lamina.compile.library_decisions",
    "lamina.backends.cpu.kept_kernels",
    "lamina.runtime.build.missed_kernels",
    "lamina.runtime.batch.note_built",
    "lamina.capture.dynamo.note_fixed_sizes",
    "lamina.capture.dynamo.seconds_since_compile_started",
    "lamina.capture.log.break_reason",
    "lamina.capture.log.calling_line",
    "lamina.capture.log.calling_place",
    "lamina.capture.log.place_of",
    "lamina.capture.log.user_frame",
    "lamina.capture.log.user_place",
    "lamina.capture.events.torch_private.Guards",
    "lamina.capture.events.torch_private.failed_guard",
    "lamina.capture.events.torch_private._log_at_end",
    "lamina.capture.events.torch_private._tell_break",
    "lamina.capture.events.torch_private._tell_compiled",
    "lamina.capture.own.capturing.cause_of_call",
    "lamina.capture.own.interpreting.own_break_reason",
    "lamina.capture.own.interpreting._place",
    "lamina.rewrite.rewriting.unmatched",
    "lamina.rewrite.rewriting.Matcher",
    "lamina.rewrite.unmatched.source_of",
    "lamina.report.recording.graph_copy",
    "lamina.report.recording._awaited",
    "lamina.backends.profiled.timed",
    "lamina.record._dump_region",
    "lamina.record.files",
)
"""Functions, by module, that do nothing but record or tell: one that raises must not change what is compiled."""
_MOST = 0.02
"""The share of compiling that recording may take."""
_MOST_FOR_REPORTS = 0.2
"""The share of it that the option report may add."""


def _halved(x: Tensor) -> Tensor:
    return x.tanh() * 0.5


def _other(x: Tensor) -> Tensor:
    return x.tanh() / 2


def program(x: Tensor, w: Tensor) -> Tensor:
    """Products, sums, a graph break and a size that varies."""
    y = torch.softmax(x @ w, -1) * x.sum(-1, keepdim=True)
    torch._dynamo.graph_break()
    return torch.nn.functional.layer_norm(y, (y.shape[-1],)).tanh().mul(0.25).sum(0)


def _without_tensors(a: int, b: int) -> int:
    return a + b


def outcome(folder: Path) -> dict[str, Any]:
    """What a compiled ``program`` gives for two sizes, with gradients, and what was compiled of it."""
    torch.compiler.reset()
    torch.manual_seed(0)
    own = rule(_halved, _other, name="never matching")
    options = {
        "compare_eager": "off",
        "progress": False,
        "rules": (own,),
        "cache_dir": str(folder / "cache"),
        "dump_dir": str(folder / "stages"),
        "report": str(folder / "report.html"),
        "logs": "graph_breaks,fusion",
    }
    compiled = lamina.compile(program, options=options)
    own_way = lamina.compile(program, options={**options, "capture": "own"})
    results: list[Tensor] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in (4, 6, 6):
            x, w = torch.randn(rows, 5, requires_grad=True), torch.randn(5, 7, requires_grad=True)
            for way in (compiled, own_way):
                result = way(x, w)
                result.sum().backward()
                results += [result.detach(), x.grad, w.grad]
                x.grad = w.grad = None
        lamina.compile(_without_tensors, options={"progress": False})(1, 2)
        lamina.compile(nn.LSTM(2, 2), options={"progress": False})(torch.ones(1, 1, 2))
    records: tuple[Record, ...] = (compiled.record, own_way.record)
    stages = [stage for record in records for stage in record.stages]
    told = [str(w.message) for w in caught if issubclass(w.category, lamina.LaminaWarning)]
    return {
        "results": results,
        "codegen": [s.region for s in stages if s.name == "codegen"],
        "to aten": [s.region for s in stages if s.name == "aten"],
        "fallbacks": sum(len(record.decisions("fallback")) for record in records),
        "notes": max(len(record.decisions("record")) for record in records),
        "incomplete": any(record.incomplete for record in records),
        "warnings": told,
    }


@contextmanager
def _raising(place: str, error: str) -> Iterator[list[int]]:
    """Within, every call of the function at ``place`` raises; the list counts them."""
    module, _, name = place.rpartition(".")
    calls = [0]

    def fail(*_: Any, **__: Any) -> Any:
        calls[0] += 1
        raise ERRORS[error]()

    with mock.patch.object(importlib.import_module(module), name, fail, create=name == "str"):
        yield calls


@contextmanager
def _built_anew(wanted: bool) -> Iterator[None]:
    """Within, and if ``wanted``, no kernel is found in this process."""
    with ExitStack() as stack:
        for name in ("_LOADED", "_LIBRARIES") if wanted else ():
            stack.enter_context(mock.patch.dict(f"lamina.runtime.library.{name}", clear=True))
        yield


def failures(places: tuple[str, ...] = PLACES, errors: tuple[str, ...] = ("KeyError", "RecursionError")) -> list[str]:
    """What differs from a run without failures, a line for each place and error where something does."""
    logging.getLogger("lamina").addHandler(logging.NullHandler())
    found = []
    waiting = mock.patch.object(recording, "_waiting", recording._Waiting())  # no report is written at the end
    with tempfile.TemporaryDirectory() as folder, waiting:
        wanted = _wanted()
        for number, (place, error) in enumerate((p, e) for p in places for e in errors):
            with _raising(place, error) as calls, _built_anew(place.startswith("lamina.runtime.")):
                given = _tried(Path(folder) / str(number))
            if isinstance(given, str):
                found.append(f"{place}, {error}: {given}")
                continue
            found += [f"{place}, {error}: {what}" for what in _differences(wanted, given, calls[0])]
    return found


@functools.cache
def _wanted() -> dict[str, Any]:
    """What a run without failures gives, once what imports and what is said once in a process is past."""
    with tempfile.TemporaryDirectory() as folder:
        outcome(Path(folder) / "first")
        return outcome(Path(folder) / "wanted")


def _tried(folder: Path) -> dict[str, Any] | str:
    try:
        return outcome(folder)
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


def _differences(wanted: dict[str, Any], given: dict[str, Any], calls: int) -> Iterator[str]:
    if not calls:
        yield "not reached"
    pairs = zip(wanted["results"], given["results"], strict=True)
    if not all(torch.equal(a, b) for a, b in pairs):
        yield "other results"
    if given["notes"] > 1:
        yield f"{given['notes']} notes"
    if given["fallbacks"] or len(given["to aten"]) > len(wanted["to aten"]):
        yield "something is left to ATen"
    if given["codegen"] and len(given["codegen"]) != len(wanted["codegen"]):
        yield "other regions are compiled"
    if len(given["warnings"]) != len(wanted["warnings"]):  # words of a reason that cannot be made are its name
        yield f"other warnings: {given['warnings']}"


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "GPT, 12 layers": lambda: (private_gpt(12), batch()),
    "MLP": lambda: (
        nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64), nn.LayerNorm(64)),
        (torch.randn(8, 64),),
    ),
    "convolutions": lambda: (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.SiLU()),
        (torch.randn(2, 3, 16, 16),),
    ),
    "encoder layer": lambda: (nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), (torch.randn(2, 8, 32),)),
    "softmax": lambda: (nn.Sequential(nn.Linear(32, 32), nn.Softmax(-1)), (torch.randn(4, 32),)),
    "group norm": lambda: (nn.Sequential(nn.Conv1d(8, 8, 3), nn.GroupNorm(2, 8), nn.Tanh()), (torch.randn(2, 8, 16),)),
}

_RECORDS: tuple[tuple[Any, str], ...] = (
    (Record, "_put"),
    (Record, "told"),
    (Record, "passed"),
    (Code, "__call__"),
    ("lamina.capture.events.torch_private", "_tell_compiled"),
    ("lamina.capture.events.torch_private", "_log_at_end"),
    ("lamina.capture.dynamo", "note_fixed_sizes"),
    ("lamina.runtime.build", "missed_kernels"),
)
"""What keeps stages, writes reasons or logs, by class or module."""


class _Spent(threading.local):
    """Processor seconds that this thread spent in ``_RECORDS``."""

    seconds = 0.0
    within = False


@contextmanager
def _accounted(spent: _Spent) -> Iterator[None]:
    """Within, the time of what is recorded is added to ``spent``."""

    def accounting(record: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(record)
        def run(*given: Any, **named: Any) -> Any:
            if spent.within:
                return record(*given, **named)
            spent.within, start = True, time.thread_time()
            try:
                return record(*given, **named)
            finally:
                spent.seconds += time.thread_time() - start
                spent.within = False

        return run

    with ExitStack() as stack:
        for place, name in _RECORDS:
            owner = importlib.import_module(place) if isinstance(place, str) else place
            stack.enter_context(mock.patch.object(owner, name, accounting(getattr(owner, name))))
        yield


def _seconds(name: str, report: str = "") -> tuple[float, float, Record]:
    """Processor seconds of this thread to the end of the first training step, and those of them spent on recording.

    The kernels of the model are in this process, so that no compiler is waited for. With the record, which keeps what
    a report needs where ``report`` names a file.
    """
    torch.compiler.reset()
    torch.manual_seed(0)
    model, given = MODELS[name]()
    gc.collect()
    spent = _Spent()
    with _accounted(spent):
        start = time.thread_time()
        options = {"progress": False, "compare_eager": "off", "report": report}
        compiled = lamina.compile(model, dynamic=False, options=options)
        compiled(*given).sum().backward()
        return time.thread_time() - start, spent.seconds, compiled.record


def cost(name: str, turns: int) -> dict[str, float]:
    """Median processor seconds of compiling, and the share of them that recording takes: median and largest."""
    _seconds(name)
    found = [_seconds(name) for _ in range(turns)]
    shares = [recording / whole for whole, recording, _ in found]
    return {
        "turns": turns,
        "seconds": round(statistics.median(whole for whole, *_ in found), 4),
        "share": round(statistics.median(shares), 4),
        "largest_share": round(max(shares), 4),
    }


def report_cost(name: str, turns: int) -> dict[str, float]:
    """What the option ``report`` adds to compiling, as a share of it, and the processor seconds of writing.

    ``share`` is the median over turns, each of which compiles without the option and with it. Seconds of writing are
    this process's, with the texts of all levels but assembly, and those of the compilers and disassemblers that
    assembly takes.
    """
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(recording, "_waiting", recording._Waiting()):
        file = str(Path(folder) / "report.html")
        _seconds(name, file)
        shares, plain, writing, assembling = [], [], [], []
        for _ in range(turns):
            without, with_it = _seconds(name)[0], _seconds(name, file)
            shares.append(with_it[0] / without - 1)
            plain.append(without)
            for assembly, seconds in ((False, writing), (True, assembling)):
                start = time.process_time() if not assembly else _children()
                write_report(with_it[2], file, assembly=assembly)
                seconds.append((time.process_time() if not assembly else _children()) - start)
            recording._waiting.records.clear()
    middle = statistics.median(plain)
    return {
        "turns": turns,
        "seconds": round(middle, 4),
        "share": round(statistics.median(shares), 4),
        "writing_seconds": round(statistics.median(writing), 4),
        "writing_share": round(statistics.median(writing) / middle, 4),
        "assembly_seconds": round(statistics.median(assembling), 4),
    }


def _children() -> float:
    """Processor seconds of processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Measure, print and write; 1 where a failure harms or the median share of a model is above the goal."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--only", default="", help="the one model to take")
    parser.add_argument("--no-failures", action="store_true")
    parser.add_argument("--report", action="store_true", help="measure what the option report adds, and nothing else")
    given = parser.parse_args()
    path = RESULTS / "recording.json"
    if given.report:
        return _measured_reports(path, given.only, given.turns)
    costs = {}
    for name in MODELS:
        if given.only in ("", name):
            costs[name] = cost(name, max(5, given.turns // 4) if name.startswith("GPT") else given.turns)
            print(name, costs[name], flush=True)
    harm = [] if given.no_failures else failures()
    print(f"{len(PLACES)} places, 2 errors each: {len(harm)} do harm", *harm, sep="\n  ")
    if not given.only and not given.no_failures:
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        _write(path, known | {"cost": costs, "places": len(PLACES), "errors": 2, "harm": harm})
    return bool(harm) or any(one["share"] > _MOST for one in costs.values())


def _measured_reports(path: Path, only: str, turns: int) -> int:
    found = {}
    for name in MODELS:
        if only in ("", name):
            found[name] = report_cost(name, max(3, turns // 6) if name.startswith("GPT") else turns)
            print(name, found[name], flush=True)
    if not only:
        _write(path, json.loads(path.read_text(encoding="utf-8")) | {"report": found})
    return any(one["share"] > _MOST_FOR_REPORTS for one in found.values())


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
