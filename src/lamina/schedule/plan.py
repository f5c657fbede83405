"""Scheduling: a fused program becomes a Plan of canonical kernels, library calls and memory."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.base.target import Target
from lamina.ir.access import origins, writes
from lamina.ir.index import Axis, Expr, Size, as_expr
from lamina.ir.last_block import paired_axes
from lamina.ir.loops import Equation, LibraryCall, LoopProgram, Nest, Random, Reduce, Scan
from lamina.ir.plan import GpuSchedule, Kernel, KernelCall, Plan, PlanStep, Schedule
from lamina.schedule import work_reasons
from lamina.schedule.approximate import approximates, lost_to_rounding
from lamina.schedule.flatten import Flat, flatten
from lamina.schedule.fuse import Fused
from lamina.schedule.gpu import in_small_tiles
from lamina.schedule.grid_planning import GridPlanning
from lamina.schedule.loop_planning import LoopPlanning
from lamina.schedule.memo import Memo
from lamina.schedule.memory import plan_memory
from lamina.schedule.order import order
from lamina.schedule.plan_decisions import kernel_decisions, memory_decisions
from lamina.schedule.preserved import verify_kernel, verify_same_stores
from lamina.schedule.simplify import rename

__all__ = ["make_plan"]


def make_plan(
    fused: Fused,
    target: Target,
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
    memo = memo or Memo()
    planning = GridPlanning(target) if target.grids else LoopPlanning(target)
    program, cuts = planning.prepared(fused.program, products, memo, apart)
    if program is not fused.program:
        verify_same_stores(fused.program, program)
    made = {b.name for b in program.buffers} - {b.name for b in fused.program.buffers}
    approximate = lost_to_rounding(program, made) if target.approximate else frozenset[str]()
    table = _Kernels(program, planning, approximate, memo)
    ordered = order(program.steps, program.buffer_map(), program.inputs, program.outputs)
    steps = [table.step(group) for group in planning.grouped(program, ordered, memo)]
    places, arena = plan_memory(steps, program.buffers, program.inputs, program.outputs, planning.alone)
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


class _Kernels:
    """The distinct kernels of a program."""

    def __init__(
        self, program: LoopProgram, planning: LoopPlanning | GridPlanning, approximate: frozenset[str], memo: Memo
    ) -> None:
        self.approximate, self.memo = approximate, memo
        self.buffers = program.buffer_map()
        self.operations: Mapping[str, str] = {s.node: s.op for s in program.sources}
        self.planning = planning
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
        few = self.planning.few_points(flat)
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
        flat = self.planning.shaped(flatten(step, self.buffers))
        flat = _streams(_general(flat))
        verify_kernel(step, flat.nests, flat.buffers, flat.sizes)
        return flat

    def kernel(self, step: tuple[Nest, ...], flat: Flat, approximate: bool, few: int | None) -> Kernel:
        sizes = tuple(f"s{k}" for k in range(len(flat.sizes)))
        dtypes = {f"b{k}": dtype for k, dtype in enumerate(flat.dtypes)}
        schedules: tuple[Schedule | GpuSchedule, ...]
        schedules = self.memo.of("schedules", (flat,), lambda: self.planning.schedules(flat.nests, dtypes))
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
