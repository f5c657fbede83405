"""Whether a region's kernels had been compiled before, as a decision."""

from __future__ import annotations

from lamina.base.decision import Decision
from lamina.runtime import reasons
from lamina.runtime.build import BuildResult
from lamina.runtime.triton_build import TritonBuild

__all__ = ["kept_kernels"]


def kept_kernels(region: str, built: BuildResult | TritonBuild) -> Decision:
    """Taken if no compiler ran for ``region``; the facts have the numbers of kernels."""
    count = built.reused + built.compiled
    damaged = [miss.reason for miss in built.damages]
    if not built.compiled:
        reason = reasons.ALL_KEPT(count=count)
    elif damaged:
        reason = reasons.COMPILED_AGAIN(compiled=built.compiled, count=count, why=damaged[0])
    else:
        reason = reasons.COMPILED(compiled=built.compiled, count=count)
    facts = (("reused", built.reused), ("compiled", built.compiled), ("damaged", len(damaged)))
    return Decision("cache", (region,), not built.compiled, reason, facts)
