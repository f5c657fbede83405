"""Schedules near the one that is chosen, timed on this machine's GPU: where the cost model is wrong, and by how much.

``python -m benchmarks.gpu_candidates 6108.fp32.training 6202.bf16.forward`` plans generated programs of the sweep as
``benchmarks.gpu_plans`` does, fills the buffers with random numbers, and times each kernel of one nest. Then twice or
half the warps, points of a block or stages are tried, then those of the fastest, and so on, while that gains; processes
compile what the next round needs. It prints kernels of which another schedule is faster, those that lose most first.
``--set schedule.gpu_work:_SCANNED=1`` plans with another number; results are not checked, as tests do that.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_idle import H100, SCALE
from benchmarks.gpu_kernels import timed
from benchmarks.gpu_machine import needs_gpu
from benchmarks.gpu_plans import planned
from benchmarks.report import write_results
from benchmarks.sweeping.case import Case
from benchmarks.sweeping.grammar import cases
from lamina.base.dtypes import torch_dtype
from lamina.codegen.triton.emit import emit
from lamina.codegen.triton.source import TritonSource
from lamina.ir.loops import storage_bytes
from lamina.ir.plan import GpuSchedule, Kernel, KernelCall, Plan
from lamina.schedule.gpu import fitter
from lamina.schedule.gpu_neighbours import around

__all__ = ["Search", "climb", "told"]

LARGEST, EACH = 16384, 128
"""Points of a tile, and of a thread, at most."""
REPEATS = 15
ROUNDS = 5
SHORT = 4.0
"""Microseconds of a kernel that is not looked at."""
GAIN = 0.97
"""Share of the time down to which another schedule is the same."""


_FURTHER = {"*i8": torch.int8, "*i32": torch.int32, "*i64": torch.int64, "*fp32": torch.float32}
"""Dtypes of workspace by Triton's names."""


@dataclass(slots=True)
class Search:
    """A kernel: the row that it is of, the schedule that was chosen, and microseconds of all that were timed."""

    row: str
    kernel: Kernel
    call: KernelCall
    plan: Plan
    chosen: GpuSchedule
    times: dict[GpuSchedule, float] = field(default_factory=dict)

    @property
    def best(self) -> GpuSchedule:
        return min(self.times, key=self.times.__getitem__, default=self.chosen)

    @property
    def lost(self) -> float:
        """Microseconds."""
        return self.times[self.chosen] - self.times[self.best] if self.times.get(self.chosen, 0.0) else 0.0

    def with_schedule(self, schedule: GpuSchedule) -> Kernel:
        """The kernel with another schedule of its first nest, and as many warps for what joins its parts."""
        others = [replace(o, warps=schedule.warps, stages=schedule.stages) for o in self.kernel.schedules[1:]]  # type: ignore
        return replace(self.kernel, schedules=(schedule, *others))

    def extents(self) -> dict[str, int]:
        values = {f"s{k}": int(size) for k, size in enumerate(self.call.sizes)}
        return {a.name: int(a.extent.evaluate(values)) for a in self.kernel.nests[0].axes}


def _sensible(schedule: GpuSchedule) -> bool:
    points = prod(b.size for b in schedule.blocks)
    return points <= LARGEST and 1 <= points // (32 * schedule.warps) <= EACH


def climb(searches: Sequence[Search], rounds: int, timer: Callable[[dict[int, list[GpuSchedule]]], None]) -> None:
    """Time what is chosen, then what is around the fastest, for all kernels at once; ``timer`` notes the times."""
    timer({k: [s.chosen] for k, s in enumerate(searches)})
    open_ = {k for k, s in enumerate(searches) if SHORT <= s.times.get(s.chosen, 0.0) < float("inf")}
    for _ in range(rounds):
        asked = {k: _untimed(searches[k]) for k in sorted(open_)}
        before = {k: searches[k].times[searches[k].best] for k in open_}
        timer({k: found for k, found in asked.items() if found})
        open_ = {k for k in open_ if searches[k].times[searches[k].best] < GAIN * before[k]}


