"""The steps of a host program: outputs are allocated before they are written, buffers let go after their last use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lamina.base.text import Writer, tuple_text
from lamina.codegen.host_library import LibraryCalls
from lamina.codegen.host_uses import Uses
from lamina.codegen.host_values import Values
from lamina.ir.access import origins, provenance, reads, writes
from lamina.ir.index import Expr
from lamina.ir.loops import Buffer, BufferView
from lamina.ir.plan import KernelCall, Plan, PlanStep

__all__ = ["Launches", "Steps"]


class Launches(Protocol):
    """Writes launches of kernels."""

    def write(self, step: KernelCall, origin: tuple[str, ...]) -> None:
        """Write one launch."""


class Steps:
    """Writes the steps of a plan into ``body``.

    ``empty`` gives the source text for the memory of an output. ``released`` are the places whose buffers are let go
    after their last use; the memory of others lives as long as the call.
    """

    def __init__(
        self,
        plan: Plan,
        values: Values,
        uses: Uses,
        launches: Launches,
        library: LibraryCalls,
        empty: Callable[[Buffer], str],
        released: tuple[str, ...],
        body: Writer,
    ) -> None:
        self.plan, self.values, self.uses, self.body = plan, values, uses, body
        self.launches, self.library, self.empty, self.released = launches, library, empty, released
        self._sources = {s.node: s for s in plan.sources}
        self._allocated: set[str] = set()

    def write(self) -> str:
        """Write all steps; the source text for what is returned."""
        for at, step in enumerate(self.plan.steps):
            self._step(at, step)
        return tuple_text([self._result(out) for out in self.plan.outputs])

    def _step(self, at: int, step: PlanStep) -> None:
        origin = origins(step)
        used = sorted(writes(step) | reads(step))
        for name in used:
            self._allocate(name)
        comment = provenance(origin, self._sources)
        if comment:
            self.body.line(f"# {comment}", origin)
        if isinstance(step, KernelCall):
            self.launches.write(step, origin)
        else:
            self.library.write(step, origin)
        gone = [
            variable
            for name in used
            if self.uses.last.get(name) == at and self.values.places[name].where in self.released
            for variable in (self.values.local(name), *self.values.bound(name))
        ]
        if gone:
            self.body.line(f"del {', '.join(gone)}")

    def _allocate(self, name: str) -> None:
        """Write the allocation of an output that has no memory yet."""
        if self.values.places[name].where == "output" and name not in self._allocated:
            self._allocated.add(name)
            self.body.line(f"{self.values.local(name)} = {self.empty(self.values.buffers[name])}")

    def _result(self, out: BufferView | Expr | None) -> str:
        """Source text for one of the results."""
        if out is None:
            return "None"
        if isinstance(out, Expr):
            return self.values.size(out)
        self._allocate(out.buffer)
        return self.values.tensor(out, self.body.line)
