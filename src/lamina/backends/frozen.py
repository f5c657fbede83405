"""The option freeze: an inference graph compiled without what depends on parameters and buffers alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from torch.fx import Node

from lamina.aot.region import Region, RegionInput
from lamina.backends.regions import Boxed, aten_calls
from lamina.backends.results import checked
from lamina.base.decision import Decision
from lamina.options import Options
from lamina.record import Record
from lamina.rewrite.frozen import PARAMETER, Cut, cut
from lamina.runtime.frozen import Frozen

__all__ = ["note_unfrozen", "run_frozen"]

_MEBI = 1 << 20


def run_frozen(region: Region, options: Options, record: Record, compile: Callable[[Region], Boxed]) -> Boxed:
    """``region`` as ``compile`` makes it; with the option freeze that of its main graph behind a folding graph.

    The folding graph runs as ATen calls, exactly as it is written: it runs once, and what it is made of may be larger
    than anything else in memory, so that no time is to be won by kernels of its own.
    """
    if not options.freeze:
        return compile(region)
    if region.kind != "inference":
        if region.kind == "forward":
            note_unfrozen(record, region.name, "gradients are recorded; call it within torch.no_grad()")
        return compile(region)
    start = time.perf_counter()
    found = cut(region.gm)
    if found is None:
        note_unfrozen(record, region.name, "nothing in it is worth computing ahead from parameters and buffers alone")
        return compile(region)
    kept = len(found.folding.graph.output_node().args[0])  # type: ignore[arg-type]
    reason = f"{kept} values of parameters and buffers alone are kept between calls, {found.nbytes / _MEBI:.1f} MiB"
    decision = Decision("freeze", (region.name,), True, reason, (("values", kept), ("bytes", found.nbytes)))
    record.add(region.name, "freeze", time.perf_counter() - start, found, (decision,))
    fold = checked(aten_calls(found.folding), found.folding, "eager", f"{region.name}_folding")

    def note(seconds: float) -> None:
        record.add(region.name, "fold", seconds)

    return Frozen(region.name, fold, compile(_main(region, found)), found.sources, found.others, note)


def note_unfrozen(record: Record, name: str, why: str) -> None:
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
