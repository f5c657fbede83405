"""How a program is planned for a GPU: kernels are grids of programs, so that work is divided before it is scheduled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.base.target import Target
from lamina.ir.grouped import grouped
from lamina.ir.last_block import paired_axes
from lamina.ir.loops import Buffer, BufferView, LoopProgram, Nest, Step
from lamina.ir.plan import GpuSchedule
from lamina.schedule.counts import narrow_counts
from lamina.schedule.cut_ends import taken_in_by_readers
from lamina.schedule.flatten import Flat
from lamina.schedule.gpu import choose, small_tile
from lamina.schedule.gpu_last_block import join_in_last_block, with_last_block
from lamina.schedule.gpu_split import spread
from lamina.schedule.horizontal import GroupedStep, group_launches, small_together
from lamina.schedule.memo import Memo
from lamina.schedule.products import place_products
from lamina.schedule.reductions_apart import with_reductions_apart
from lamina.schedule.short_axes import unrolled_in_common

__all__ = ["GridPlanning"]


@dataclass(frozen=True, slots=True)
class GridPlanning:
    """What planning does for a GPU beside what it does for any device."""

    target: Target

    def prepared(
        self, program: LoopProgram, products: Mapping[str, bool] | None, memo: Memo, apart: Mapping[str, Reason] | None
    ) -> tuple[LoopProgram, list[Decision]]:
        """The program with products placed, the long reductions of all other nests cut, and nests ``apart`` taken
        apart.
        """
        program = narrow_counts(program, memo)
        before = {id(step) for step in program.steps}
        program, decisions = place_products(program, self.target, products, memo)
        steps: list[Step] = []
        for same, run in groupby(program.steps, lambda step: id(step) in before):
            if same:
                part, cuts = spread(replace(program, steps=tuple(run)), self.target, memo)
                program = replace(program, buffers=part.buffers)
                decisions += cuts
                steps += part.steps
            else:
                steps += run
        program, more = taken_in_by_readers(replace(program, steps=tuple(steps)), before)
        decisions += more
        if apart:
            program, taken_apart = with_reductions_apart(program, apart, self.target)
            decisions += taken_apart
        return program, decisions

    def grouped(self, program: LoopProgram, ordered: Sequence[Step], memo: Memo) -> list[GroupedStep]:
        """The steps with nests of one launch together."""
        lasting = {b.name for b in program.buffers if b.kind == "input"}
        lasting |= {o.buffer for o in program.outputs if isinstance(o, BufferView)}
        buffers = program.buffer_map()
        launches = group_launches(ordered, buffers, lasting)
        return small_together(join_in_last_block(launches, buffers, self.target, memo))

    def shaped(self, flat: Flat) -> Flat:
        """Flat nests without the short axes that all of them have in common."""
        return unrolled_in_common(flat)

    def alone(self, buffer: Buffer) -> bool:
        """False: the backend for GPUs says which, once it has chosen among plans."""
        del buffer
        return False

    def few_points(self, flat: Flat) -> int | None:
        """Points of a tile with which the few points of a loop, whose length is a parameter, are shared by enough
        programs; ``None`` where any tile does. A power of two, so that loops of about the same length share a kernel.
        """
        if len(flat.nests) != 1 or len(flat.nests[0].axes) != 1:
            return None
        extent = flat.nests[0].axes[0].extent
        if extent.is_int or not all(size.is_int for size in flat.sizes):
            return None
        points = extent.evaluate({f"s{k}": size.const for k, size in enumerate(flat.sizes)})
        return small_tile(int(points), self.target)

    def schedules(self, nests: Sequence[Nest], dtypes: Mapping[str, str]) -> tuple[GpuSchedule, ...]:
        """A schedule for each nest of a kernel; they share one number of warps and stages."""
        same = grouped(nests)
        if same is not None:
            held = {f"b{k}": dtypes[b] for k, b in enumerate(same.buffers[0])}
            return (choose(same.nest, held, self.target),) * len(nests)
        if len(nests) == 2 and paired_axes(*nests) is not None:
            first = choose(nests[0], dtypes, self.target)
            both = with_last_block(nests, first)
            assert both is not None, "such nests are grouped where a last program can join"
            return both
        found = [choose(nest, dtypes, self.target, len(nests) == 1) for nest in nests]
        warps, stages = max(s.warps for s in found), max(s.stages for s in found)
        return tuple(replace(s, warps=warps, stages=stages) for s in found)
