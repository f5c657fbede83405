"""Plans for a GPU whose kernels can be written: a nest that code generation refuses is planned again in parts."""

from __future__ import annotations

from collections.abc import Mapping

from lamina.codegen.triton.emit import emit
from lamina.ir.plan import Kernel, KernelCall, Plan
from lamina.schedule.fuse import Fused
from lamina.schedule.gpu_target import GpuTarget
from lamina.schedule.memo import Memo
from lamina.schedule.plan import make_plan
from lamina.schedule.reductions_apart import reduces_over_several

__all__ = ["written_plan"]


def written_plan(fused: Fused, target: GpuTarget, products: Mapping[str, bool] | None, memo: Memo) -> Plan:
    """``make_plan``, without nests of reductions over several sets of axes for which no kernel can be written.

    Such a nest is taken apart. What cannot be written for another reason stays: the region runs that by itself.
    """
    plan = make_plan(fused, target, products, memo)
    several = [k for k in plan.kernels if any(map(reduces_over_several, k.nests))]
    refused = {k.name for k in several if not _is_written(k, target, memo)}
    apart = {n.name for s in plan.steps if isinstance(s, KernelCall) and s.kernel in refused for n in s.nests}
    return make_plan(fused, target, products, memo, apart) if apart else plan


def _is_written(kernel: Kernel, target: GpuTarget, memo: Memo) -> bool:
    def written() -> bool:
        try:
            emit(kernel, target)
        except Exception:
            return False  # whatever it was: one kernel for each set of reduced axes is simpler
        return True

    return memo.of("written", (kernel.name,), written)
