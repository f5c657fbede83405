"""Figures of one compiled callable: graphs, breaks, kernels, versions, seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from torch.fx import GraphModule

from lamina.base.plurals import counted
from lamina.capture.dynamo import Captured
from lamina.capture.frame_reasons import LOADED
from lamina.ir.plan import Plan
from lamina.record import Record
from lamina.runtime.build import BuildResult

__all__ = ["Stats", "last_plans", "planned_graphs", "stats_of"]


@dataclass(frozen=True, slots=True)
class Stats:
    """What was compiled so far.

    ``graphs`` captured, ``breaks`` between and within them, ``recompiles`` (versions beyond a function's first),
    ``kernels`` that differ and their ``launches`` in one run of every region, ``library_calls`` likewise,
    ``left_to_aten`` and ``left_to_python`` the graphs and functions that run as before, ``built`` kernels and those
    ``reused`` from the cache, calls ``loaded`` that another process has stored (with capture own; their graphs and
    kernels are not counted), and ``seconds`` by stage. Kernels are built beside the other stages ("build"), and "wait"
    is how long a call waited for them.
    """

    graphs: int
    breaks: int
    recompiles: int
    kernels: int
    launches: int
    library_calls: int
    left_to_aten: int
    left_to_python: int
    built: int
    reused: int
    loaded: int
    seconds: dict[str, float]

    @property
    def total_seconds(self) -> float:
        """How long compiling kept the program waiting: all stages but what was built beside them."""
        return sum(seconds for name, seconds in self.seconds.items() if not name.startswith("build"))

    def __str__(self) -> str:
        """All figures but the seconds of single stages, in two lines."""
        loaded = f"; {counted(self.loaded, 'stored call')} loaded, compiled elsewhere" if self.loaded else ""
        kernels = f"{counted(self.kernels, 'kernel')} launched {counted(self.launches, 'time')}"
        return (
            f"{counted(self.graphs, 'graph')}, {counted(self.breaks, 'graph break')}, {kernels}, "
            f"{counted(self.library_calls, 'library call')}\n"
            f"compiled in {self.total_seconds:.2f} s, {counted(self.recompiles, 'recompile')}; "
            f"{counted(self.built, 'kernel')} built, {self.reused} from the cache{loaded}"
        )

    def as_dict(self) -> dict[str, Any]:
        """All figures by name, for JSON."""
        return asdict(self)


def stats_of(record: Record) -> Stats:
    """The figures of the callable that ``record`` is of."""
    plans = list(last_plans(record))
    built = [stage.value for stage in record.stages if isinstance(stage.value, BuildResult)]
    decisions = record.decisions()
    return Stats(
        graphs=sum(isinstance(stage.value, Captured) for stage in record.stages),
        breaks=sum(d.kind == "break" for d in decisions),
        recompiles=sum(d.kind == "recompile" for d in decisions),
        kernels=sum(len(plan.kernels) for plan in plans),
        launches=sum(plan.kernel_count for plan in plans),
        library_calls=sum(plan.library_count for plan in plans),
        left_to_aten=len({stage.region for stage in record.stages if stage.name == "aten"}),
        left_to_python=sum(d.kind == "capture" and not d.taken for d in decisions),
        built=sum(result.compiled for result in built),
        reused=sum(result.reused for result in built),
        loaded=sum(d.kind == "capture" and d.code == LOADED.number for d in decisions),
        seconds=record.seconds(),
    )


def last_plans(record: Record) -> Iterator[Plan]:
    """The plan of each region that runs by kernels: the last one, where tuning made several."""
    yield from (plan for plan, _ in planned_graphs(record))


def planned_graphs(record: Record) -> Iterator[tuple[Plan, GraphModule | None]]:
    """The plan of each region that runs by kernels, with the graph that it is of where that is known."""
    graphs: dict[str, GraphModule] = {}
    found: dict[str, Plan] = {}
    for stage in record.stages:
        if isinstance(stage.value, Plan):
            found[stage.region] = stage.value
        elif stage.name == "aten":
            found.pop(stage.region, None)
        elif stage.name == "graph" and isinstance(stage.value, GraphModule):
            graphs[stage.region] = stage.value
    yield from ((plan, graphs.get(region)) for region, plan in found.items())
