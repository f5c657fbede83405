"""What host programs for the CPU hold at their peak, by plan, of fixed graphs: it must not grow."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lamina
from lamina.codegen import host_memory, host_reuse
from lamina.codegen.host_globals import Globals
from lamina.codegen.host_memory import CpuMemory
from lamina.codegen.host_uses import uses_of
from lamina.codegen.host_values import Names, Values
from lamina.ir.access import reads, writes
from lamina.ir.loops import storage_bytes
from lamina.ir.plan import Plan
from lamina.schedule import loop_planning


class Gated(nn.Module):
    """Three gated layers with norms and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(16) for _ in range(3))
        self.gates, self.ups = (nn.ModuleList(nn.Linear(16, 40, bias=False) for _ in range(3)) for _ in range(2))
        self.downs = nn.ModuleList(nn.Linear(40, 16, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for norm, gate, up, down in zip(self.norms, self.gates, self.ups, self.downs, strict=True):
            h = norm(x)
            x = x + down(F.silu(gate(h)) * up(h))
        return x.pow(2).mean()


class Residual(nn.Module):
    """Two blocks of convolutions and batch norms."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for k in (0, 2):
            h = F.relu(self.norms[k](self.convs[k](x)))
            x = F.relu(x + self.norms[k + 1](self.convs[k + 1](h)))
        return x.mean((2, 3)).pow(2).mean()


class Dropped(nn.Module):
    """Six layers with dropout and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.dropout(F.gelu(layer(x)), 0.1) + x
        return x.mean()


def planned_peak(plan: Plan, given: Collection[str]) -> int:
    """Most bytes at once of the workspace, of buffers of their own, and of those inputs ``given`` to the program."""
    values = Values(plan, Names(()))
    last = uses_of(plan, values).last
    memory = CpuMemory.of(plan, last, given, values, Globals(Names(())), set())
    sizes = {b.name: storage_bytes(b).const for b in plan.buffers}
    places = {p.buffer: p.where for p in plan.places}
    taken = set(memory.taken_over.values())
    alive = {name: sizes[name] for name in given}
    arena, peak = plan.arena_bytes.const, 0
    for at, step in enumerate(plan.steps):
        used = reads(step) | writes(step)
        for name in used:
            if places[name] in ("output", "library") and name not in memory.taken_over:
                alive.setdefault(name, sizes[name])
        peak = max(peak, arena + sum(alive.values()))
        for name in used:
            if last[name] == at and name not in taken:
                alive.pop(name, None)
                alive.pop(_owner(name, memory.taken_over), None)
    return peak


def _owner(name: str, taken_over: Any) -> str:
    """The buffer whose memory ``name`` has in the end."""
    while name in taken_over:
        name = taken_over[name]
    return name


PEAKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int]] = {
    "gated": (Gated, (512, 16), 980_000, 980_000),
    "residual": (Residual, (4, 8, 16, 16), 266_000, 300_000),
    "dropped": (Dropped, (512, 32), 725_000, 795_000),
}
"""Models, the shapes of their inputs, and most bytes of the forward and the backward."""


@pytest.mark.parametrize("name", PEAKS)
def test_planned_peaks_do_not_grow(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_planning, "_OWN_MEMORY", 1 << 10)  # as if the sizes were a thousand times those here
    monkeypatch.setattr(host_reuse, "_WORTH_ASKING", 1 << 10)
    monkeypatch.setattr(host_memory, "_LARGE", 1 << 10)
    make, shape, *most = PEAKS[name]
    torch.manual_seed(0)
    compiled: Any = lamina.compile(make(), options={"compare_eager": "off", "strict": True})
    compiled(torch.randn(shape)).backward()
    plans = [s.value for s in compiled.record.stages if s.name == "plan"]
    found = []
    for plan in plans:
        inputs = [n for n in plan.inputs if isinstance(n, str)]
        found.append(planned_peak(plan, [n for n in inputs if not n.startswith(("primals", "tangents"))]))
    assert len(found) == 2
    assert all(now <= limit for now, limit in zip(found, most, strict=True)), f"bytes by plan: {found}"
