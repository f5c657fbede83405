"""Which stage of a region, from its graph to its host program, is the first that gives other values than the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from lamina.base.accuracy import judge_alone
from lamina.base.decision import Decision
from lamina.base.reference import copied, in_double
from lamina.blame.found import Blame
from lamina.blame.kernel_lines import line_of_store
from lamina.blame.memory import overlapping, unshared
from lamina.blame.observed import RegionCall
from lamina.blame.rewrites import least
from lamina.blame.values import Reference, Values, evaluated, with_results
from lamina.first_call.steps import Recorded, compared, first_step, recorded
from lamina.ir.access import origins, provenance, writes
from lamina.ir.loops import LoopProgram, Nest, Store
from lamina.ir.loops_interp import ProgramRun, run_nest
from lamina.ir.plan import KernelCall, Plan
from lamina.ir.plan_interp import PlanRun
from lamina.options import Options
from lamina.record import Record
from lamina.schedule.fuse import STEPS, Fused, Fusion

__all__ = ["blamed_region"]


def blamed_region(call: RegionCall, record: Record, settings: Options, folder: str = "") -> tuple[Blame | None, str]:
    """The stage at fault in a region whose first call gave other values than its graph; None where it did not.

    Kernels' sources are written to ``folder``. The second value says what could not be evaluated.
    """
    region = _Region(call, record, settings, folder)
    complaint = region.reference.complaint(call.raised or [*call.outputs, *call.after])
    if not complaint:
        return None, ""
    try:
        return region.blamed(complaint), ""
    except Exception as problem:
        where = f"{region.doing}: {type(problem).__name__}: {problem}"
        return Blame("code generation", call.name, text=complaint), f"{call.name} could not be evaluated in {where}"


class _Region:
    """One region with what its graph gives, and the stages that were made of it."""

    def __init__(self, call: RegionCall, record: Record, settings: Options, folder: str) -> None:
        self.call, self.settings, self.folder = call, settings, folder
        self.stages = [s for s in record.stages if s.region == call.name]
        self.reference = Reference.of(lambda wide: evaluated(call.gm, call.inputs, call.generators, wide))
        self.doing = "its graph"

    def blamed(self, complaint: str) -> Blame:
        """The first stage that differs from the graph."""
        programs = [(s.name, s.value) for s in self.stages if isinstance(s.value, LoopProgram)]
        lowered = next(p for name, p in programs if name == "lower")
        self.doing = "lowering"
        if text := self.complaint(lowered):
            return self.in_program("lowering", "", lowered, text)
        program = lowered
        for _, rewritten in programs:
            if rewritten is not lowered and (text := self.complaint(rewritten)):
                return self.in_program("rewrite of loops", "", rewritten, text)
            program = rewritten
        return self.of_fusion(program) or self.of_plan() or self.of_code(complaint)

    def complaint(self, program: LoopProgram) -> str:
        """How the values of a program differ from the graph's."""
        return self.reference.complaint(self.run(lambda given: ProgramRun(program, given).run()))

    def run(self, function: Callable[[list[Any]], Any]) -> Values:
        """What ``function`` gives from the region's inputs, and these afterwards."""
        return with_results(function, self.call.inputs, self.call.generators)

    def of_fusion(self, program: LoopProgram) -> Blame | None:
        """The sub-pass of fusion after which the program gives other values, and what of it."""
        fusion = Fusion(program, self.settings.numerics)
        for number, (name, step) in enumerate(STEPS):
            self.doing = f"fusion, {name}"
            before, decided = fusion.program, len(fusion.decisions)
            step(fusion)
            if fusion.program == before or not (text := self.complaint(fusion.program)):
                continue
            taken = [d for d in fusion.decisions[decided:] if d.taken]
            joins = sum(d.kind == "fuse" for d in taken)
            if step not in (Fusion.grouped, Fusion.regrouped) or not joins:
                return self.in_program("fusion", name, fusion.program, text, taken)
            return self.of_group(program, number, joins, text)
        fused = next((s.value for s in self.stages if isinstance(s.value, Fused)), None)
        if fused is not None and fused.program != fusion.program and (text := self.complaint(fused.program)):
            return self.in_program("fusion", "", fused.program, text)
        return None

    def of_group(self, program: LoopProgram, number: int, joins: int, text: str) -> Blame:
        """The first two groups of nests whose joining changes values."""

        def grouped(most: int) -> Fusion:
            fusion = Fusion(program, self.settings.numerics, most)
            for _, step in STEPS[: number + 1]:
                step(fusion)
            return fusion

        count = least(joins, lambda most: bool(self.complaint(grouped(most).program)))
        fusion = grouped(count)
        taken = [d for d in fusion.decisions if d.taken and d.kind == "fuse"]
        last = taken[-1]
        text = self.complaint(fusion.program) or text
        found = self.in_program("fusion", STEPS[number][0], fusion.program, text, [last])
        return replace(found, application=count, subject=tuple(map(str, last.subject)), decisions=(last,))

    def in_program(
        self, stage: str, step: str, program: LoopProgram, text: str, decisions: Sequence[Decision] = ()
    ) -> Blame:
        """The blame of a program, with the first nest or call of it that stores what no node has."""
        blame = Blame(stage, self.call.name, step, text=text, decisions=tuple(decisions[:3]))
        aten, exact = self.recorded()
        run = ProgramRun(program, copied(self.call.inputs))
        self.call.generators.again()
        with torch.no_grad():
            found = next(_departures(program.steps, run, aten, exact), None)
        if found is None:
            return blame
        at, name, how = found
        sources = {s.node: s for s in program.sources}
        label = at.name if isinstance(at, Nest) else at.op
        about = [d for d in decisions if {label, name} & set(map(str, d.subject))]
        operation = ""
        if stage == "lowering":
            nodes = _stored_for(at, name) or list(origins(at))
            operation = next((sources[n].op for n in nodes if n in sources), "")
        return replace(
            blame,
            step=step or operation,
            subject=tuple(dict.fromkeys((label, name))),
            place=provenance(_stored_for(at, name) or origins(at), sources),
            text=how,
            decisions=tuple(about[:3] or decisions[:3]),
        )

    def recorded(self) -> tuple[Recorded, Recorded | None]:
        """The values of the graph's nodes by ATen, and in double precision where it runs so."""
        call = self.call
        with torch.no_grad():
            call.generators.again()
            aten = recorded(call.gm, copied(call.inputs))
            call.generators.again()
            try:
                with in_double():
                    exact = recorded(call.gm, copied(call.inputs, wide=True))
            except Exception:
                return aten, None
        return aten, exact

    def of_plan(self) -> Blame | None:
        """What of the plan gives other values: its memory, its kernels' loops, or the order of its steps."""
        plan = next((s.value for s in reversed(self.stages) if isinstance(s.value, Plan)), None)
        if plan is None:
            return None
        self.doing = "the plan"
        text = self.reference.complaint(self.run(lambda given: PlanRun(plan, given).run()))
        if not text:
            return None
        name = self.call.name
        apart = unshared(plan)
        if not self.reference.complaint(self.run(lambda given: PlanRun(apart, given).run())):
            pairs = overlapping(plan)
            subject = pairs[0] if pairs else ()
            how = "two buffers that are both needed lie in one memory" if pairs else text
            return Blame("memory planning", name, "buffer reuse", 0, subject, self.place(plan, subject), how)
        if not self.reference.complaint(self.run(lambda given: _CalledNests(apart, given).run())):
            step = self.wrong_kernel(apart)
            if step is not None:
                sources = {s.node: s for s in plan.sources}
                return Blame(
                    "scheduling",
                    name,
                    "loops of the kernel",
                    0,
                    (step.kernel, step.name),
                    provenance(origins(step), sources),
                    text,
                    decisions=_about(plan.decisions, (step.name,)),
                )
        aten, exact = self.recorded()
        run = PlanRun(apart, copied(self.call.inputs))
        self.call.generators.again()
        with torch.no_grad():
            found = next(_departures(plan.steps, run, aten, exact), None)
        if found is None:
            return Blame("scheduling", name, text=text)
        at, buffer, how = found
        label = at.kernel if isinstance(at, KernelCall) else getattr(at, "op", "")
        sources = {s.node: s for s in plan.sources}
        return Blame("scheduling", name, label, 0, (buffer,), provenance(origins(at), sources), how)

    def place(self, plan: Plan, buffers: Sequence[str]) -> str:
        """The user's lines of the steps that write ``buffers``."""
        sources = {s.node: s for s in plan.sources}
        found = [origin for step in plan.steps if writes(step) & set(buffers) for origin in origins(step)]
        return provenance(dict.fromkeys(found), sources)

    def wrong_kernel(self, plan: Plan) -> KernelCall | None:
        """The first launch whose kernel does not do what the nests do that it was made of."""
        run = _BothNests(plan, copied(self.call.inputs))
        self.call.generators.again()
        with torch.no_grad():
            for step in plan.steps:
                run.step(step)
                if run.wrong is not None:
                    return run.wrong
        return None

    def of_code(self, complaint: str) -> Blame:
        """The kernel whose code is wrong, by running them one by one; the host program where none is."""
        self.doing = "its kernels"
        call = self.call
        loaded = call.steps()
        if loaded is None:
            return Blame("code generation", call.name, text=complaint)
        aten, exact = self.recorded()
        call.generators.again()
        with torch.no_grad():
            found = first_step(loaded, copied(call.inputs), aten, exact, self.folder)
        if found is None:
            return Blame("host program", call.name, text=complaint)
        stage = {"lowering": "scheduling"}.get(found.stage, found.stage)
        line = 0
        if found.file:
            source = Path(found.file).read_text(encoding="utf-8")
            step = next(s for s in loaded.plan.steps if isinstance(s, KernelCall) and s.kernel == found.kernel)
            line = line_of_store(source, step, found.value)
        return Blame(stage, call.name, found.kernel, 0, (found.value,), found.place, found.text, found.file, line)


