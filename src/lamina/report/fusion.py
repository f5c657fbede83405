"""The fusion map: a region's kernels and library calls as boxes, their buffers as edges, and why they are apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lamina.base.plurals import counted
from lamina.base.reasons import Reason
from lamina.ir.access import origins, reads, writes
from lamina.ir.loops import Source
from lamina.ir.plan import KernelCall, Plan, PlanStep
from lamina.ir.work import Sizes, bytes_of, flops_of
from lamina.report.layout import placed

__all__ = ["fusion_map", "step_data"]

_MOST_BOXES = 36
"""Steps that are drawn in one map; of more, modules are drawn, each a map of its own."""
_LETTER, _MARGIN, _NARROWEST, _WIDEST = 7.6, 28, 130, 320
"""Pixels: a wide letter of a label, around it, and the limits of a box's width."""

Why = Callable[[PlanStep, PlanStep], Reason | None]


def step_data(plan: Plan, sizes: Sizes, modules: Mapping[str, str]) -> list[dict[str, Any]]:
    """For each step of the plan what it calls, reads, writes and costs, and the module that it computes for."""
    sources = {source.node: source for source in plan.sources}
    buffers = plan.buffer_map()
    found = []
    for step in plan.steps:
        kernel = isinstance(step, KernelCall)
        nodes = origins(step)
        read, written = bytes_of(step, buffers, sizes)
        found.append(
            {
                "name": step.name,
                "kind": "kernel" if kernel else "library",
                "calls": step.kernel if isinstance(step, KernelCall) else step.op,
                "ops": list(dict.fromkeys(_operation(node, sources) for node in nodes)),
                "nodes": list(nodes),
                "places": list(dict.fromkeys(sources[n].place for n in nodes if n in sources and sources[n].place)),
                "module": _module(modules.get(node, "") for node in nodes),
                "reads": sorted(_inputs(step)),
                "writes": sorted(_outputs(step)),
                "bytes_read": read,
                "bytes_written": written,
                "flops": flops_of(step, sizes),
                "why": "" if isinstance(step, KernelCall) else str(step.reason),
            }
        )
    return found


def _operation(node: str, sources: Mapping[str, Source]) -> str:
    """The short name of a node's operation: "add" of "aten.add.Tensor"."""
    parts = (sources[node].op if node in sources else node).split(".")
    return parts[1] if len(parts) == 3 else parts[-1]


def _inputs(step: PlanStep) -> set[str]:
    if isinstance(step, KernelCall):
        return set().union(*(reads(nest) for nest in step.nests)) & set(step.buffers)
    return reads(step)


def _outputs(step: PlanStep) -> Iterable[str]:
    return step.writes if isinstance(step, KernelCall) else writes(step)


def _module(paths: Iterable[str]) -> str:
    """What the modules of a step's nodes have in common; "" where that is the whole."""
    common: list[str] | None = None
    for path in paths:
        parts = path.split(".") if path else []
        if common is None:
            common = parts
            continue
        same = 0
        while same < min(len(common), len(parts)) and common[same] == parts[same]:
            same += 1
        common = common[:same]
    return ".".join(common or ())


def fusion_map(plan: Plan, steps: Sequence[dict[str, Any]], sizes: Sizes, reason: Why) -> dict[str, Any]:
    """Maps of a plan by name: "" is the first that is seen; a box may open another.

    Edges say which buffers they are and why the two are not one kernel.
    """
    edges = _edges(plan, sizes, reason)
    if len(steps) <= _MOST_BOXES:
        return {"": _map([_step_box(i, s) for i, s in enumerate(steps)], edges)}
    groups = _groups(steps)
    member = {i: number for number, (_, members) in enumerate(groups) for i in members}
    maps: dict[str, Any] = {}
    between: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for edge in edges:
        pair = (member[edge["from"]], member[edge["to"]])
        if pair[0] != pair[1]:
            between.setdefault(pair, []).append(edge)
    first = [_group_box(n, name, [steps[i] for i in own]) for n, (name, own) in enumerate(groups)]
    maps[""] = _map(first, [_edge_of_groups(pair, own) for pair, own in between.items()])
    for number, (_, own) in enumerate(groups):
        place = {i: at for at, i in enumerate(own)}
        inner = [
            {**e, "from": place[e["from"]], "to": place[e["to"]]}
            for e in edges
            if e["from"] in place and e["to"] in place
        ]
        maps[str(number)] = _map([_step_box(i, steps[i]) for i in own], inner)
    return maps


