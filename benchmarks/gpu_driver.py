"""The driver of the GPU benchmarks: a compile function against eager and every mode of torch.compile, by turns.

One process measures, rivals in alternating order, the second-level cache written over before every sample, medians of
CUDA events, and again of the host's clock, for what a caller waits. Others may compile for the rivals before
(``--prefill``). The JSON file is written again after every row, so that an interrupted run leaves what it has.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.compilers import compile_function
from benchmarks.gpu_arguments import RIVALS, arguments, selected, weights_of
from benchmarks.gpu_machine import gpu, needs_gpu, one_assembler
from benchmarks.gpu_programs import GpuData, GpuProgram, Program
from benchmarks.gpu_report import GpuRow, kernels_found, print_rows, summary
from benchmarks.gpu_timing import alternate_events, alternate_wall, host_microseconds
from benchmarks.limit import TookTooLong, at_most
from benchmarks.patterns import private_copy
from benchmarks.prefill.crew import Deadline, Job, prefill, serve
from benchmarks.prefill.torch_private import graphs_from_cache
from benchmarks.report import write_results
from lamina.base.reference import in_double
from lamina.record import Record
from lamina.testing import error, judge, mismatch, tensors

__all__ = ["RIVALS", "measure", "run"]


@dataclass(frozen=True, slots=True)
class _Rival:
    call: Callable[[], Any]
    values: Callable[[], list[Tensor]]
    record: Record | None


def _rival(program: Program, data: GpuData, name: str) -> _Rival:
    compiled = compile_function(name)(private_copy(program.function), dynamic=False)
    cotangents: list[Tensor] = []

    def forward() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            return compiled(*program.args)

    def training() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        outputs = tensors(compiled(*program.args))
        if not cotangents:
            drawn = torch.Generator(data.device).manual_seed(1)
            for t in outputs:
                wide = torch.randn(t.shape, generator=drawn, device=data.device).to(torch.bfloat16)
                cotangents.append(wide.to(t.dtype))
        gradients = torch.autograd.grad(outputs, data.leaves, cotangents, allow_unused=True)
        return [*outputs, *(g for g in gradients if g is not None)]

    call = training if data.training else forward

    def values() -> list[Tensor]:
        return [t.detach().clone() for t in [*tensors(call()), *program.state]]

    record = getattr(compiled, "record", None)
    return _Rival(call, values, record if isinstance(record, Record) else None)


def measure(
    pattern: GpuProgram,
    mode: str,
    args: argparse.Namespace,
    copy: float,
    prefilled: Sequence[str] = (),
    end: float = math.inf,
    earlier: set[str] | None = None,
) -> GpuRow:
    """Build a row: every rival once, its error, its peak memory and host time, then all by turns.

    What was compiled ahead for the rivals ``prefilled`` is on disk: their first calls are no cold ones. A rival whose
    first call takes longer than ``args.first_call_seconds``, or beyond the time ``end`` of the monotonic clock, is left
    out, with that reason. ``earlier`` are the kernels of Lamina's that this process compiled or loaded before; those of
    the row are added.
    """
    earlier = set() if earlier is None else earlier
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
    row, training, subject = GpuRow(f"{pattern.name}.{mode}"), mode == "training", args.compile
    compared = not pattern.random and args.reference != "none"
    with _spent(row, "fp64"):
        exact = _exact(pattern, training) if compared and args.reference == "fp64" else None
    row.reference = "none" if not compared else "eager" if exact is None else "fp64"
    calls: dict[str, Callable[[], Any]] = {}
    eager: list[Tensor] = []
    shared: tuple[Program, GpuData] | None = None
    moved: int | None = None
    for name in dict.fromkeys(["eager", *args.rivals, subject]):
        if shared is None or shared[0].state:
            data = GpuData(torch.bfloat16, training)
            shared = pattern.build(data), data
        program, data = shared
        with _spent(row, name):
            before = _recorded()
            try:
                rival = _rival(program, data, name)
                own = name in ("eager", subject)
                start = time.perf_counter()
                with at_most(math.inf if own else min(args.first_call_seconds, end - time.monotonic())):
                    found = rival.values()
                    torch.cuda.synchronize()
                row.seconds[name] = time.perf_counter() - start
            except TookTooLong as problem:
                row.failures[name] = f"its first call {problem}"
                continue
            except Exception as problem:
                row.failures[name] = _words(problem)
                continue
            if name in prefilled:
                row.prefilled.append(name)
            if name == "eager":
                eager, moved = found, program.moved or (_bytes(program, found) if pattern.bound_by_bytes else None)
            if compared:
                _compare(row, name, name == subject, found, eager, exact)
            del found
            row.peak_mib[name] = _peak(rival.call)
            row.host_us[name] = host_microseconds(rival.call)
            row.kept_mib[name] = max(_recorded() - before, 0.0)
            settled = _peak(rival.call) + row.kept_mib[name]  # graphs are made by now
            row.peak_mib[name] = max(row.peak_mib[name], settled)
            calls[name] = rival.call
            if rival.record is not None:
                kernels = kernels_found(rival.record, earlier)
                if name == subject:
                    row.note(rival.record, name, kernels)
    del exact, eager
    gc.collect()
    torch.cuda.empty_cache()
    with _spent(row, "timing"):
        host_us = max(row.host_us.values(), default=0.0)
        row.milliseconds = alternate_events(calls, args.samples, args.row_seconds, host_us)
    if args.wall_samples:
        with _spent(row, "wall"):
            row.wall_ms = alternate_wall(calls, args.wall_samples, args.row_seconds / 3)
    row.conclude(subject, copy, None if training else moved)
    return row


def _words(problem: Exception) -> str:
    """What was raised, and where."""
    places = traceback.extract_tb(problem.__traceback__)
    place = f" ({Path(places[-1].filename).name}:{places[-1].lineno})" if places else ""
    return f"{type(problem).__name__}: {problem}"[:300] + place


@contextmanager
def _spent(row: GpuRow, phase: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    row.spent[phase] = time.perf_counter() - start


def _exact(pattern: GpuProgram, training: bool) -> list[Tensor] | None:
    """The results in fp64, or None where they do not fit into memory."""
    try:
        data = GpuData(torch.float64, training)
        program = pattern.build(data)

        def wide(*args: Any) -> Any:
            with in_double():
                return program.function(*args)

        return _rival(replace(program, function=wide), data, "eager").values()
    except torch.cuda.OutOfMemoryError:
        return None


def _compare(
    row: GpuRow, name: str, judged: bool, found: list[Tensor], eager: list[Tensor], exact: list[Tensor] | None
) -> None:
    """Note how far the results are from the exact ones, or from eager's, and what is wrong with those to be judged."""
    row.errors[name] = max(error(v, e).largest for v, e in zip(found, exact or eager, strict=True))
    if not judged:
        return
    if exact is None:
        complaints = [mismatch(*results) for results in zip(found, eager, strict=True)]
    else:
        # A scaled number close to halfway between two steps may go either way: eager's do, against fp64.
        complaints = [judge(*results, quantised=True) for results in zip(found, eager, exact, strict=True)]
    row.complaints = [f"result {k}: {text}" for k, text in enumerate(complaints) if text]


