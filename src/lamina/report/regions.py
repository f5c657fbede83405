"""The stages of a record by region, as far as a report shows what they made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule

from lamina.base.region_names import graph_name, graph_of, is_backward
from lamina.codegen.triton.source import TritonSource
from lamina.ir.loops import LoopProgram
from lamina.ir.plan import Plan
from lamina.record import Record, Stage
from lamina.runtime.kernel import KernelUnit

__all__ = ["Region", "captured_graphs", "regions_of"]


@dataclass(slots=True)
class Region:
    """What the stages of one region made last: its graph, loops, plan and kernels; None or empty for what is missing.

    ``graph_name`` is the captured graph that the region is of, ``kind`` "forward" or "backward".
    """

    name: str
    stages: list[tuple[int, Stage]] = field(default_factory=list)
    graph: GraphModule | None = None
    lowered: LoopProgram | None = None
    program: LoopProgram | None = None
    plan: Plan | None = None
    units: Mapping[str, KernelUnit | TritonSource] = field(default_factory=dict)

    @property
    def graph_name(self) -> str:
        """The captured graph that the region is of."""
        return graph_of(self.name)

    @property
    def kind(self) -> str:
        """Whether it is of a forward (or of inference) or of a backward."""
        return "backward" if is_backward(self.name) else "forward"


def regions_of(record: Record) -> list[Region]:
    """The regions of a record in the order in which they were compiled."""
    found: dict[str, Region] = {}
    for number, stage in enumerate(record.stages):
        region = found.setdefault(stage.region, Region(stage.region))
        region.stages.append((number, stage))
        _take(region, stage)
    return [region for name, region in found.items() if name]


def _take(region: Region, stage: Stage) -> None:
    value: Any = stage.value
    if stage.name == "graph" and isinstance(value, GraphModule):
        region.graph = value
    elif stage.name == "lower" and isinstance(value, LoopProgram):
        region.lowered = region.program = value
    elif stage.name == "fuse":
        region.program = value.program
    elif stage.name == "aten":  # what was planned before does not run
        region.plan, region.units = None, {}
    elif isinstance(value, Plan):
        region.plan = value
    elif isinstance(plan := getattr(value, "plan", None), Plan):
        region.plan = plan
    if stage.name == "codegen":
        region.units = _units(value)


def _units(value: Any) -> dict[str, KernelUnit | TritonSource]:
    if isinstance(value, dict):
        return {name: unit for name, unit in value.items() if isinstance(unit, TritonSource)}
    if isinstance(value, Sequence):
        return {unit.name: unit for unit in value if isinstance(unit, KernelUnit)}
    return {}


def captured_graphs(record: Record) -> list[tuple[str, GraphModule]]:
    """The graphs that were captured, by the name of the regions that follow each."""
    found: list[tuple[str, GraphModule]] = []
    waiting: GraphModule | None = None
    for stage in record.stages:
        if stage.name == "capture" and isinstance(gm := getattr(stage.value, "gm", None), GraphModule):
            waiting = gm
        elif waiting is not None and stage.region:
            found.append((graph_of(stage.region), waiting))
            waiting = None
    if waiting is not None:
        found.append((graph_name(record.name, len(found)), waiting))
    return found