def _groups(steps: Sequence[dict[str, Any]]) -> list[tuple[str, list[int]]]:
    """Runs of steps of one module, so coarse that the map of them is small."""
    deepest = max(len(step["module"].split(".")) for step in steps)
    for depth in range(deepest, 0, -1):
        found: list[tuple[str, list[int]]] = []
        for number, step in enumerate(steps):
            name = ".".join(step["module"].split(".")[:depth])
            if found and (found[-1][0] == name or not name or found[-1][0].startswith(f"{name}.")):
                found[-1][1].append(number)
            else:
                found.append((name, [number]))
        if len(found) <= _MOST_BOXES:
            return found
    size = -(-len(steps) // _MOST_BOXES)
    return [
        (f"steps {i} to {min(i + size, len(steps)) - 1}", list(range(i, min(i + size, len(steps)))))
        for i in range(0, len(steps), size)
    ]


def _edges(plan: Plan, sizes: Sizes, reason: Why) -> list[dict[str, Any]]:
    buffers = plan.buffer_map()
    writer: dict[str, int] = {}
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for number, step in enumerate(plan.steps):
        for name in sorted(_inputs(step)):
            if name not in writer:
                continue
            edge = found.setdefault(
                (writer[name], number), {"from": writer[name], "to": number, "buffers": [], "bytes": 0}
            )
            edge["buffers"].append(name)
            edge["bytes"] += sizes.bytes(buffers[name])
        for name in _outputs(step):
            writer[name] = number
    for (source, target), edge in found.items():
        why = reason(plan.steps[source], plan.steps[target])
        if why is not None:
            edge |= {"why": str(why), "code": why.code, "remedy": why.remedy}
    return list(found.values())


def _edge_of_groups(pair: tuple[int, int], edges: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The edges between the steps of two groups as one, with the reason of that with most bytes."""
    largest = max(edges, key=lambda edge: edge["bytes"])
    reasons = {edge.get("why", "") for edge in edges}
    why: dict[str, Any] = {name: largest[name] for name in ("why", "code", "remedy") if name in largest}
    if len(reasons) > 1:
        why["why"] = f"{why.get('why', '')} (between other steps of the two for {len(reasons) - 1} other reasons)"
    return {
        "from": pair[0],
        "to": pair[1],
        "buffers": [name for edge in edges for name in edge["buffers"]],
        "bytes": sum(edge["bytes"] for edge in edges),
        **why,
    }


def _step_box(number: int, step: dict[str, Any]) -> dict[str, Any]:
    return {
        "step": number,
        "kind": step["kind"],
        "label": ", ".join(step["ops"]) or step["calls"],
        "detail": step["calls"],
        "module": step["module"],
    }


def _group_box(number: int, name: str, steps: Sequence[dict[str, Any]]) -> dict[str, Any]:
    kernels = sum(step["kind"] == "kernel" for step in steps)
    detail = f"{counted(kernels, 'kernel')}, {counted(len(steps) - kernels, 'library call')}"
    return {"opens": str(number), "kind": "group", "label": name or "outermost", "detail": detail, "module": name}


def _map(boxes: Sequence[dict[str, Any]], edges: Sequence[dict[str, Any]]) -> dict[str, Any]:
    widths = {
        str(i): round(min(_WIDEST, max(_NARROWEST, _MARGIN + _LETTER * max(len(box["label"]), len(box["detail"])))))
        for i, box in enumerate(boxes)
    }
    places = placed(widths, [(str(e["from"]), str(e["to"])) for e in edges])
    made = [
        {**box, "x": p.x, "y": p.y, "w": p.width, "h": p.height}
        for i, box in enumerate(boxes)
        for p in (places[str(i)],)
    ]
    return {"boxes": made, "edges": list(edges)}
