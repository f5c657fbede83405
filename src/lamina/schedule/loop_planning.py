"""How a program is planned for a CPU: kernels are loops of one nest, of which threads take parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.base.target import Target
from lamina.ir.loops import Buffer, LoopProgram, Nest, Step, storage_bytes
from lamina.ir.plan import Schedule
from lamina.schedule.cpu_space import choose
from lamina.schedule.errors import inputs_in_memory
from lamina.schedule.flatten import Flat
from lamina.schedule.horizontal import GroupedStep, small_together
from lamina.schedule.memo import Memo
from lamina.schedule.short_axes import unrolled
from lamina.schedule.short_rows import joined_rows

__all__ = ["LoopPlanning"]

_OWN_MEMORY = 4 << 20
"""Bytes of a temporary beside whose kernels an allocation is nothing."""


@dataclass(frozen=True, slots=True)
class LoopPlanning:
    """What planning does for a CPU beside what it does for any device."""

    target: Target

    def prepared(
        self, program: LoopProgram, products: Mapping[str, bool] | None, memo: Memo, apart: Mapping[str, Reason] | None
    ) -> tuple[LoopProgram, list[Decision]]:
        """The program as it is: products are the library's, and threads share whatever nests there are."""
        del products, memo, apart
        return program, []

    def grouped(self, program: LoopProgram, ordered: Sequence[Step], memo: Memo) -> list[GroupedStep]:
        """The steps, small nests of one kernel together."""
        del memo
        inputs = inputs_in_memory(program.buffers)
        return small_together([(s,) if isinstance(s, Nest) else s for s in ordered], inputs)

    def shaped(self, flat: Flat) -> Flat:
        """Flat nests without short innermost axes."""
        return joined_rows(unrolled(flat, self.target), self.target)

    def alone(self, buffer: Buffer) -> bool:
        """Whether a temporary is allocated and freed by itself, so that it takes the memory of what was saved for a
        backward and is used up, instead of lying beside that in the workspace.
        """
        nbytes = storage_bytes(buffer)
        return nbytes.is_int and nbytes.const >= _OWN_MEMORY

    def few_points(self, flat: Flat) -> int | None:
        """None: no loop depends on how many points there are."""
        del flat
        return None

    def schedules(self, nests: Sequence[Nest], dtypes: Mapping[str, str]) -> tuple[Schedule, ...]:
        """A schedule for each nest of a kernel."""
        return tuple(choose(nest, dtypes, self.target) for nest in nests)
