"""What the tests of reports compile, and how they follow links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import lamina
from lamina.record import Record


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
