"""What makes a plan valid: kernels and their calls agree, memory is not shared by what lives at once, order holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lamina.errors import InvalidIR
from lamina.ir.access import reads, views, writes
from lamina.ir.index import Expr
from lamina.ir.last_block import paired_axes
from lamina.ir.library import OUT_VARIANTS, may_alias
from lamina.ir.loops import Buffer, BufferView, LibraryCall, Load, Reduce, Store, storage_bytes
from lamina.ir.loops_verify import known_sizes, verify_call, verify_declarations, verify_sizes
from lamina.ir.nest_verify import verify_nest
from lamina.ir.plan import GpuSchedule, Kernel, KernelCall, Place, Plan, Schedule

__all__ = ["verify_plan"]

_KINDS = ("pointwise", "rows", "columns", "mixed", "scan", "serial")
_UNROLLS = (0, 1, 2, 4, 8)
_GPU_KINDS = ("pointwise", "rows", "loops", "columns", "mixed", "scan", "product")


def verify_plan(plan: Plan) -> None:
    """Raise ``InvalidIR`` unless the plan obeys every rule."""
    buffers = verify_declarations(plan.name, plan.buffers, plan.inputs, plan.outputs)
    sizes = known_sizes(plan.inputs, buffers)
    kernels: dict[str, Kernel] = {}
    for kernel in plan.kernels:
        if kernel.name in kernels:
            raise InvalidIR(f"{plan.name}: two kernels are called {kernel.name}")
        kernels[kernel.name] = kernel
        _kernel(kernel)
    for step in plan.steps:
        if isinstance(step, KernelCall):
            _call(step, kernels, buffers, sizes)
        else:
            verify_call(step, buffers, sizes)
    _order(plan)
    places = _places(plan, buffers, sizes)
    _overlaps(plan, buffers, places)


def _kernel(kernel: Kernel) -> None:
    what = f"kernel {kernel.name}"
    if len(kernel.schedules) != len(kernel.nests):
        raise InvalidIR(f"{what} has {len(kernel.nests)} nests and {len(kernel.schedules)} schedules")
    top = 1 << 62
    flat = {f"b{k}": Buffer(f"b{k}", dtype, (_int(top),), (_int(1),)) for k, dtype in enumerate(kernel.dtypes)}
    for nest, schedule in zip(kernel.nests, kernel.schedules, strict=True):
        verify_nest(nest, flat, set(kernel.sizes))
        names = {axis.name for axis in nest.axes}
        if isinstance(schedule, GpuSchedule):
            _gpu_schedule(what, schedule, names)
        else:
            _schedule(what, schedule, names, {n for e in nest.body for n in _outs(e)})
    if any(isinstance(s, GpuSchedule) and s.last_block for s in kernel.schedules):
        marks = [isinstance(s, GpuSchedule) and s.last_block for s in kernel.schedules]
        if marks != [False, True] or paired_axes(*kernel.nests) is None:
            raise InvalidIR(f"{what}: only the second of two nests may join what programs of the first leave")
    used = {e.buffer for nest in kernel.nests for e in nest.body if isinstance(e, Load | Store)}
    if idle := flat.keys() - used:
        raise InvalidIR(f"{what} never touches {_list(idle)}")


def _int(value: int) -> Expr:
    return Expr((), value)


def _outs(eqn: object) -> tuple[str, ...]:
    if isinstance(eqn, Reduce):
        return eqn.outs
    name = getattr(eqn, "out", None)
    return (name,) if isinstance(name, str) else ()


def _schedule(what: str, s: Schedule, axes: set[str], values: set[str]) -> None:
    if s.kind not in _KINDS:
        raise InvalidIR(f"{what}: no schedule is of kind {s.kind!r}")
    named = (*s.outer, *s.inner)
    if set(named) != axes or len(named) != len(axes):
        raise InvalidIR(f"{what}: the schedule iterates over {_list(named)}; the axes are {_list(axes)}")
    strange = {axis for axis, _ in s.tile} | ({s.vector} if s.vector is not None else set())
    if strange - axes:
        raise InvalidIR(f"{what}: the schedule tiles or vectorises {_list(strange - axes)}, no axis of it")
    if set(s.kept) - values:
        raise InvalidIR(f"{what}: the schedule keeps {_list(set(s.kept) - values)}, no value of it")
    if any(size < 1 for _, size in s.tile) or len({axis for axis, _ in s.tile}) != len(s.tile):
        raise InvalidIR(f"{what}: the schedule's tiles are {s.tile}")
    if s.unroll not in _UNROLLS:
        raise InvalidIR(f"{what}: the schedule unrolls {s.unroll} times, not one of {', '.join(map(str, _UNROLLS))}")
    if (s.width > 0) != (s.vector is not None):
        raise InvalidIR(f"{what}: the schedule's vectors have {s.width} bytes along {s.vector}")
    if s.vector is not None and s.vector != named[-1]:
        raise InvalidIR(f"{what}: the schedule's vector axis {s.vector} is not the innermost")
    if s.nontemporal and not s.width:
        raise InvalidIR(f"{what}: the schedule stores past the caches, and has no vectors")


def _gpu_schedule(what: str, s: GpuSchedule, axes: set[str]) -> None:
    if s.kind not in _GPU_KINDS:
        raise InvalidIR(f"{what}: no GPU schedule is of kind {s.kind!r}")
    named = [axis for block in s.blocks for axis in block.axes]
    if set(named) != axes or len(named) != len(axes):
        raise InvalidIR(f"{what}: the schedule iterates over {_list(named)}; the axes are {_list(axes)}")
    for block in s.blocks:
        if block.role not in ("grid", "loop", "whole", "cluster") or not block.axes:
            raise InvalidIR(f"{what}: a block of axes {_list(block.axes)} has the role {block.role!r}")
        if block.size < 1 or block.size & (block.size - 1):
            raise InvalidIR(f"{what}: the block of {_list(block.axes)} has {block.size} points, no power of two")
    if s.cluster and (s.cluster not in range(2, 9) or sum(b.role == "loop" for b in s.blocks) != 1):
        raise InvalidIR(f"{what}: a cluster of {s.cluster} programs shares a loop; it has two to eight, and one loop")
    if s.warps not in (1, 2, 4, 8, 16, 32) or s.stages < 1:
        raise InvalidIR(f"{what}: a program has {s.warps} warps and {s.stages} stages")


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def _call(call: KernelCall, kernels: Mapping[str, Kernel], buffers: Mapping[str, Buffer], sizes: set[str]) -> None:
    what = f"kernel call {call.name}"
    kernel = kernels.get(call.kernel)
    if kernel is None:
        raise InvalidIR(f"{what}: no kernel is called {call.kernel}")
    if (len(call.buffers), len(call.sizes)) != (len(kernel.dtypes), len(kernel.sizes)):
        counts = f"{len(call.buffers)} buffers and {len(call.sizes)} sizes"
        wanted = f"{len(kernel.dtypes)} buffers and {len(kernel.sizes)} sizes"
        raise InvalidIR(f"{what} gives {counts}; {kernel.name} takes {wanted}")
    for name, dtype in zip(call.buffers, kernel.dtypes, strict=True):
        if name not in buffers:
            raise InvalidIR(f"{what} refers to the unknown buffer {name}")
        if buffers[name].dtype != dtype:
            raise InvalidIR(f"{what}: {name} holds {buffers[name].dtype}, {kernel.name} takes {dtype}")
    for expr in call.sizes:
        verify_sizes(what, expr, sizes)
    stored = {call.buffers[int(e.buffer[1:])] for nest in kernel.nests for e in nest.body if isinstance(e, Store)}
    if stored != set(call.writes):
        raise InvalidIR(f"{what} says it writes {_list(call.writes)}; {kernel.name} stores to {_list(stored)}")


def _order(plan: Plan) -> None:
    written = {item for item in plan.inputs if isinstance(item, str)}
    empty = {b.name for b in plan.buffers if any(n == 0 for n in b.shape)}
    steps: list[LibraryCall] = []
    for step in plan.steps:
        # What a kernel stores before it loads counts as written by it.
        # So does what a call overwrites, which may be memory that was never set.
        missing = reads(step) - written - empty - (writes(step) if isinstance(step, KernelCall) else set(step.mutates))
        if missing:
            raise InvalidIR(f"{step.name} reads buffer {sorted(missing)[0]} before anything is written to it")
        written |= writes(step)
        if isinstance(step, LibraryCall):
            steps.append(step)
    made = [out for step in steps for out in step.outs if out is not None]
    if len(set(made)) != len(made):
        raise InvalidIR(f"{plan.name}: two library calls make one buffer")
    for out in plan.outputs:
        if isinstance(out, BufferView) and out.buffer not in written | empty:
            raise InvalidIR(f"{plan.name}: nothing is written to the output buffer {out.buffer}")


def _places(plan: Plan, buffers: Mapping[str, Buffer], sizes: set[str]) -> dict[str, Place]:
    places: dict[str, Place] = {}
    given = {item for item in plan.inputs if isinstance(item, str)}
    library = {
        out
        for step in plan.steps
        if isinstance(step, LibraryCall) and step.op not in OUT_VARIANTS
        for out in step.outs
        if out is not None
    }
    for place in plan.places:
        name = place.buffer
        if name in places or name not in buffers:
            raise InvalidIR(f"{plan.name}: buffer {name} {'has two places' if name in places else 'does not exist'}")
        places[name] = place
        if place.where not in ("input", "output", "library", "arena"):
            raise InvalidIR(f"{plan.name}: buffer {name} lives in an unknown place, {place.where!r}")
        if (place.where == "input") != (name in given):
            raise InvalidIR(f"{plan.name}: buffer {name} lives with the inputs but is none, or the other way round")
        if (place.where == "library") != (name in library):
            raise InvalidIR(f"{plan.name}: buffer {name} is made by a library call or it is not, and its place differs")
        if (place.where == "arena") != (place.offset is not None):
            raise InvalidIR(f"{plan.name}: buffer {name} has an offset only if it lives in the arena")
        if place.offset is not None:
            verify_sizes(f"{plan.name}: the offset of {name}", place.offset, sizes)
            if place.offset.is_int and (place.offset.const < 0 or place.offset.const % 64):
                raise InvalidIR(f"{plan.name}: the offset of {name}, {place.offset}, is no multiple of 64")
    for step in plan.steps:
        for name in sorted(reads(step) | writes(step)):
            if name not in places:
                raise InvalidIR(f"{plan.name}: buffer {name}, used by {step.name}, has no place")
    for out in plan.outputs:
        if isinstance(out, BufferView) and places[out.buffer].where == "arena":
            raise InvalidIR(f"{plan.name}: output buffer {out.buffer} lives in the arena, where it is overwritten")
    return places


def _overlaps(plan: Plan, buffers: Mapping[str, Buffer], places: Mapping[str, Place]) -> None:
    """Buffers of the arena that live at once share no byte, and all end inside it. Symbolic offsets are compared
    with each other only as far as they are equal.
    """
    spans = _spans(plan)
    items = []
    for name, place in places.items():
        if place.offset is None or name not in spans:
            continue
        size = storage_bytes(buffers[name])
        end = place.offset + size
        if end.is_int and plan.arena_bytes.is_int and end.const > plan.arena_bytes.const:
            raise InvalidIR(f"{plan.name}: buffer {name} ends at byte {end} of {plan.arena_bytes} of the arena")
        items.append((*spans[name], name, place.offset, size))
    items.sort(key=lambda item: item[0])
    alive: list[tuple[int, int, str, Expr, Expr]] = []
    for item in items:
        alive = [other for other in alive if other[1] >= item[0]]
        for other in alive:
            if _meet(item[3], item[4], other[3], other[4]):
                raise InvalidIR(f"{plan.name}: buffers {other[2]} and {item[2]} live at once in the same bytes")
        alive.append(item)


def _meet(start: Expr, size: Expr, other: Expr, length: Expr) -> bool:
    if size == 0 or length == 0:
        return False
    if start == other:
        return True
    if all(e.is_int for e in (start, size, other, length)):
        return start.const < other.const + length.const and other.const < start.const + size.const
    return False


def _spans(plan: Plan) -> dict[str, tuple[int, int]]:
    """First and last step that touches each buffer; an argument lives as long as a result that may be its view."""
    spans: dict[str, tuple[int, int]] = {}
    for at, step in enumerate(plan.steps):
        for name in reads(step) | writes(step):
            spans[name] = (spans.get(name, (at, at))[0], at)
    for step in reversed(plan.steps):
        if isinstance(step, LibraryCall) and may_alias(step.op):
            last = max((spans[out][1] for out in step.outs if out is not None), default=0)
            for view in views(step):
                first, end = spans[view.buffer]
                spans[view.buffer] = (first, max(end, last))
    return spans
