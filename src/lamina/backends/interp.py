"""The reference backend: runs the loop program equation by equation. Slow; the executable specification."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule

from lamina.backends.device import Boxed
from lamina.base.retryable import set_retryable
from lamina.base.torch_private import boxed, memory_of, versions_kept, without_bases
from lamina.ir.loops_interp import run_program
from lamina.ir.plan import Plan
from lamina.record import Record
from lamina.schedule.errors import repeatable
from lamina.schedule.fuse import Fused

__all__ = ["Interpreter"]


class Interpreter:
    """The stages that take the place of those of a device: none but the last does anything."""

    def plan(self, fused: Fused, gm: GraphModule, record: Record) -> Fused:
        """The program as it is."""
        del gm, record
        return fused

    def codegen(self, fused: Fused, gm: GraphModule, record: Record) -> Fused:
        """The program as it is."""
        del gm, record
        return fused

    def build(self, fused: Fused, gm: GraphModule, record: Record) -> Fused:
        """The program as it is."""
        del gm, record
        return fused

    def plans(self, fused: Fused) -> tuple[Plan, ...]:
        """None: the program runs as it is."""
        del fused
        return ()

    def steps(self, fused: Fused) -> None:
        """Nothing: no kernel is built."""
        del fused

    def load(self, fused: Fused, gm: GraphModule, record: Record) -> Boxed:
        """The program as a callable."""
        del gm, record
        program = fused.program
        retryable = repeatable(((step,) for step in program.steps), program.buffer_map())

        def call(args: list[Any]) -> list[Any]:
            inputs = list(args)
            args.clear()
            try:
                with versions_kept(inputs):
                    results = run_program(program, inputs)
                return without_bases(results, memory_of(inputs))
            except Exception as error:
                set_retryable(error, retryable)
                raise

        return boxed(call)
