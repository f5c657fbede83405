"""Dead code elimination: steps and stores whose results nothing reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lamina.ir.library import has_effect
from lamina.ir.loops import Check, LibraryCall, Nest, Step, Store
from lamina.schedule.accesses import loaded, stored
from lamina.schedule.simplify import simplify

__all__ = ["live_steps"]

_OWN_SEED = "lamina.philox_seed.default"


def live_steps(steps: Sequence[Step], lasting: Iterable[str]) -> list[Step]:
    """The steps without what nothing needs; ``lasting`` are the buffers that are read after all of them."""
    needed = set(lasting)
    kept: list[Step] = []
    for step in reversed(steps):
        if isinstance(step, LibraryCall):
            if step.outs and needed.isdisjoint(stored(step)) and not _is_eager_draw(step):
                continue
        else:
            body = tuple(e for e in step.body if not (isinstance(e, Store) and e.buffer not in needed))
            if not any(isinstance(e, Store | Check) for e in body):
                continue
            if len(body) != len(step.body):
                step = Nest(step.name, step.axes, simplify(body, "eager"))
        needed.update(loaded(step))
        kept.append(step)
    return kept[::-1]


def _is_eager_draw(step: LibraryCall) -> bool:
    """Whether a call draws eager's random numbers: those that follow depend on it. A seed of Lamina's own is unused."""
    return step.op != _OWN_SEED and has_effect(step.op)