class _CalledNests(PlanRun):
    """A plan whose launches run the nests that its kernels were made of."""

    def launch(self, step: KernelCall) -> None:
        for nest in step.nests:
            run_nest(nest, self.tensors, self.sizes)


class _BothNests(PlanRun):
    """Runs the nests that kernels were made of, and each kernel beside them; notes the first launch that differs."""

    wrong: KernelCall | None = None

    def launch(self, step: KernelCall) -> None:
        kernel = self.kernels[step.kernel]
        flats = {f"b{i}": self.flat(name).clone() for i, name in enumerate(step.buffers)}
        for nest in kernel.nests:
            run_nest(nest, flats, dict(zip(kernel.sizes, self.numbers(step.sizes), strict=True)))
        for nest in step.nests:
            run_nest(nest, self.tensors, self.sizes)
        for i, name in enumerate(step.buffers):
            if name in step.writes and self.wrong is None and judge_alone(flats[f"b{i}"], self.flat(name)):
                self.wrong = step


def _about(decisions: Sequence[Decision], names: Sequence[str]) -> tuple[Decision, ...]:
    return tuple(d for d in decisions if set(names) & set(map(str, d.subject)))[:3]


def _stored_for(step: Any, name: str) -> list[str]:
    """The nodes that stores to a buffer come from."""
    nests: Sequence[Nest] = step.nests if isinstance(step, KernelCall) else (step,) if isinstance(step, Nest) else ()
    stores = (e for nest in nests for e in nest.body if isinstance(e, Store) and e.buffer == name)
    return list(dict.fromkeys(node for e in stores for node in e.origin))


def _departures(
    steps: Sequence[Any], run: Any, aten: Recorded, exact: Recorded | None
) -> Iterator[tuple[Any, str, str]]:
    """Steps, run one after the other, with the buffers in which they leave what none of their nodes has."""
    last = {name: at for at, step in enumerate(steps) for name in writes(step)}
    for at, step in enumerate(steps):
        try:
            run.step(step)
        except Exception as error:
            yield step, next(iter(sorted(writes(step))), ""), f"it raises {type(error).__name__}: {error}"
            return
        for name in sorted(writes(step)):
            nodes = _stored_for(step, name)
            if last[name] == at:
                nodes = [name, *nodes]
            if text := compared(run.tensors[name], nodes, aten, exact):
                yield step, name, text
