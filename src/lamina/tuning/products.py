"""Library product and pointwise kernel, or one kernel for both: the same part of a region in two plans, to be timed.

Of a product whose two estimates are close, scheduling makes a plan either way. Where they differ in nothing but one
launch of ours here and a library call with its readers there, both parts compute the same buffers from the same
buffers, and a clock can decide between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from lamina.ir.access import reads, writes
from lamina.ir.loops import Buffer, LibraryCall, storage_bytes
from lamina.ir.plan import Kernel, KernelCall, Plan, PlanStep
from lamina.schedule.memo import ProductEstimate
from lamina.schedule.memory import plan_memory

__all__ = ["Library", "ProductChoice", "close", "libraries", "product_choice"]

_SURE = 2.0
"""The library's estimate over ours from which no clock is asked."""


@dataclass(frozen=True, slots=True)
class Library:
    """What replaces a product kernel: ``steps`` of another plan with their ``kernels`` and all its ``buffers``.

    ``product`` is the name of the library call.
    """

    product: str
    steps: tuple[PlanStep, ...]
    kernels: tuple[Kernel, ...]
    buffers: Mapping[str, Buffer]

    @property
    def moved(self) -> int:
        """Bytes that its steps read and write, what passes between them included; 0 for what has no known size."""
        sizes = [storage_bytes(self.buffers[b]) for step in self.steps for b in reads(step) | writes(step)]
        return sum(n.const for n in sizes if n.is_int)

    def plan(self, name: str, names: Sequence[str]) -> Plan:
        """A region of its own that is given the buffers ``names``, those that it writes too; kernels end in ``name``.

        Raises ``ValueError`` if it reads something else.
        """
        made = {b for step in self.steps for b in writes(step)}
        library = {b for step in self.steps if isinstance(step, LibraryCall) for b in step.outs}
        if missing := {b for step in self.steps for b in reads(step)} - made - set(names):
            raise ValueError(f"{', '.join(sorted(missing))} is not at hand")
        inputs = tuple(None if n in library else n for n in names)
        used = dict.fromkeys((*names, *sorted(made)))
        buffers = tuple(replace(self.buffers[n], kind="input" if n in inputs else "temp") for n in used)
        kernels = tuple(replace(k, name=f"{k.name}_{name}") for k in self.kernels)
        steps = tuple(replace(s, kernel=f"{s.kernel}_{name}") if isinstance(s, KernelCall) else s for s in self.steps)
        places, arena = plan_memory(steps, buffers, inputs, (), lambda _: True)
        return Plan(f"library_{name}", inputs, buffers, kernels, steps, (), places, arena)


@dataclass(frozen=True, slots=True)
class ProductChoice:
    """What a clock is to decide: ``libraries`` of each product kernel, what the estimates prefer for each library call
    (``True``: our kernel), and the plan that follows once some are settled.
    """

    libraries: Mapping[str, list[Library]]
    preferred: Mapping[str, bool]
    replan: Callable[[Mapping[str, bool]], Plan]

    def refused(self, kernel: str) -> bool:
        """Whether the estimates prefer the library to this kernel."""
        return kernel in self.libraries and not all(self.preferred[lib.product] for lib in self.libraries[kernel])


def product_choice(
    plan: Plan,
    estimates: Mapping[str, ProductEstimate],
    replan: Callable[[Mapping[str, bool]], Plan],
    least: float,
) -> tuple[Plan, ProductChoice | None]:
    """The plan with our kernels wherever a clock is to be asked, and what it is to be asked; ``plan`` itself and None
    where the ``estimates`` of its products are sure. ``replan`` makes the plan with some products settled; ``least`` is
    the library's estimate over ours from which a clock is asked.
    """
    preferred = close(estimates, least)
    if not preferred:
        return plan, None
    made = {frozenset(preferred.items()): plan}

    def planned(settled: Mapping[str, bool]) -> Plan:
        known = frozenset(settled.items())
        if known not in made:
            made[known] = replan(settled)
        return made[known]

    theirs = planned(dict.fromkeys(preferred, False))
    ours = planned(dict.fromkeys(preferred, True))
    found = libraries(ours, theirs)
    covered = {lib.product for parts in found.values() for lib in parts}
    if not covered:
        return plan, None
    if covered != set(preferred):
        ours = planned({name: name in covered or preferred[name] for name in preferred})
        found = {name: parts for name, parts in found.items() if name in {k.name for k in ours.kernels}}
    return ours, ProductChoice(found, preferred, planned)


def close(estimates: Mapping[str, ProductEstimate], least: float) -> dict[str, bool]:
    """The products of which a clock should be asked: whether ours is taken now, by call."""
    return {
        name: one.is_ours
        for name, one in estimates.items()
        if least * one.ours_us <= one.library_us <= _SURE * one.ours_us
    }


def libraries(ours: Plan, theirs: Plan) -> dict[str, list[Library]]:
    """For each kernel of ``ours`` that replaces parts of ``theirs``, those parts, a launch each.

    Kernels with a launch of which no such part can be told are left out.
    """
    known = set(map(_identity, ours.steps))
    others = {_identity(step): step for step in theirs.steps if _identity(step) not in known}
    common = {b for step in ours.steps for b in writes(step)}
    kernels = {k.name: k for k in theirs.kernels}
    found: dict[str, list[Library] | None] = {}
    there = set(map(_identity, theirs.steps))
    for step in ours.steps:
        if isinstance(step, KernelCall) and _identity(step) not in there:
            part = _part(step, list(others.values()), common)
            calls = [s for s in part if isinstance(s, LibraryCall)]
            parts = found.setdefault(step.kernel, [])
            if len(calls) != 1 or parts is None:
                found[step.kernel] = None
                continue
            own = dict.fromkeys(s.kernel for s in part if isinstance(s, KernelCall))
            held = tuple(kernels[name] for name in own)
            parts.append(Library(calls[0].name, tuple(part), held, theirs.buffer_map()))
    return {name: parts for name, parts in found.items() if parts}


def _identity(step: PlanStep) -> tuple[object, ...]:
    if isinstance(step, KernelCall):
        return step.kernel, step.buffers, step.sizes
    return step.name, step.op, step.outs


def _part(call: KernelCall, steps: Sequence[PlanStep], common: set[str]) -> list[PlanStep]:
    """Those of ``steps`` that write what ``call`` writes, with what comes between; none where they write more."""
    wanted = set(call.writes)
    part: list[PlanStep] = []
    changed = True
    while changed:
        changed = False
        for step in steps:
            if step not in part and writes(step) & wanted:
                part.append(step)
                # What only the other plan has lies between its steps.
                wanted |= (reads(step) | writes(step)) - common - _inputs(step, steps)
                changed = True
    made = {b for step in part for b in writes(step)}
    if not set(call.writes) <= made or (made & common) - set(call.writes):
        return []
    return [step for step in steps if step in part]


def _inputs(step: PlanStep, steps: Sequence[PlanStep]) -> set[str]:
    """What a step reads and none of ``steps`` writes."""
    made = {b for other in steps for b in writes(other)}
    return set(reads(step)) - made
