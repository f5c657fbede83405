"""What runs a fused program, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from torch.fx import GraphModule

from lamina.backends.cpu import CpuBackend
from lamina.backends.interp import run_interpreted
from lamina.options import Options
from lamina.record import Record
from lamina.schedule.fuse import Fused

__all__ = ["Executor", "executor"]

Executor = Callable[[Fused, Record, GraphModule], Callable[[list[Any]], Any]]
"""Turns a fused program into a callable that takes one list of inputs and returns the list of outputs."""


@lru_cache(maxsize=32)
def executor(name: str, options: Options) -> Executor:
    """The executor called ``name``: "lamina" or "interp"."""
    return run_interpreted if name == "interp" else CpuBackend(options)
