"""Plans for a GPU whose kernels can be written: a nest that code generation refuses is planned again in parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lamina.base.reasons import Reason
from lamina.base.target import Target
from lamina.codegen.triton.emit import emit
from lamina.ir.plan import Kernel, KernelCall, Plan
from lamina.schedule.fuse import Fused
from lamina.schedule.memo import Memo
from lamina.schedule.plan import make_plan
from lamina.schedule.plan_times import total_us, waits
from lamina.schedule.reductions_apart import reduces_over_several
from lamina.schedule.work_reasons import REDUCTIONS_APART, REDUCTIONS_FASTER_APART

__all__ = ["written_plan"]


def written_plan(fused: Fused, target: Target, products: Mapping[str, bool] | None, memo: Memo) -> Plan:
    """``make_plan``, but for kernels that reduce over several sets of axes and cannot be written, or are expected to
    take much longer than one for each set.

    What cannot be written for another reason stays: the region runs that by itself.
    """
    plan = make_plan(fused, target, products, memo)
    several = [k for k in plan.kernels if any(map(reduces_over_several, k.nests))]
    refused = {k.name for k in several if not _is_written(k, target, memo)}
    apart = _nests(plan, refused, REDUCTIONS_APART())
    best = make_plan(fused, target, products, memo, apart) if apart else plan
    for kernel in several:
        if kernel.name not in refused and waits(plan, kernel, target):
            more = {**apart, **_nests(plan, {kernel.name}, REDUCTIONS_FASTER_APART())}
            other = make_plan(fused, target, products, memo, more)
            if _is_faster(best, other, target):
                best, apart = other, more
    return best


def _nests(plan: Plan, kernels: Collection[str], reason: Reason) -> dict[str, Reason]:
    """The nests of these kernels, by name."""
    steps = [s for s in plan.steps if isinstance(s, KernelCall) and s.kernel in kernels]
    return dict.fromkeys((nest.name for step in steps for nest in step.nests), reason)


def _is_faster(plan: Plan, other: Plan, target: Target) -> bool:
    """Whether the kernels that only the ``other`` plan has take half as long as those that only this one has."""
    ours, theirs = ({k.name for k in one.kernels} for one in (plan, other))
    before, after = total_us(plan, ours - theirs, target), total_us(other, theirs - ours, target)
    return before is not None and after is not None and after < before / 2


def _is_written(kernel: Kernel, target: Target, memo: Memo) -> bool:
    def written() -> bool:
        try:
            emit(kernel, target)
        except Exception:
            return False  # whatever it was: one kernel for each set of reduced axes is simpler
        return True

    return memo.of("written", (kernel.name,), written)
