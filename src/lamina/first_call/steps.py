"""Which step of a region's plan is the first whose result is not that of the graph's nodes.

The plan runs step by step on the inputs of the call, with the kernels that were built. What a step wrote is held
against the values that the graph's nodes have by ATen: those nodes that its stores come from, or that the buffer is
named after. Buffers that are no node's value are held against the loop nests of the kernel, evaluated by torch on what
the buffers held before.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Interpreter, Node

from lamina.backends.device import LoadedPlan
from lamina.base.accuracy import judge, judge_alone, mismatch
from lamina.base.region_check import StepCheck
from lamina.ir.access import origins, provenance, writes
from lamina.ir.index import Size, as_expr
from lamina.ir.loops import LibraryCall, SizeInput, Store
from lamina.ir.loops_interp import run_nest
from lamina.ir.plan import KernelCall, Place, Plan, PlanStep
from lamina.ir.plan_interp import PlanRun

__all__ = ["Recorded", "compared", "empty_graph", "first_step", "recorded", "single_step"]


@dataclass(slots=True)
class Recorded:
    """What a graph gave by ATen, and copies of all its nodes' values, lists of results flattened, by name."""

    outputs: Any = None
    values: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)


def single_step(plan: Plan, step: KernelCall) -> Plan:
    """A plan of one kernel, all of whose buffers are inputs, as are the sizes that it or they need."""
    names = tuple(dict.fromkeys(step.buffers))
    buffers = tuple(replace(b, kind="input") for b in plan.buffers if b.name in names)
    exprs = (*step.sizes, *(e for b in buffers for e in (*b.shape, *b.strides)))
    atoms = {atom.name: atom for e in exprs for atom in e.atoms() if isinstance(atom, Size)}
    sizes = tuple(SizeInput(name, as_expr(atom)) for name, atom in sorted(atoms.items()))
    return replace(
        plan,
        inputs=(*names, *sizes),
        buffers=buffers,
        kernels=tuple(k for k in plan.kernels if k.name == step.kernel),
        steps=(step,),
        outputs=(),
        places=tuple(Place(name, "input") for name in names),
        arena_bytes=as_expr(0),
        decisions=(),
    )


def empty_graph(inputs: int) -> GraphModule:
    """A graph with so many inputs and no results."""
    graph = Graph()
    for number in range(inputs):
        graph.placeholder(f"input_{number}")
    graph.output(())
    return GraphModule(torch.nn.Module(), graph)


class _Recorder(Interpreter):
    """Runs a graph and keeps copies of what its nodes gave, as a later node may write to it."""

    def __init__(self, gm: GraphModule) -> None:
        super().__init__(gm)
        self.found = Recorded()

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n.op != "output":
            parts = value if isinstance(value, (tuple, list)) else (value,)
            kept = tuple(t.detach().clone() for t in parts if type(t) is Tensor and t.layout is torch.strided)
            self.found.values[n.name] = kept
        return value


def recorded(gm: GraphModule, inputs: Sequence[Any]) -> Recorded:
    """Run ``gm`` by ATen and note what every node gives."""
    run = _Recorder(gm)
    run.found.outputs = run.run(*inputs)
    return run.found


def first_step(
    loaded: LoadedPlan, args: Sequence[Any], aten: Recorded, exact: Recorded | None, folder: str = ""
) -> StepCheck | None:
    """The first step of a region that differs, None where none does.

    ``args`` may be written to. The generated source of the kernel is written to ``folder``, or a new one where none
    is given.
    """
    plan, run = loaded.plan, _Stepping(loaded, args)
    last = {name: at for at, step in enumerate(plan.steps) for name in writes(step)}
    for at, step in enumerate(plan.steps):
        run.step(step)
        for name in _written(step):
            nodes = _nodes(step, name, last[name] == at)
            text = compared(run.tensors[name], nodes, aten, exact)
            wrong = run.wrong(step, name) if text is None or text else ""
            if text or (text is None and wrong):
                stage = "library" if isinstance(step, LibraryCall) else "code generation" if wrong else "lowering"
                origin = [n for n in nodes if n in origins(step)] or origins(step)
                place = provenance(origin, {s.node: s for s in plan.sources})
                return _named(loaded, step, StepCheck("", place, name, text or wrong, stage), folder)
    return None


