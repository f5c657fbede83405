"""Scheduling: a fused program becomes a Plan of canonical kernels, library calls and memory."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.ir.access import origins, writes
from lamina.ir.grouped import grouped
from lamina.ir.index import Axis, Expr, Size, as_expr
from lamina.ir.last_block import paired_axes
from lamina.ir.loops import BufferView, Equation, LibraryCall, LoopProgram, Nest, Random, Reduce, Scan, Step
from lamina.ir.plan import GpuSchedule, Kernel, KernelCall, Plan, PlanStep, Schedule
from lamina.schedule import work_reasons
from lamina.schedule.approximate import approximates, lost_to_rounding
from lamina.schedule.counts import narrow_counts
from lamina.schedule.cpu_space import choose
from lamina.schedule.errors import inputs_in_memory
from lamina.schedule.flatten import Flat, flatten
from lamina.schedule.fuse import Fused
from lamina.schedule.gpu import choose as choose_gpu
from lamina.schedule.gpu import in_small_tiles, small_tile
from lamina.schedule.gpu_last_block import join_in_last_block, with_last_block
from lamina.schedule.gpu_split import spread
from lamina.schedule.gpu_target import GpuTarget
from lamina.schedule.horizontal import GroupedStep, group_launches, small_together
from lamina.schedule.memo import Memo
from lamina.schedule.memory import plan_memory
from lamina.schedule.order import order
from lamina.schedule.plan_decisions import kernel_decisions, memory_decisions
from lamina.schedule.preserved import verify_kernel, verify_same_stores
from lamina.schedule.products import place_products
from lamina.schedule.reductions_apart import with_reductions_apart
from lamina.schedule.short_axes import unrolled, unrolled_in_common
from lamina.schedule.short_rows import joined_rows
from lamina.schedule.simplify import rename
from lamina.schedule.target import Target

__all__ = ["make_plan"]


def make_plan(
    fused: Fused,
    target: Target | GpuTarget,
    products: Mapping[str, bool] | None = None,
    memo: Memo | None = None,
    apart: Mapping[str, Reason] | None = None,
) -> Plan:
    """Order the steps, give each nest a shared canonical kernel with a schedule, and every buffer a place.

    For a GPU, products that are worth it become kernels first, and long reductions are cut so that enough programs
    share the work. ``products`` says of library products, by name, which become kernels whatever the estimates;
    ``memo`` is kept from one plan of ``fused`` to the next. Nests ``apart``, by name, reduce over one set of axes each,
    for these reasons.
    """
    program, cuts, memo = fused.program, list[Decision](), memo or Memo()
    if isinstance(target, GpuTarget):
        program, cuts = _shared_out(program, target, products, memo)
        if apart:
            program, more = with_reductions_apart(program, apart, target)
            cuts += more
        verify_same_stores(fused.program, program)
    made = {b.name for b in program.buffers} - {b.name for b in fused.program.buffers}
    approximate = isinstance(target, GpuTarget) and target.approximate
    table = _Kernels(program, target, lost_to_rounding(program, made) if approximate else frozenset(), memo)
    ordered = order(program.steps, program.buffer_map(), program.inputs, program.outputs)
    steps = [table.step(group) for group in _grouped(program, ordered, target, memo)]
    places, arena = plan_memory(steps, program.buffers, program.inputs, program.outputs)
    kernels = tuple(table.kernels.values())
    return Plan(
        program.name,
        program.inputs,
        program.buffers,
        kernels,
        tuple(steps),
        program.outputs,
        places,
        arena,
        (*cuts, *table.decisions, *kernel_decisions(kernels), *memory_decisions(steps, places, program.buffer_map())),
        program.sources,
    )


def _shared_out(
    program: LoopProgram, target: GpuTarget, products: Mapping[str, bool] | None, memo: Memo
) -> tuple[LoopProgram, list[Decision]]:
    """The program with products placed, and the long reductions of all other nests cut."""
    program = narrow_counts(program, memo)
    before = {id(step) for step in program.steps}
    program, decisions = place_products(program, target, products, memo)
    steps: list[Step] = []
    for same, run in groupby(program.steps, lambda step: id(step) in before):
        if same:
            part, cuts = spread(replace(program, steps=tuple(run)), target, memo)
            program = replace(program, buffers=part.buffers)
            decisions += cuts
            steps += part.steps
        else:
            steps += run
    return replace(program, steps=tuple(steps)), decisions


def _grouped(
    program: LoopProgram, ordered: Sequence[Step], target: Target | GpuTarget, memo: Memo
) -> list[GroupedStep]:
    """The steps with nests of one launch together."""
    if not isinstance(target, GpuTarget):
        inputs = inputs_in_memory(program.buffers)
        return small_together([(s,) if isinstance(s, Nest) else s for s in ordered], inputs)
    lasting = {b.name for b in program.buffers if b.kind == "input"}
    lasting |= {o.buffer for o in program.outputs if isinstance(o, BufferView)}
    buffers = program.buffer_map()
    return small_together(join_in_last_block(group_launches(ordered, buffers, lasting), buffers, target, memo))


class _Kernels:
    """The distinct kernels of a program."""

    def __init__(
        self, program: LoopProgram, target: Target | GpuTarget, approximate: frozenset[str], memo: Memo
    ) -> None:
        self.approximate, self.memo = approximate, memo
        self.buffers = program.buffer_map()
        self.operations: Mapping[str, str] = {s.node: s.op for s in program.sources}
        self.target = target
        self.kernels: dict[object, Kernel] = {}
        self.decisions: list[Decision] = []

    def step(self, step: tuple[Nest, ...] | LibraryCall) -> PlanStep:
        """The launch of the nests' kernel, which is made if no equal one exists; a library call as it is."""
        if isinstance(step, LibraryCall):
            return step
        names = tuple(nest.name for nest in step)
        flat = self.memo.of("flat", step, lambda: self.flat(step))
        if len(step) > 1:
            joined = len(step) == 2 and paired_axes(*flat.nests) is not None
            why = work_reasons.JOINED_BY_LAST if joined else work_reasons.INDEPENDENT
            self.decisions.append(Decision("group", names, True, why()))
        approximating = [nest.name in self.approximate for nest in step if approximates(nest)]
        approximate = bool(approximating) and all(approximating)
        few = _few_points(flat, self.target)
        key = (flat.nests, flat.dtypes, approximate, few)
        kernel = self.kernels.get(key)
        if kernel is None:
            kernel = self.kernels[key] = self.kernel(step, flat, approximate, few)
        else:
            self.decisions.append(Decision("share", (*names, kernel.name), True, work_reasons.EQUAL_KERNEL()))
        stored = tuple(sorted({b for nest in step for b in writes(nest)}))
        return KernelCall(names[0], kernel.name, flat.buffers, flat.sizes, stored, step)

    def flat(self, step: tuple[Nest, ...]) -> Flat:
        """The nests as a kernel has them: flat, and without short innermost axes."""
        flat = flatten(step, self.buffers)
        if isinstance(self.target, GpuTarget):
            flat = unrolled_in_common(flat)
        else:
            flat = joined_rows(unrolled(flat, self.target), self.target)
        flat = _streams(_general(flat))
        verify_kernel(step, flat.nests, flat.buffers, flat.sizes)
        return flat

    def kernel(self, step: tuple[Nest, ...], flat: Flat, approximate: bool, few: int | None) -> Kernel:
        sizes = tuple(f"s{k}" for k in range(len(flat.sizes)))
        dtypes = {f"b{k}": dtype for k, dtype in enumerate(flat.dtypes)}
        schedules = self.memo.of("schedules", (flat,), lambda: _schedules(flat.nests, dtypes, self.target))
        if few is not None:
            schedules = tuple(in_small_tiles(s, few) if isinstance(s, GpuSchedule) else s for s in schedules)
        if approximate:
            schedules = tuple(replace(s, approximate=True) if isinstance(s, GpuSchedule) else s for s in schedules)
        text = repr((flat.nests, flat.dtypes, schedules))
        mark = hashlib.sha256(text.encode()).hexdigest()[:10]
        return Kernel(f"{self.title(step)}_{mark}", flat.nests, schedules, flat.dtypes, sizes)

    def title(self, step: tuple[Nest, ...]) -> str:
        """A readable name from the operations the nests come from."""
        names: list[str] = []
        for node in (node for nest in step for node in origins(nest)):
            parts = self.operations.get(node, "op").split(".")
            name = re.sub(r"\W", "", parts[1] if len(parts) > 1 else parts[0]).strip("_")
            if name and name not in names:
                names.append(name)
        return "_".join(names[:4]) or "kernel"