def _untimed(search: Search) -> list[GpuSchedule]:
    fits = fitter(search.kernel.nests[0], _dtypes(search.kernel), H100)
    found = [fits(s) for s in around(search.best, search.extents(), 2) if _sensible(s)]
    return [s for s in dict.fromkeys(found) if s not in search.times]


def _dtypes(kernel: Kernel) -> dict[str, str]:
    return {f"b{k}": dtype for k, dtype in enumerate(kernel.dtypes)}


def searches_of(row: str, case: Case | None = None) -> Iterator[Search]:
    """The kernels of a row that have one nest, or one more that joins the parts of its results, each once.

    The row is ``NUMBER.DTYPE.MODE`` of a generated program, or of ``case`` where that is given.
    """
    number, dtype, mode = row.split(".")
    for plan in planned(case or cases(1, int(number), SCALE)[0], dtype, mode)[0]:
        calls = {s.kernel: s for s in plan.steps if isinstance(s, KernelCall)}
        for kernel in plan.kernels:
            (schedule, *others) = kernel.schedules
            if not isinstance(schedule, GpuSchedule) or schedule.cluster or schedule.kind == "product":
                continue
            if all(isinstance(o, GpuSchedule) and o.last_block for o in others):
                yield Search(row, kernel, calls[kernel.name], plan, schedule)


class _Timer:
    """Compiles in processes, and times here, until the time is over."""

    def __init__(self, searches: Sequence[Search], until: float, workers: int) -> None:
        self.searches, self.until = searches, until
        self.folder = Path(tempfile.mkdtemp())
        os.environ["TRITON_CACHE_DIR"] = str(self.folder / "cache")
        self.pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
        self.files: dict[str, Path] = {}
        self.problems: Counter[str] = Counter()

    def __call__(self, asked: dict[int, list[GpuSchedule]]) -> None:
        made = {k: [(s, *self.compiled(self.searches[k], s)) for s in found] for k, found in asked.items()}
        for k, found in made.items():
            if time.time() < self.until:
                self.time(self.searches[k], found)

    def compiled(self, search: Search, schedule: GpuSchedule) -> tuple[TritonSource | None, Path, Future[str] | None]:
        try:
            source = emit(search.with_schedule(schedule), H100)
        except Exception:
            return None, self.folder, None
        path = self.files.setdefault(source.text, self.folder / f"k{len(self.files)}.py")
        path.write_text(source.text)
        sizes = [int(e) for e in search.call.sizes]
        further = source.types[len(search.kernel.dtypes) + len(sizes) :]
        request = (str(path), source.name, search.kernel.dtypes, sizes, further, source.warps, source.stages)
        return source, path, self.pool.submit(_compile, *request)

    def time(
        self, search: Search, found: list[tuple[GpuSchedule, TritonSource | None, Path, Future[str] | None]]
    ) -> None:
        args = [_tensor(search.plan, name) for name in search.call.buffers]
        sizes = [int(e) for e in search.call.sizes]
        values = {f"s{k}": n for k, n in enumerate(sizes)}
        for schedule, source, path, future in found:
            left = self.until - time.time()
            search.times[schedule] = float("inf")
            if source is None or future is None or left <= 0 or source.then is not None:
                continue
            try:
                if complaint := future.result(timeout=min(left, 60.0)):
                    self.problems[complaint[:120]] += 1
                    continue
                function, grid = _function(str(path), source.name), (int(source.grid[0].evaluate(values)),)
                launch = _launch(function, grid, [*args, *sizes, *_further(source, values)], source)
                search.times[schedule] = timed(launch, REPEATS)
            except Exception as problem:
                self.problems[f"{type(problem).__name__} {str(problem)[:100]}"] += 1


