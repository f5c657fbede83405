"""What the backends for real devices share: a cache, threads to build in, and the way back to ATen."""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.fx import GraphModule

from lamina.aot.torch_private import is_transformed, transforms_are_active
from lamina.backends.caches import chosen_compiler, open_cache, warn_once
from lamina.backends.device import Boxed
from lamina.backends.reasons import BUILD_FAILED
from lamina.backends.torch_private import IS_ON, PROFILER
from lamina.base.decision import Decision
from lamina.base.recovery import recover
from lamina.base.retryable import set_retryable, set_retryable_unless_told
from lamina.base.symbolic.torch_private import is_fake
from lamina.base.torch_private import boxed, memory_of, without_bases
from lamina.errors import LaminaError, StageFailed
from lamina.ir.plan import Plan
from lamina.record import Record
from lamina.runtime.pool import Pool

__all__ = [
    "Boxed",
    "aten_calls",
    "build_threads",
    "chosen_compiler",
    "donated_inputs",
    "instead",
    "loaded_later",
    "open_cache",
    "progress_printer",
    "to_aten",
    "warn_once",
]

_PROGRESS_SECONDS = 2.0
"""Seconds of building after which the user is told that kernels are compiled."""
_SMALL = 1 << 31
"""Integers up to this and their products are among those of a kernel."""


@cache
def build_threads() -> Pool:
    """Builds wait for compilers most of the time, so a few threads serve any number of regions."""
    return Pool(4, "lamina-build")


def donated_inputs(plan: Plan, gm: GraphModule) -> frozenset[str]:
    """The inputs of a plan for ``gm`` that the forward made: a backward may write over those that nobody else holds."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    return frozenset(
        name
        for name, node in zip(plan.inputs, placeholders, strict=True)
        if isinstance(name, str) and node.meta.get("donated")
    )


def loaded_later(
    region: str,
    load: Callable[[], Boxed],
    record: Record,
    gm: GraphModule,
    strict: bool,
    retryable: bool = False,
    profiled: Callable[[], Boxed | None] | None = None,
) -> Boxed:
    """A callable that calls ``load``, which may wait for compilers, when it is first called itself.

    Where it fails, which ``strict`` lets it, the graph runs as ATen calls.
    ``retryable``: where the program raises, its inputs are such that it can be run again.
    A program first called with fake tensors, which have no memory, is only called with such: it runs as ATen calls. So
    does a call with tensors of a transform of torch.func, such as batches of gradients, and one in which an integer is
    beyond those of a kernel. While a profiler is on, what ``profiled`` gives runs, if it gives anything.
    """
    run: Boxed | None = None
    seen_by_profiler: Boxed | None = None
    inputs = gm.graph.find_nodes(op="placeholder")
    integers = [i for i, node in enumerate(inputs) if isinstance(node.meta.get("val"), torch.SymInt)]

    def call(args: list[Any]) -> Any:
        nonlocal run, seen_by_profiler
        if run is None:
            start = time.perf_counter()
            try:
                run = aten_calls(gm) if any(map(is_fake, args)) else load()
            except Exception as error:
                if strict and isinstance(error, LaminaError):
                    raise
                to_aten(error, "loading", region, strict, record)
                run = aten_calls(gm)
            record.add(region, "wait", time.perf_counter() - start)
        if transforms_are_active() and any(map(is_transformed, args)):
            return aten_calls(gm)(args)
        current = run
        if PROFILER[IS_ON] and profiled is not None:
            current = seen_by_profiler = seen_by_profiler or profiled() or run
        kept = list(args) if retryable and any(abs(args[i]) > _SMALL for i in integers) else []
        try:
            return current(args)
        except struct.error:
            if kept:
                return aten_calls(gm)(kept)
            raise
        except Exception as error:
            set_retryable(error, retryable)
            raise

    return boxed(call)


def _is_first_rank() -> bool:
    spread = torch.distributed.is_available() and torch.distributed.is_initialized()
    return not spread or torch.distributed.get_rank() == 0


def progress_printer(region: str, what: str) -> Callable[[int, int, float], None]:
    """A function of (finished, all, seconds) that prints a line every two seconds on a terminal, of the first rank."""
    said = 0.0

    def progress(finished: int, total: int, seconds: float) -> None:
        nonlocal said
        if seconds - said >= _PROGRESS_SECONDS and sys.stderr.isatty() and _is_first_rank():
            said = seconds
            print(f"lamina: {region}: compiling kernels, {finished}/{total} {what}, {seconds:.0f} s", file=sys.stderr)

    return progress


def instead(region: str, why: str, gm: GraphModule, strict: bool, record: Record) -> Boxed:
    """The graph, whose kernels were not built, as ATen calls; ``StageFailed`` where the option strict is set."""
    if strict:
        raise StageFailed(f"building {region} failed: {why}", remedy="unset the option strict")
    decision = Decision("fallback", (region,), False, BUILD_FAILED(why=why))
    record.note(region, "aten", decision)
    warn_once(f"lamina runs regions as ATen calls: {why}")
    return aten_calls(gm)


def to_aten(error: Exception, doing: str, region: str, strict: bool, record: Record) -> None:
    """Go on after a failure of ours with the region's ATen calls, told once; ``StageFailed`` where it is ``strict``."""
    recover(
        error,
        doing=doing,
        region=region,
        instead="it runs as ATen calls",
        strict=strict,
        note=record.noting(region, "aten"),
    )


def aten_calls(gm: GraphModule) -> Boxed:
    """The graph run node by node through ATen."""

    def call(args: list[Any]) -> Any:
        inputs = list(args)
        args.clear()
        try:
            return without_bases(gm.forward(*inputs), memory_of(inputs))
        except Exception as error:
            set_retryable_unless_told(error)  # the graph writes to its inputs after all else
            raise

    return boxed(call)