def _few_points(flat: Flat, target: Target | GpuTarget) -> int | None:
    """Points of a tile with which the few points of a loop, whose length is a parameter, are shared by enough programs;
    ``None`` where any tile does. A power of two, so that loops of about the same length share a kernel.
    """
    if not isinstance(target, GpuTarget) or len(flat.nests) != 1 or len(flat.nests[0].axes) != 1:
        return None
    extent = flat.nests[0].axes[0].extent
    if extent.is_int or not all(size.is_int for size in flat.sizes):
        return None
    return small_tile(int(extent.evaluate({f"s{k}": size.const for k, size in enumerate(flat.sizes)})), target)


def _schedules(
    nests: Sequence[Nest], dtypes: Mapping[str, str], target: Target | GpuTarget
) -> tuple[Schedule | GpuSchedule, ...]:
    """A schedule for each nest of a kernel; on a GPU they share one number of warps and stages."""
    if not isinstance(target, GpuTarget):
        return tuple(choose(nest, dtypes, target) for nest in nests)
    same = grouped(nests)
    if same is not None:
        held = {f"b{k}": dtypes[b] for k, b in enumerate(same.buffers[0])}
        return (choose_gpu(same.nest, held, target),) * len(nests)
    if len(nests) == 2 and paired_axes(*nests) is not None:
        first = choose_gpu(nests[0], dtypes, target)
        both = with_last_block(nests, first)
        assert both is not None, "such nests are grouped where a last program can join"
        return both
    found = [choose_gpu(nest, dtypes, target, len(nests) == 1) for nest in nests]
    warps, stages = max(s.warps for s in found), max(s.stages for s in found)
    return tuple(replace(s, warps=warps, stages=stages) for s in found)


