"""What each stage and rewrite changed: the texts before and after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule

from lamina.base.region_names import graph_of
from lamina.ir.loops import LoopProgram
from lamina.ir.loops_print import print_program
from lamina.ir.step_texts import StepTexts
from lamina.record import Record, Stage
from lamina.report.brief_graphs import Ends, brief_text
from lamina.report.regions import Region
from lamina.schedule.fuse import STEPS, Fusion

__all__ = ["Passes", "passes_of"]

_NUMERICS = ("fast", "eager")
"""A record does not say which was asked for; it is the one that fuses to what was fused."""


@dataclass(slots=True)
class Passes:
    """Stages and rewrites in order, each with its text ``before`` and ``after`` it and the numbers of its stages.

    Texts that follow one another share most of their lines: each line is kept once, and a text is the places of its
    lines in ``lines``, as runs: [first, how many, first, how many, ..]. ``before`` and ``after`` are numbers of texts.
    """

    passes: list[dict[str, Any]] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    _known: dict[str, int] = field(default_factory=dict)

    def add(self, region: str, name: str, before: str, after: str, stages: Sequence[int]) -> None:
        """Go on with what a stage or a rewrite made of a text; ``before`` is "" for the first."""
        self.passes.append(
            {
                "region": region,
                "name": name,
                "before": self._number(before),
                "after": self._number(after),
                "language": "python",
                "stages": list(stages),
            }
        )

    def _number(self, text: str) -> int:
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = len(self.texts)
            self.texts.append(self._runs(text))
        return known

    def _runs(self, text: str) -> list[int]:
        runs: list[int] = []
        following = -1
        for line in text.split("\n"):
            place = self.lines.setdefault(line, len(self.lines))
            if place == following:
                runs[-1] += 1
            else:
                runs += [place, 1]
            following = place + 1
        return runs

    def data(self) -> dict[str, Any]:
        """As JSON."""
        return {"passes": self.passes, "pass_texts": self.texts, "pass_lines": list(self.lines)}


def passes_of(record: Record, regions: Iterable[Region]) -> Passes:
    """The stages and rewrites of a record.

    Rewrites of graphs are there if the record kept them as they passed; steps of fusion that it did not are taken anew.
    """
    seen: Mapping[str, list[tuple[str, Callable[[Ends], str]]]] = getattr(record, "graphs", {})
    fusions: Mapping[str, list[tuple[str, LoopProgram]]] = getattr(record, "fusions", {})
    found, ends = Passes(), Ends()
    for graph, texts in seen.items():
        before = ""
        for name, written in texts:
            text = written(ends)
            if name and text != before:
                found.add(graph, name, before, text, _stages(record.stages, graph, name))
            before = text
    if not seen:
        for number, stage in enumerate(record.stages):
            if stage.name == "joint" and isinstance(stage.value, GraphModule):
                found.add(stage.region, "joint graph", "", brief_text(stage.value.graph, stage.value, ends), [number])
    for region in regions:
        _add_region(found, region, fusions.get(region.name, ()))
    return found


def _add_region(found: Passes, region: Region, steps: Sequence[tuple[str, LoopProgram]]) -> None:
    if region.lowered is None or region.program is None:
        return
    numbers = {stage.name: number for number, stage in region.stages}
    texts = StepTexts(region.lowered.sources)
    before, last = print_program(region.lowered, texts), region.lowered
    found.add(region.name, "lower", "", before, [numbers["lower"]])
    if "fuse" not in numbers:
        return
    for name, program in steps or _fused_again(region.lowered, region.program):
        after = before if program is last else print_program(program, texts)
        found.add(region.name, name, before, after, [numbers["fuse"]] if after != before else [])
        before, last = after, program


def _fused_again(lowered: LoopProgram, fused: LoopProgram) -> Iterator[tuple[str, LoopProgram]]:
    """The steps of fusion and the program after each; all as one if they do not lead to ``fused`` once more."""
    for numerics in _NUMERICS:
        fusion, steps = Fusion(lowered, numerics), list[tuple[str, LoopProgram]]()
        for name, step in STEPS:
            step(fusion)
            steps.append((name, fusion.program))
        if fusion.program == fused:
            yield from steps
            return
    yield "fuse", fused


def _stages(stages: Iterable[Stage], graph: str, name: str) -> list[int]:
    """The stages in which a rewrite decided something: those of its graph in which it is a decision's subject."""
    return [
        number
        for number, stage in enumerate(stages)
        if graph_of(stage.region) == graph and any(d.subject[:1] == (name,) for d in stage.decisions)
    ]
