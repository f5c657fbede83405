"""Whether a region's kernels had been compiled before, and if not, what differs from what had been, as decisions."""

from __future__ import annotations

from collections.abc import Iterator

from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.runtime import reasons
from lamina.runtime.build import BuildResult
from lamina.runtime.nearest import MissedKernel
from lamina.runtime.triton_build import TritonBuild

__all__ = ["kept_kernels"]


def kept_kernels(region: str, built: BuildResult | TritonBuild) -> Iterator[Decision]:
    """One that is taken if no compiler ran for ``region``, then one for each part of keys by which kernels differ.

    The facts have numbers of kernels, and both values.
    """
    count = built.reused + built.compiled
    damaged = [miss.reason for miss in built.damages]
    if not built.compiled:
        reason = reasons.ALL_KEPT(count=count)
    elif damaged:
        reason = reasons.COMPILED_AGAIN(compiled=built.compiled, count=count, why=damaged[0])
    else:
        reason = reasons.COMPILED(compiled=built.compiled, count=count)
    facts = (("reused", built.reused), ("compiled", built.compiled), ("damaged", len(damaged)))
    yield Decision("cache", (region,), not built.compiled, reason, facts)
    groups: dict[str, list[MissedKernel]] = {}
    for one in getattr(built, "missed", ()):
        groups.setdefault(one.part, []).append(one)
    for group in groups.values():
        first = group[0]
        told = (("part", first.part), ("old", first.old), ("new", first.new)) if first.part else ()
        names = tuple(one.kernel for one in group)
        yield Decision("cache", (region, *names), False, _why(first), (*told, ("kernels", len(group))))


def _why(missed: MissedKernel) -> Reason:
    if not missed.part:
        return reasons.NEVER_BUILT()
    if missed.part == "entry":
        return reasons.ENTRY_GONE()
    code = _DIFFERING.get(missed.part, reasons.KEY_DIFFERS)
    return code(part=missed.part, old=missed.old, new=missed.new)


_DIFFERING = {
    "version of the runtime": reasons.OTHER_VERSION,
    "prelude": reasons.OTHER_VERSION,
    "parameters": reasons.OTHER_ARGUMENTS,
    "source": reasons.OTHER_SOURCE,
    "flags": reasons.OTHER_FLAGS,
}
"""What is said of a part of a kernel's key; of others, which the user decides, that it may be kept."""