class _Stepping(PlanRun):
    """The plan with its built kernels, one step at a time; remembers what the last kernel was given."""

    def __init__(self, loaded: LoadedPlan, args: Sequence[Any]) -> None:
        super().__init__(loaded.plan, args)
        self.loaded = loaded
        self.before: dict[str, Tensor] = {}

    def launch(self, step: KernelCall) -> None:
        self.before = {name: self.flat(name).clone() for name in dict.fromkeys(step.buffers)}
        self.loaded.launch(step, {name: self.tensors[name] for name in step.buffers}, self.sizes)

    def wrong(self, step: PlanStep, name: str) -> str:
        """How what the last kernel left in a buffer differs from what its loop nests say."""
        if not isinstance(step, KernelCall):
            return ""
        kernel = self.kernels[step.kernel]
        flats = {f"b{i}": self.before[buffer] for i, buffer in enumerate(step.buffers)}
        with torch.device(self.device):
            for nest in kernel.nests:
                run_nest(nest, flats, dict(zip(kernel.sizes, self.numbers(step.sizes), strict=True)))
        buffer = self.buffers[name]
        shape, strides = self.numbers(buffer.shape), self.numbers(buffer.strides)
        return judge_alone(self.tensors[name], self.before[name].as_strided(shape, strides))


def _written(step: PlanStep) -> list[str]:
    """The buffers that a step writes to, in the order of its stores."""
    nests = step.nests if isinstance(step, KernelCall) else ()
    stores = [e.buffer for nest in nests for e in nest.body if isinstance(e, Store)]
    return list(dict.fromkeys([*(name for name in stores if name in writes(step)), *sorted(writes(step))]))


def _nodes(step: PlanStep, name: str, complete: bool) -> list[str]:
    """Nodes whose value the buffer may hold after a step; its own name's if nothing is written to it later."""
    found = [name] if complete else []
    if isinstance(step, KernelCall):
        stores = (e for nest in step.nests for e in nest.body if isinstance(e, Store) and e.buffer == name)
        found += [node for e in stores for node in e.origin]
    elif complete:
        found += step.origin
    return list(dict.fromkeys(found))


def compared(ours: Tensor, nodes: Iterable[str], aten: Recorded, exact: Recorded | None) -> str | None:
    """What is wrong with a buffer, "" if it holds the value of one of the nodes, None if none has its shape."""
    complaints: list[str] = []
    for node in nodes:
        for place, value in enumerate(aten.values.get(node, ())):
            if _squeezed(value) != _squeezed(ours):
                continue
            precise = exact.values.get(node, ()) if exact else ()
            complaint = _judged(ours.reshape(value.shape), value, precise[place] if place < len(precise) else None)
            if not complaint:
                return ""
            complaints.append(complaint)
    return complaints[0] if complaints else None


def _squeezed(tensor: Tensor) -> list[int]:
    return [n for n in tensor.shape if n != 1]


def _judged(ours: Tensor, value: Tensor, exact: Tensor | None) -> str:
    if ours.dtype != value.dtype:  # a node's value may be kept in another dtype than eager's
        ours = ours.to(value.dtype)
    if exact is None or exact.shape != value.shape:
        return judge_alone(ours, value)
    if not (value.is_floating_point() or value.is_complex()):
        return mismatch(ours, value) if torch.equal(exact.to(value.dtype), value) else ""
    return judge(ours, value, exact)


def _named(loaded: LoadedPlan, step: PlanStep, found: StepCheck, folder: str) -> StepCheck:
    if isinstance(step, LibraryCall):
        return replace(found, kernel=step.op)
    return replace(found, kernel=step.kernel, file=_source_file(loaded, step.kernel, folder))


def _source_file(loaded: LoadedPlan, kernel: str, folder: str) -> str:
    """The path of a file with the kernel's generated source, "" where it cannot be written."""
    if kernel not in loaded.sources:
        return ""
    try:
        path = Path(folder) if folder else Path(tempfile.mkdtemp(prefix="lamina_verify_"))
        path.mkdir(parents=True, exist_ok=True)
        file = path / f"{kernel}{loaded.suffix}"
        file.write_text(loaded.sources[kernel], encoding="utf-8")
    except OSError:
        return ""
    return str(file)
