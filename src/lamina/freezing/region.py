"""The option freeze: an inference graph compiled without what depends on parameters and buffers alone."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from torch.fx import Node

from lamina.aot.region import Region, RegionInput
from lamina.backends.regions import Boxed, aten_calls
from lamina.backends.results import checked
from lamina.base.decision import Decision
from lamina.base.reasons import Reason
from lamina.freezing import reasons
from lamina.freezing.cut import PARAMETER, Cut, cut
from lamina.freezing.frozen import Frozen
from lamina.options import Options
from lamina.record import Record

__all__ = ["Freezing", "freeze", "note_unfrozen"]

_MEBI = 1 << 20
"""Bytes of a mebibyte."""


@dataclass(frozen=True, slots=True)
class Freezing:
    """A region cut in two: ``region``, its main graph, and what is computed once from parameters and buffers alone.

    The folding graph runs as ATen calls, exactly as it is written: it runs once, and what it is made of may be larger
    than anything else in memory, so that no time is to be won by kernels of its own.
    """

    region: Region
    found: Cut
    record: Record

    def applied(self, compiled: Boxed) -> Boxed:
        """The main graph, ``compiled``, behind the folding graph."""
        name, found = self.region.name, self.found
        fold = checked(aten_calls(found.folding), found.folding, "eager", f"{name}_folding")
        return Frozen(name, fold, compiled, found.sources, found.others, self._note)

    def _note(self, seconds: float) -> None:
        self.record.add(self.region.name, "fold", seconds)


def freeze(region: Region, options: Options, record: Record) -> Freezing | None:
    """The region cut in two, with the option freeze and where something is to be won by it."""
    if not options.freeze:
        return None
    if region.kind != "inference":
        if region.kind == "forward":
            note_unfrozen(record, region.name, reasons.GRADIENTS())
        return None
    start = time.perf_counter()
    found = cut(region.gm)
    if found is None:
        note_unfrozen(record, region.name, reasons.NOTHING_KEPT())
        return None
    kept = len(found.folding.graph.output_node().args[0])  # type: ignore[arg-type]
    reason = reasons.KEPT(count=kept, mib=f"{found.nbytes / _MEBI:.1f}")
    decision = Decision("freeze", (region.name,), True, reason, (("values", kept), ("bytes", found.nbytes)))
    record.add(region.name, "freeze", time.perf_counter() - start, found, (decision,))
    return Freezing(_main(region, found), found, record)


def note_unfrozen(record: Record, name: str, why: Reason) -> None:
    """Say in ``record`` that the option freeze does nothing for a graph."""
    record.note(name, "freeze", Decision("freeze", (name,), False, why))


def _main(region: Region, found: Cut) -> Region:
    placeholders: list[Node] = list(found.main.graph.find_nodes(op="placeholder"))
    known = [region.inputs[place] for place in found.others]
    known += [RegionInput(node.name, "primal", True) for node in placeholders[len(known) :]]
    examples = [region.example_inputs[place] for place in found.others]
    examples += [node.meta["val"] for node in placeholders[len(found.others) :]]
    assert all(node.meta.get(PARAMETER) for node in placeholders[len(found.others) :])
    return replace(region, gm=found.main, example_inputs=tuple(examples), inputs=tuple(known))