def _bytes(program: Program, results: Sequence[Tensor]) -> int:
    given = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors(program.args)}
    return sum(given.values()) + sum(t.numel() * t.element_size() for t in results)


def _peak(call: Callable[[], Any]) -> float:
    """Most MiB allocated during the second of two calls, beyond what was before."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated() - before) / 2**20


def _recorded() -> float:
    """MiB that CUDA graphs keep from the rest of the program: memory of pools of their own."""
    torch.cuda.synchronize()
    segments = torch.cuda.memory_snapshot()
    return sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) != (0, 0)) / 2**20


def _compile_only(programs: Sequence[GpuProgram], job: Job) -> None:
    """What a process that compiles ahead does of a row: one call of one rival."""
    name, _, mode = job.row.rpartition(".")
    program = next(p for p in programs if p.name == name)
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()
    data = GpuData(torch.bfloat16, mode == "training")
    _rival(program.build(data), data, job.rival).values()
    torch.cuda.synchronize()


def _jobs(rows: Sequence[str], rivals: Sequence[str], weights: Mapping[str, float]) -> list[Job]:
    """Rows that take long first, then mode by mode: what one mode compiled, the next finds."""
    usual = statistics.median(weights.values())
    jobs = [Job(row, rival) for rival in rivals for row in sorted(rows, key=lambda row: -weights[row])]
    return sorted(jobs, key=lambda job: weights[job.row] < 5 * usual)


def _compile_ahead(
    module: str, chosen: Sequence[tuple[GpuProgram, str]], args: argparse.Namespace, known: Path
) -> dict[str, list[str]]:
    """Have processes compile the chosen rows' rivals, the slowest modes first; the rivals now on disk, by row."""
    rivals = [name for name in reversed(args.rivals) if name != "eager" and name != args.compile]
    if not (args.prefill and rivals and chosen):
        return {}
    started = time.monotonic()
    rows = [f"{p.name}.{mode}" for p, mode in chosen]
    jobs = _jobs(rows, rivals, weights_of(known, rows))
    command = [sys.executable, "-u", "-m", module, "--prefill-child"]
    done = prefill(command, jobs, min(args.prefill, len(jobs)), args.prefill_threads, Deadline(args.prefill_seconds))
    for outcome in done:
        if outcome.problem:
            print(f"not compiled ahead: {outcome.row}, {outcome.rival}: {outcome.problem}", flush=True)
    found: dict[str, list[str]] = {}
    for outcome in done:
        if not outcome.problem:
            found.setdefault(outcome.row, []).append(outcome.rival)
    took, work = time.monotonic() - started, sum(outcome.seconds for outcome in done)
    count, choices = sum(map(len, found.values())), sum(outcome.timed > 0 for outcome in done)
    print(f"compiled ahead: {count} of {len(jobs)} in {took:.0f} s ({work:.0f} s of work; {choices} choose by timing)")
    slowest = sorted(done, key=lambda outcome: -outcome.seconds)[:5]
    print("  slowest: " + ", ".join(f"{o.row} {o.rival} {o.seconds:.1f} s" for o in slowest), flush=True)
    return found


