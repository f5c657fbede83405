"""What each stage and rewrite changed: the texts before and after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch.fx import GraphModule

from lamina.base.files import graph_text
from lamina.ir.loops import LoopProgram
from lamina.ir.loops_print import print_program
from lamina.record import Record, Stage
from lamina.report.regions import Region
from lamina.schedule.fuse import STEPS, Fusion

__all__ = ["passes_of"]

_NUMERICS = ("fast", "eager")
"""A record does not say which was asked for; it is the one that fuses to what was fused."""


def passes_of(record: Record, regions: Iterable[Region]) -> list[dict[str, Any]]:
    """Stages and rewrites in order, each with its text ``before`` and ``after`` it and the numbers of its stages.

    Rewrites of graphs are there if the record kept them as they passed; the steps of fusion are taken once more.
    """
    seen: Mapping[str, list[tuple[str, Callable[[], str]]]] = getattr(record, "graphs", {})
    found: list[dict[str, Any]] = []
    for graph, texts in seen.items():
        before = ""
        for name, written in texts:
            text = written()
            if name and text != before:
                numbers = _stages(record.stages, graph, name)
                found.append(_pass(graph, name, before, text, numbers))
            before = text
    if not seen:
        found += _joints(record)
    for region in regions:
        found += _of_region(region)
    return found


def _joints(record: Record) -> Iterator[dict[str, Any]]:
    for number, stage in enumerate(record.stages):
        if stage.name == "joint" and isinstance(stage.value, GraphModule):
            yield _pass(stage.region, "joint graph", "", graph_text(stage.value), [number])


def _of_region(region: Region) -> list[dict[str, Any]]:
    if region.lowered is None or region.program is None:
        return []
    numbers = {stage.name: number for number, stage in region.stages}
    lowered = print_program(region.lowered)
    found = [_pass(region.name, "lower", "", lowered, [numbers["lower"]])]
    if "fuse" not in numbers:
        return found
    for numerics in _NUMERICS:
        steps = _fused_again(region.lowered, numerics)
        if steps[-1][1] != region.program:
            continue
        before, last = lowered, region.lowered
        for name, program, decided in steps:
            after = before if program == last else print_program(program)
            found.append(_pass(region.name, name, before, after, [numbers["fuse"]] if decided else []))
            before, last = after, program
        return found
    return [*found, _pass(region.name, "fuse", lowered, print_program(region.program), [numbers["fuse"]])]


def _fused_again(program: LoopProgram, numerics: str) -> list[tuple[str, LoopProgram, bool]]:
    """The steps of fusion, the program after each, and whether it decided something."""
    fusion, found = Fusion(program, numerics), []
    for name, step in STEPS:
        known = len(fusion.decisions)
        step(fusion)
        found.append((name, fusion.program, len(fusion.decisions) > known))
    return found


def _stages(stages: Iterable[Stage], graph: str, name: str) -> list[int]:
    """The stages in which a rewrite decided something: those of its graph in which it is a decision's subject."""
    return [
        number
        for number, stage in enumerate(stages)
        if stage.region.startswith(graph) and any(d.subject[:1] == (name,) for d in stage.decisions)
    ]


def _pass(region: str, name: str, before: str, after: str, stages: list[int]) -> dict[str, Any]:
    return {
        "region": region,
        "name": name,
        "before": before,
        "after": after,
        "language": "python",
        "stages": stages,
    }
