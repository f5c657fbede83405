"""What the tests of reports compile, and how they follow links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

import lamina
from lamina.base.target import nvidia
from lamina.codegen.origins import triton_with_origins
from lamina.codegen.triton.emit import emit
from lamina.record import Record
from lamina.schedule.fuse import Fused
from lamina.schedule.plan import make_plan


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.gelu(self.up(self.norm(x)))
        return x + self.down(h)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(32) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return torch.softmax(x, -1)


def trained(**options: Any) -> Record:
    """The record of a model that was run forward and backward."""
    torch.compiler.reset()  # an equal model's graphs would be used again, and nothing recorded
    compiled = lamina.compile(Model(), options=options)
    compiled(torch.randn(4, 8, 32)).square().sum().backward()
    record: Record = compiled.record
    return record


def trained_for_a_gpu() -> Record:
    """The record of that model's forward with a plan and Triton kernels in the place of those for the CPU.

    No GPU is needed.
    """
    record, target = trained(), nvidia()
    found = Record(record.name)
    for stage in record.stages:
        if isinstance(stage.value, Fused) and "_backward" not in stage.region:
            plan = make_plan(stage.value, target)
            sources = triton_with_origins({kernel.name: emit(kernel, target) for kernel in plan.kernels}, plan)
            made = [replace(stage, name="plan", value=plan, decisions=plan.decisions)]
            made.append(replace(stage, name="codegen", value=sources, decisions=()))
            found.stages += [stage, *made]
        elif stage.name not in ("plan", "host", "codegen", "build", "cache") and "_backward" not in stage.region:
            found.stages.append(stage)
    return found


def link_pairs(report: dict[str, Any]) -> Iterator[tuple[int, int, int, int]]:
    """Every link as numbers: upper text, its line, lower text, its line."""
    for upper, lower, flat in report["links"]:
        line = other = 0
        for step in zip(flat[::2], flat[1::2], strict=True):
            line, other = line + step[0], other + step[1]
            yield upper, line, lower, other


def reaching(report: dict[str, Any], level: str) -> set[tuple[int, int]]:
    """The lines (text, line) that some line of ``level`` leads to."""
    down: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for upper, line, lower, other in link_pairs(report):
        down.setdefault((upper, line), set()).add((lower, other))
    waiting = [place for place in down if report["texts"][place[0]]["level"] == level]
    found = set(waiting)
    while waiting:
        for place in down.get(waiting.pop(), ()):
            if place not in found:
                found.add(place)
                waiting.append(place)
    return found