def _told(row: GpuRow, before: tuple[int, int]) -> str:
    """Where a row's seconds went, and how many of Inductor's graphs came from its cache."""
    hits, misses = (now - then for now, then in zip(graphs_from_cache(), before, strict=True))
    where = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in row.spent.items())
    return f"  {sum(row.spent.values()):.1f} s: {where}; {hits} of {hits + misses} graphs of Inductor's from its cache"


def run(
    title: str,
    programs: Sequence[GpuProgram],
    default: Path,
    about: str | None,
    argv: Sequence[str] | None,
    module: str,
) -> int:
    """Measure the chosen programs, print, write JSON; 1 if a result is wrong.

    ``python -m module`` runs the same benchmark.
    """
    args = arguments(about, default, argv)
    needs_gpu()
    one_assembler()
    if args.prefill_child:
        serve(lambda job: _compile_only(programs, job))
        return 0
    started = time.monotonic()
    chosen = selected(programs, args, default)
    prefilled = _compile_ahead(module, chosen, args, default)
    card = gpu()
    rivals = list(dict.fromkeys(["eager", *args.rivals, args.compile]))
    rows: list[GpuRow] = []
    earlier: set[str] = set()
    for number, (program, mode) in enumerate(chosen, 1):
        if time.monotonic() - started > args.seconds:
            print(f"no time for {len(chosen) - number + 1} rows", flush=True)
            break
        name = f"{program.name}.{mode}"
        print(f"[{number}/{len(chosen)}] {name}", flush=True)
        before = graphs_from_cache()
        try:
            ahead = [*prefilled.get(name, ()), *args.on_disk]
            row = measure(program, mode, args, card["copy_gbs"], ahead, started + args.seconds, earlier)
        except Exception as problem:
            row = GpuRow(name, failures={args.compile: _words(problem)})
        print(_told(row, before), flush=True)
        rows.append(row)
        content = {"subject": args.compile, "gpu": card, "samples": args.samples}
        content |= {"summary": summary(rows, args.compile), "rows": [asdict(r) for r in rows]}
        write_results(args.json, content)
    print(f"{card['name']}: copy {card['copy_gbs']} GB/s, bf16 products {card['gemm_bf16_tflops']} TFLOP/s")
    print_rows(title, rows, args.compile, rivals)
    found = summary(rows, args.compile)
    for key, value in found.items():
        print(f"{key}: {value:.3f}" if isinstance(value, float) else f"{key}: {value}")
    return 1 if found["wrong"] else 0
