"""One JSON document of all that a record says: what a page shows, and what two reports are compared by."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from lamina.base.collector import collector_held
from lamina.base.decision import Decision
from lamina.base.plurals import counted
from lamina.base.region_names import forward_of
from lamina.capture.conditions import Conditions
from lamina.codegen.triton.source import TritonSource
from lamina.ir.plan import GpuSchedule, Kernel, KernelCall, Schedule
from lamina.ir.work import Sizes
from lamina.record import Record
from lamina.report.assembly import Assembler
from lamina.report.boundaries import boundary_reasons
from lamina.report.fusion import fusion_map, step_data
from lamina.report.gpu_assembly import add_gpu_assembly
from lamina.report.graphs import Captures, add_graph, call_nodes, module_of
from lamina.report.kernels import KernelLines, add_kernel, link_call
from lamina.report.loops import LoopText, add_program
from lamina.report.machine import MachineCode
from lamina.report.memory import memory_of
from lamina.report.passes import Passes, passes_of
from lamina.report.regions import Region, captured_graphs, regions_of
from lamina.report.reproducers import kernel_program, region_program
from lamina.report.texts import Texts
from lamina.report.timeline import spans
from lamina.report.times import add_times
from lamina.runtime.kernel import KernelUnit
from lamina.runtime.toolchain import host_processor
from lamina.summary import advice

__all__ = ["SCHEMA", "document"]

SCHEMA = 3
"""The version of the document; it changes when what is there changes its meaning."""


def document(record: Record, assembly: bool = True) -> dict[str, Any]:
    """What ``record`` says, as values that JSON knows. ``assembly`` compiles CPU kernels again to show their code.

    A region that cannot be shown is left out, and ``faults`` says why.
    """
    with collector_held():
        return _Report(record, assembly).data()


@dataclass(slots=True)
class _Report:
    record: Record
    assembly: bool
    texts: Texts = field(default_factory=Texts)
    faults: list[dict[str, str]] = field(default_factory=list)
    kernels: dict[str, dict[str, Any]] = field(default_factory=dict)
    lost: dict[str, list[str]] = field(default_factory=dict)
    _lines: dict[str, KernelLines] = field(default_factory=dict)
    _units: dict[str, KernelUnit] = field(default_factory=dict)
    _gpu_units: dict[str, TritonSource] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        captures = Captures(self.texts)
        for name, gm in captured_graphs(self.record):
            captures.add(gm, name)
        known = regions_of(self.record)
        regions = [self._region(region, captures) for region in known]
        self._assemble()
        return {
            "schema": SCHEMA,
            "name": self.record.name,
            "made": _made_by(),
            "regions": [region for region in regions if region],
            "kernels": list(self.kernels.values()),
            "peaks": self._times(),
            "stages": self._stages(),
            "decisions": self._decisions(),
            "advice": [{**asdict(one), "places": [*one.places]} for one in advice(self.record)],
            "spans": spans(self.record),
            **self._passes(known).data(),
            "guards": self._guards(),
            "lost": self.lost,
            "faults": self.faults,
            **self.texts.data(),
        }

    def _region(self, region: Region, captures: Captures) -> dict[str, Any]:
        try:
            return self._shown(region, captures)
        except Exception as error:  # what one region cannot show is no reason to lose the others
            self.faults.append({"region": region.name, "what": f"{type(error).__name__}: {error}"})
            return {}

    def _shown(self, region: Region, captures: Captures) -> dict[str, Any]:
        if region.graph is None:
            return {}
        gm = region.graph
        key = f"{region.kind}:{region.name}"
        _, lines = add_graph(self.texts, gm, key, region.kind, region.name)
        lost = captures.link(gm, region.graph_name, key, lines)
        if region.kind == "backward":
            self._link_saved(region, key, lines)
        if lost:
            self.lost[key] = lost
        found: dict[str, Any] = {
            "name": region.name,
            "graph": region.graph_name,
            "kind": region.kind,
            "nodes": len(call_nodes(gm.graph)),
            "program": self._program(region.name, region_program, gm),
        }
        if region.program is None:
            return found
        loops = add_program(self.texts, region.program, region.name, key, lines)
        if region.plan is None:
            return found
        return found | self._planned(region, loops)

    def _planned(self, region: Region, loops: LoopText) -> dict[str, Any]:
        plan, gm = region.plan, region.graph
        assert plan is not None
        assert gm is not None
        sizes = Sizes(plan, gm)
        steps = step_data(plan, sizes, {node.name: module_of(node) for node in gm.graph.nodes})
        self._add_kernels(region, loops, steps, sizes)
        reason = boundary_reasons(region)
        return {
            "steps": steps,
            "fusion": fusion_map(plan, steps, sizes, reason),
            "memory": memory_of(plan, sizes),
            "library": sum(step["kind"] == "library" for step in steps),
            "launches": sum(step["kind"] == "kernel" for step in steps),
        }

    def _passes(self, regions: Sequence[Region]) -> Passes:
        try:
            return passes_of(self.record, regions)
        except Exception as error:  # as above
            self.faults.append({"region": "", "what": f"passes: {type(error).__name__}: {error}"})
            return Passes()

    def _link_saved(self, region: Region, key: str, lines: Mapping[str, int]) -> None:
        """Join what a backward is given to the forward's values of the same names."""
        assert region.graph is not None
        forward = self.texts.by_key.get(f"forward:{forward_of(region.name)}")
        if forward is None:
            return
        places = {name: line for line, name in forward.names.items()}
        for node in region.graph.graph.find_nodes(op="placeholder"):
            if node.name in places and node.name in lines:
                self.texts.links.add(forward.key, places[node.name], key, lines[node.name])

    def _program(self, name: str, made: Callable[..., dict[str, str] | None], *args: Any) -> dict[str, str] | None:
        """What makes a program of the text of ``name``, None where that cannot be told."""
        try:
            return made(*args)
        except Exception as error:  # as above
            self.faults.append({"region": name, "what": f"no program of it: {type(error).__name__}: {error}"})
            return None

    def _add_kernels(self, region: Region, loops: LoopText, steps: list[dict[str, Any]], sizes: Sizes) -> None:
        assert region.plan is not None
        kernels, buffers = {kernel.name: kernel for kernel in region.plan.kernels}, region.plan.buffer_map()
        for call, step in zip(region.plan.steps, steps, strict=True):
            if not isinstance(call, KernelCall) or call.kernel not in kernels:
                continue
            kernel, unit = kernels[call.kernel], region.units.get(call.kernel)
            key = f"kernel:{call.kernel}"
            known = self.kernels.setdefault(call.kernel, _kernel_data(kernel, unit))
            known["launches"].append({"region": region.name, "step": step["name"]})
            known["bytes"] = max(known["bytes"], step["bytes_read"] + step["bytes_written"])
            known["flops"] = max(known["flops"], step["flops"])
            if unit is None:
                continue
            if key not in self._lines:
                source, language = (unit.text, "python") if isinstance(unit, TritonSource) else (unit.source, "cpp")
                self._lines[key] = add_kernel(self.texts, key, call.kernel, language, source, kernel)
                known["program"] = self._program(call.kernel, kernel_program, unit, call, buffers, sizes)
                if isinstance(unit, KernelUnit):
                    self._units[key] = unit
                else:
                    self._gpu_units[key] = unit
            link_call(self.texts, key, self._lines[key], kernel, call, loops)

    def _assemble(self) -> None:
        if not self.assembly:
            return
        try:
            made = Assembler().add(self.texts, self._units.items()) if self._units else MachineCode()
            if self._gpu_units:
                made.join(add_gpu_assembly(self.texts, self._gpu_units.items()))
        except Exception as error:  # as above
            made = MachineCode({"": f"{type(error).__name__}: {error}"})
        for key, needs in made.needs.items():
            self.kernels[key.removeprefix("kernel:")] |= needs.data()
        for why, count in Counter(made.failed.values()).items():
            self.faults.append({"region": "", "what": f"the assembly of {counted(count, 'kernel')} is missing: {why}"})

    def _times(self) -> dict[str, dict[str, float]]:
        try:
            return add_times(self.record, self.kernels)
        except Exception as error:  # as above
            self.faults.append({"region": "", "what": f"the times of kernels: {type(error).__name__}: {error}"})
            return {}

    def _guards(self) -> list[dict[str, Any]]:
        """What each compiled version of a function rests on, as far as it is still kept."""
        found = [stage.value for stage in self.record.stages if isinstance(stage.value, Conditions)]
        return [{"function": one.function, "lines": one.lines()} for one in found]

    def _stages(self) -> list[dict[str, Any]]:
        return [
            {
                "region": stage.region,
                "name": stage.name,
                "seconds": round(stage.seconds, 6),
                "summary": str(getattr(stage.value, "summary", None) or ""),
                "decisions": len(stage.decisions),
            }
            for stage in self.record.stages
        ]

    def _decisions(self) -> list[dict[str, Any]]:
        return [_decision(number, d) for number, stage in enumerate(self.record.stages) for d in stage.decisions]


def _decision(stage: int, decision: Decision) -> dict[str, Any]:
    made = decision.as_dict()
    return {"stage": stage, **made, "facts": [[name, value] for name, value in made["facts"].items()]}


def _kernel_data(kernel: Kernel, unit: KernelUnit | TritonSource | None) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": kernel.name,
        "device": "gpu" if isinstance(unit, TritonSource) else "cpu",
        "nests": len(kernel.nests),
        "equations": sum(len(nest.body) for nest in kernel.nests),
        "schedules": [_schedule(s) for s in kernel.schedules],
        "launches": [],
        "bytes": 0,
        "flops": 0,
    }
    if isinstance(unit, TritonSource):
        data |= {"grid": [str(n) for n in unit.grid], "warps": unit.warps, "stages": unit.stages}
    return data


def _schedule(schedule: Schedule | GpuSchedule) -> str:
    return repr(schedule)


def _made_by() -> dict[str, str]:
    try:
        own = version("lamina")
    except PackageNotFoundError:
        own = ""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    return {
        "lamina": own,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": host_processor(),
        "gpu": device,
    }