def _general(flat: Flat) -> Flat:
    """Single flat loops with their length as a parameter, so that tensors of every size share a kernel."""
    if len(flat.nests) != 1:
        return flat
    (nest,) = flat.nests
    if len(nest.axes) != 1 or not nest.axes[0].extent.is_int:
        return flat
    if any(isinstance(e, Reduce | Scan) for e in nest.body):
        return flat
    axis = nest.axes[0]
    size = Size(f"s{len(flat.sizes)}", 1)
    general = Axis(axis.name, as_expr(size))
    if not _linear_in(nest, axis):
        return flat
    body = tuple(rename(eqn, {}, {axis: as_expr(general)}) for eqn in nest.body)
    made = Nest(nest.name, (general,), body)
    return Flat((made,), flat.buffers, flat.dtypes, (*flat.sizes, axis.extent))


def _streams(flat: Flat) -> Flat:
    """The random streams as parameters, so that layers which differ in nothing else share a kernel."""
    sizes = list(flat.sizes)
    nests: list[Nest] = []
    for nest in flat.nests:
        body: list[Equation] = []
        for eqn in nest.body:
            if isinstance(eqn, Random) and isinstance(eqn.stream, int):
                sizes.append(as_expr(eqn.stream))
                eqn = replace(eqn, stream=as_expr(Size(f"s{len(sizes) - 1}")))
            body.append(eqn)
        nests.append(Nest(nest.name, nest.axes, tuple(body)))
    return flat if len(sizes) == len(flat.sizes) else Flat(tuple(nests), flat.buffers, flat.dtypes, tuple(sizes))


def _linear_in(nest: Nest, axis: Axis) -> bool:
    """Whether every index of the nest is linear in the axis (no division that its length simplified)."""
    for eqn in nest.body:
        for expr in _indices(eqn):
            if expr.terms and expr.coefficient(axis) is None:
                return False
    return True


def _indices(eqn: object) -> Sequence[Expr]:
    index = getattr(eqn, "index", ())
    if isinstance(index, Expr):
        return (index,)
    expr = getattr(eqn, "expr", None)
    return (*index, expr) if isinstance(expr, Expr) else tuple(index)