def _further(source: TritonSource, values: dict[str, int]) -> list[torch.Tensor]:
    """Workspace, and where a kernel tells that a check failed."""
    bytes_of = {f"w{k}": int(size.evaluate(values)) for k, (size, _) in enumerate(source.workspace)}
    types = dict(zip(source.parameters, source.types, strict=True))
    found = [
        torch.zeros(n // 8 + 1, dtype=torch.int64, device="cuda").view(_FURTHER[types[w]]) for w, n in bytes_of.items()
    ]
    return [*found, *([torch.zeros(1, dtype=torch.int32, device="cuda")] if source.checks else [])]


def _launch(function: Any, grid: tuple[int, ...], args: list[Any], source: TritonSource) -> Callable[[], Any]:
    return lambda: function[grid](*args, num_warps=source.warps, num_stages=source.stages)


def _compile(
    path: str, name: str, dtypes: Sequence[str], sizes: Sequence[int], further: Sequence[str], warps: int, stages: int
) -> str:
    """In a process of its own: compile into Triton's cache; what went wrong, or nothing."""
    try:
        args = [*map(torch_dtype, dtypes), *sizes, *(_FURTHER[t] for t in further)]
        _function(path, name).warmup(*args, grid=(1,), num_warps=warps, num_stages=stages)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return ""


@cache
def _function(path: str, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def _tensor(plan: Plan, name: str) -> torch.Tensor:
    """Memory of a buffer: small random numbers, places that are 0."""
    buffer = plan.buffer_map()[name]
    dtype = torch_dtype(buffer.dtype)
    count = max(int(storage_bytes(buffer)), 1) // dtype.itemsize + 1
    if dtype in (torch.int64, torch.int32):
        return torch.zeros(count, dtype=dtype, device="cuda")
    if dtype.is_floating_point:
        return torch.rand(count, device="cuda").to(dtype)
    return torch.randint(0, 2, (count,), device="cuda").to(dtype)


def told(search: Search) -> Iterator[str]:
    """What was found of a kernel."""
    first = search.times.get(search.chosen, float("inf"))
    yield f"{search.row} {search.kernel.name[:60]} {search.extents()}: {first:.1f} us, {len(search.times)} timed"
    for schedule in sorted({search.chosen, *search.times}, key=lambda s: search.times.get(s, float("inf")))[:6]:
        mark = "*" if schedule == search.chosen else " "
        yield f"  {mark}{search.times.get(schedule, float('inf')):9.1f} us  {_short(schedule)}"
    if search.chosen in search.times:
        yield f"  chosen  {_short(search.chosen)}"


def _short(schedule: GpuSchedule) -> str:
    blocks = " ".join(f"{'*'.join(b.axes)}:{b.size}:{b.role}" for b in schedule.blocks)
    return f"{schedule.kind} [{blocks}] warps {schedule.warps} stages {schedule.stages}"


def _set(text: str) -> None:
    """``schedule.gpu_work:_SCANNED=1``: another value of a module's number."""
    place, _, value = text.partition("=")
    module, _, name = place.partition(":")
    found = importlib.import_module(f"lamina.{module}")
    setattr(found, name, type(getattr(found, name))(float(value)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", metavar="NUMBER.DTYPE.MODE")
    parser.add_argument("--set", nargs="*", default=[], metavar="MODULE:NAME=VALUE")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="0: time what is chosen")
    parser.add_argument("--seconds", type=float, default=270.0)
    parser.add_argument("--workers", type=int, default=max((os.cpu_count() or 2) - 2, 1))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    needs_gpu()
    warnings.simplefilter("ignore")
    until = time.time() + given.seconds
    for text in given.set:
        _set(text)
    searches: list[Search] = []
    for row in given.rows:
        try:
            searches += searches_of(row)
        except Exception as problem:
            print(f"{row}: {type(problem).__name__} {str(problem)[:100]}", flush=True)
    print(f"{len(searches)} kernels, {until - time.time():.0f} s left; {' '.join(given.set)}", flush=True)
    timer = _Timer(searches, until, given.workers)
    climb(searches, given.rounds, timer)
    print("not timed:", timer.problems.most_common(5), flush=True)
    for search in sorted(searches, key=lambda s: -s.lost):
        print("\n".join(told(search)), flush=True)
    if given.json:
        write_results(given.json, {"set": given.set, "kernels": [_plain(s) for s in searches]})
    os._exit(0)  # compilations that nobody waits for any more


def _plain(search: Search) -> dict[str, Any]:
    times = [[_short(s), round(t, 1)] for s, t in search.times.items()]
    return {"row": search.row, "kernel": search.kernel.name, "extents": search.extents(), "times": times}


if __name__ == "__main__":
    main()
