"""Plans as Python text; running the text gives an equal value."""

from __future__ import annotations

from collections.abc import Iterable

from lamina.base.decision import Decision
from lamina.base.files import files
from lamina.base.text import Writer, literal, tuple_text
from lamina.ir.access import origins
from lamina.ir.expressions import program_exprs, step_exprs
from lamina.ir.index import Expr
from lamina.ir.loops_print import HEADER, Printer, evaluate, literal_tuple, tuple_of_strings
from lamina.ir.plan import GpuSchedule, Kernel, KernelCall, Place, Plan, PlanStep, Schedule

__all__ = ["print_plan", "read_plan"]


def print_plan(plan: Plan) -> str:
    """Python text that defines ``plan``. Linear in its size."""
    out = Writer()
    printer = Printer(out, plan.sources)
    counts = f"kernels: {len(plan.kernels)}, launches: {plan.kernel_count}, library calls: {plan.library_count}"
    out.line(f'"""Plan {printer.comment_safe(plan.name)}; {counts}."""')
    out.line(HEADER)
    out.line()
    printer.declare_sizes(_exprs(plan), ())
    printer.listing("buffers", (printer.buffer(b) for b in plan.buffers))
    printer.listing("places", (_place(printer, p) for p in plan.places))
    kernels = [_kernel(printer, kernel) for kernel in plan.kernels]
    steps = [_step(printer, step) for step in plan.steps]
    printer.listing("decisions", (_decision(d) for d in plan.decisions))
    printer.listing("sources", (f"Source{tuple_of_strings(s.node, s.op, s.place)}" for s in plan.sources))
    with out.indent("plan = Plan(", ")"):
        out.line(f"{plan.name!r},")
        out.line(f"{printer.inputs(plan.inputs)},")
        out.line("buffers,")
        out.line(f"{tuple_text(kernels)},")
        out.line(f"{tuple_text(steps)},")
        out.line(f"{tuple_text(printer.output(o) for o in plan.outputs)},")
        out.line("places,")
        out.line(f"{printer.expr(plan.arena_bytes)},")
        out.line("decisions,")
        out.line("sources,")
    return out.text()


@files.register(Plan)
def _plan_files(plan: Plan) -> dict[str, str]:
    return {".py": print_plan(plan)}


def read_plan(text: str) -> Plan:
    """The plan that ``text`` defines. The text is executed: read only what you would run."""
    found = evaluate(text, "plan")
    assert isinstance(found, Plan)
    return found


def _exprs(plan: Plan) -> Iterable[Expr]:
    yield from program_exprs(plan.buffers, plan.inputs, plan.outputs)
    yield plan.arena_bytes
    yield from (p.offset for p in plan.places if p.offset is not None)
    for kernel in plan.kernels:
        for nest in kernel.nests:
            yield from step_exprs(nest)
    for step in plan.steps:
        if isinstance(step, KernelCall):
            yield from step.sizes
            for nest in step.nests:
                yield from step_exprs(nest)
        else:
            yield from step_exprs(step)


def _place(printer: Printer, place: Place) -> str:
    offset = "" if place.offset is None else f", {printer.expr(place.offset)}"
    return f"Place({place.buffer!r}, {place.where!r}{offset})"


def _kernel(printer: Printer, kernel: Kernel) -> str:
    nests = [printer.nest_variable(nest, f"{kernel.name}_nest") for nest in kernel.nests]
    name, out = printer.fresh(kernel.name), printer.out
    with out.indent(f"{name} = Kernel(", ")"):
        out.line(f"{kernel.name!r},")
        out.line(f"{tuple_text(nests)},")
        with out.indent("(", "),"):
            for schedule in kernel.schedules:
                out.line(f"{_schedule(schedule)},")
        out.line(f"{literal_tuple(kernel.dtypes)},")
        out.line(f"{literal_tuple(kernel.sizes)},")
    out.line()
    return name


def _schedule(s: Schedule | GpuSchedule) -> str:
    if isinstance(s, GpuSchedule):
        return repr(s)
    rest = [f"vector={s.vector!r}"] if s.vector is not None else []
    rest += [f"width={s.width}"] if s.width else []
    rest += [f"tile={tuple_text(f'({axis!r}, {size})' for axis, size in s.tile)}"] if s.tile else []
    rest += [f"kept={literal_tuple(s.kept)}"] if s.kept else []
    rest += [f"parallel={s.parallel}"] if s.parallel else []
    rest += ["prefetch=True"] if s.prefetch else []
    rest += [f"unroll={s.unroll}"] if s.unroll else []
    rest += ["nontemporal=True"] if s.nontemporal else []
    return f"Schedule({', '.join([repr(s.kind), literal_tuple(s.outer), literal_tuple(s.inner), *rest])})"


def _step(printer: Printer, step: PlanStep) -> str:
    if not isinstance(step, KernelCall):
        return printer.step(step)
    nests = [printer.nest_variable(nest, nest.name) for nest in step.nests]
    name, out = printer.fresh(step.name), printer.out
    with out.indent(f"{name} = KernelCall({printer.comment(origins(step))}", ")"):
        out.line(f"{step.name!r}, {step.kernel!r},")
        buffers, writes = literal_tuple(step.buffers), literal_tuple(step.writes)
        out.line(f"{buffers}, {printer.dims(step.sizes)}, {writes},", origins(step))
        out.line(f"{tuple_text(nests)},")
    out.line()
    return name


def _decision(d: Decision) -> str:
    facts = f", {tuple_text(f'({name!r}, {literal(value)})' for name, value in d.facts)}" if d.facts else ""
    reason = f"Reason{tuple_of_strings(d.reason, d.code, d.remedy)}"
    return f"Decision({d.kind!r}, {literal_tuple(d.subject)}, {d.taken}, {reason}{facts})"
