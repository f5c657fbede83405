"""What runs a fused program, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule

from lamina.backends.interp import run_interpreted
from lamina.options import Options
from lamina.record import Record
from lamina.schedule.fuse import Fused

__all__ = ["Executor", "executor"]

Executor = Callable[[Fused, Record, GraphModule], Callable[[list[Any]], Any]]
"""Turns a fused program into a callable that takes one list of inputs and returns the list of outputs."""


def executor(name: str, options: Options) -> Executor:
    """The executor called ``name``: "lamina" or "interp"."""
    del options
    return {"interp": run_interpreted, "lamina": run_interpreted}[name]
