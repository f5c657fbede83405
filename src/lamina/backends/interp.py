"""The reference backend: runs the loop program equation by equation. Slow; the executable specification."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule

from lamina.base.torch_private import memory_of, without_bases
from lamina.ir.loops_interp import run_program
from lamina.record import Record
from lamina.schedule.fuse import Fused

__all__ = ["run_interpreted"]


def run_interpreted(fused: Fused, record: Record, gm: GraphModule) -> Callable[[list[Any]], Any]:
    """The program as a callable on one list of inputs."""
    del record, gm

    def call(args: list[Any]) -> list[Any]:
        inputs = list(args)
        args.clear()
        return without_bases(run_program(fused.program, inputs), memory_of(inputs))

    call._boxed_call = True  # type: ignore[attr-defined]
    return call
