"""Every private torch name that compiling ahead uses: Inductor's caches, and what it decides by timing."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import CacheBase, FxGraphCache
from torch._inductor.runtime import benchmarking
from torch._inductor.runtime.cache_dir_utils import cache_dir

__all__ = ["compiler_cache", "graphs_from_cache", "keep_no_timings", "timed_choices", "wait_for_compilers"]

_TIMED = ("select_algorithm_autotune", "pad_mm_bench")
"""Inductor's counters of the choices it makes by timing while it compiles; the others are made in the first call."""


def compiler_cache() -> Path:
    """Where Inductor keeps generated code, compiled kernels and graphs."""
    return Path(cache_dir())


def graphs_from_cache() -> tuple[int, int]:
    """Graphs that Inductor took from its cache, and those it looked for in vain, in this process."""
    found = counters["inductor"]
    return found["fxgraph_cache_hit"], found["fxgraph_cache_miss"]


def timed_choices() -> int:
    """How many choices Inductor has made by timing while it compiled, in this process."""
    return sum(counters["inductor"][name] for name in _TIMED)


def keep_no_timings(folder: Path) -> Callable[[], None]:
    """From now on nothing that Inductor times in this process gets into its caches on disk; each timing is one run.

    Its notes on products go to files in ``folder``, a new one from each call of the function that is returned: call
    it before each compilation. A graph compiled since then is not cached if anything in it was chosen by timing.
    What the first call chooses, a schedule for each kernel, is still noted beside the kernel, for the caller to remove.
    """
    numbers = itertools.count()
    notes, choices = folder / "0", 0

    def begin() -> None:
        nonlocal notes, choices
        notes, choices = folder / str(next(numbers)), timed_choices()

    save = FxGraphCache._save_graph

    @functools.wraps(save)
    def save_if_untimed(*args: Any, **more: Any) -> Any:
        return save(*args, **more) if timed_choices() == choices else None

    replaced: tuple[tuple[Any, str, Any], ...] = (
        (FxGraphCache, "_save_graph", staticmethod(save_if_untimed)),
        (CacheBase, "get_local_cache_path", staticmethod(lambda: notes)),
        (benchmarking.benchmarker, "benchmark_gpu", _one_run),
    )
    for owner, name, value in replaced:
        getattr(owner, name)  # an error here, not notes kept, where another torch calls it otherwise
        setattr(owner, name, value)
    begin()
    return begin


def wait_for_compilers() -> None:
    """Return when Inductor's own worker processes are up; at once where it has none, with one compiling thread.

    Until then it compiles candidates for products in threads, which take turns.
    """
    AsyncCompile.wait_pool_ready()


def _one_run(call: Callable[[], Any], *args: Any, return_mode: str = "min", **more: Any) -> Any:
    """GPU milliseconds of one run after another: enough to compile by, on a GPU that others use too."""
    call()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    found = start.elapsed_time(end)
    return [found] if return_mode == "all" else found
