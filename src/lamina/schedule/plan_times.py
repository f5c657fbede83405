"""How long the kernels of a plan for a GPU are expected to take, to compare plans of one program."""

from __future__ import annotations

from collections.abc import Collection

from lamina.base.target import Target
from lamina.ir.plan import GpuSchedule, Kernel, KernelCall, Plan
from lamina.schedule.gpu_facts import NestFacts
from lamina.schedule.gpu_refine import ExpectedTime
from lamina.schedule.gpu_work import LAUNCH

__all__ = ["total_us", "waiting_us", "waits"]


def waits(plan: Plan, kernel: Kernel, target: Target) -> bool:
    """Whether a kernel is expected to take four times as long as what it moves and computes: others are looked at."""
    expected = _expected(plan, kernel, target)
    return expected is not None and _is_far(*expected, 4.0, target)


def waiting_us(kernel: Kernel, call: KernelCall, target: Target) -> float:
    """Microseconds that one launch is expected to take, if that is twelve times what it moves and computes; else 0.

    What registers and few programs cost is estimated roughly.
    """
    expected = _of_call(kernel, call, target)
    return expected[0] if expected is not None and _is_far(*expected, 12.0, target) else 0.0


def _is_far(microseconds: float, least: float, times: float, target: Target) -> bool:
    """Whether it is so many times the ``least``, and more than what some launches take."""
    return microseconds > max(times * least, least + 5 * _launch_us(target))


def _launch_us(target: Target) -> float:
    return LAUNCH / (1e3 * target.copy_gbs)


def total_us(plan: Plan, names: Collection[str], target: Target) -> float | None:
    """Microseconds of these kernels, their launches included; None where sizes or schedules say nothing of it."""
    total = 0.0
    for kernel in plan.kernels:
        if kernel.name in names:
            expected = _expected(plan, kernel, target)
            if expected is None:
                return None
            total += expected[0] + _launch_us(target)
    return total


def _expected(plan: Plan, kernel: Kernel, target: Target) -> tuple[float, float] | None:
    """Microseconds of the kernel's longest launch, and those of its bytes and instructions alone."""
    found = [
        _of_call(kernel, call, target)
        for call in plan.steps
        if isinstance(call, KernelCall) and call.kernel == kernel.name
    ]
    known = [one for one in found if one is not None]
    return max(known) if found and len(known) == len(found) else None


def _of_call(kernel: Kernel, call: KernelCall, target: Target) -> tuple[float, float] | None:
    if not all(size.is_int for size in call.sizes):
        return None
    sizes = {f"s{k}": size.const for k, size in enumerate(call.sizes)}
    dtypes = {f"b{k}": dtype for k, dtype in enumerate(kernel.dtypes)}
    microseconds = least = 0.0
    for nest, schedule in zip(kernel.nests, kernel.schedules, strict=True):
        if not isinstance(schedule, GpuSchedule) or schedule.kind == "product":
            return None
        extents = {axis.name: int(axis.extent.evaluate(sizes)) for axis in nest.axes}
        expected = ExpectedTime(NestFacts(nest, dtypes, target), extents)
        microseconds += expected(schedule)
        least += expected.least
    return microseconds, least
