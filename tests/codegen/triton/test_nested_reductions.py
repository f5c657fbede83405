"""Reductions inside the loops of others, in whatever order a schedule has the loops: generated nests, interpreted."""

from __future__ import annotations

import random

import pytest
import torch

from lamina.codegen.triton.source import UnsupportedKernel
from lamina.ir.loops import Buffer, Reduce
from lamina.ir.plan import Block, GpuSchedule
from tests.codegen.harness import dense
from tests.codegen.triton.harness import Interpreter, both, case
from tests.codegen.writer import Body

EXTENTS = (3, 5, 6)
SEEDS = range(60)
CROSSED = frozenset((6, 8, 53))
"""Nests in which one reduction goes over what another one gives, each across a loop that the other's results vary over:
no loop can be the outer one."""
SPREAD = 1e-4
"""Sums of at most a few hundred small numbers in another order."""


def generated(seed: int) -> tuple[Body, list[Buffer], dict[str, torch.Tensor]]:
    """A nest of products and sums of sums, each stored over the axes that it varies over."""
    chosen, body = random.Random(seed), Body(*EXTENTS)
    buffers, inputs = [], {}
    values: list[tuple[str, tuple[int, ...]]] = []
    for name, axes in (("X", (0, 1, 2)), ("Z", (0, 2))):
        shape = tuple(EXTENTS[a] for a in axes)
        buffers.append(dense(name, "float32", shape))
        inputs[name] = torch.rand(shape) / 2 + 0.25
        values.append((body.load(name, *(body.at[a] for a in axes)), axes))
    for step in range(5):
        value, axes = chosen.choice(values)
        if step % 2 == 0 and axes:
            over = tuple(sorted(chosen.sample(axes, chosen.randint(1, len(axes)))))
            made = body.reduce(chosen.choice(("sum", "max")), value, *over), tuple(a for a in axes if a not in over)
        else:
            other, beside = chosen.choice(values)
            made = body.op("mul", value, other), tuple(sorted({*axes, *beside}))
        values.append(made)
        shape = tuple(EXTENTS[a] for a in made[1])
        buffers.append(dense(f"Y{step}", "float32", shape or (1,)))
        body.store(f"Y{step}", [body.at[a] for a in made[1]] or [0], made[0])
    return body, buffers, inputs


def scheduled(seed: int, body: Body) -> GpuSchedule:
    """Loops in any order, some axes whole, and those that nothing reduces shared by programs."""
    chosen = random.Random(-1 - seed)
    reduced = {a for e in body.equations if isinstance(e, Reduce) for a in e.axes}
    blocks: list[Block] = []
    for axis in body.axes:
        role = chosen.choice(("loop", "loop", "whole")) if axis.name in reduced else "grid"
        size = 8 if role == "whole" else chosen.choice((1, 2, 4))
        blocks.append(Block((f"i{axis.name[1:]}",), size, role))
    chosen.shuffle(blocks)
    return GpuSchedule("mixed", tuple(blocks), warps=1)


@pytest.mark.parametrize("seed", SEEDS)
def test_nested_reductions(interpreter: Interpreter, seed: int) -> None:
    torch.manual_seed(seed)
    body, buffers, inputs = generated(seed)
    try:
        made = case("nested", [body.nest()], buffers, schedule=scheduled(seed, body))
    except UnsupportedKernel as error:
        assert "across two loops" in str(error)
        assert seed in CROSSED
        return
    assert seed not in CROSSED
    got, want = both(made, interpreter, inputs, {})
    for name in got:
        torch.testing.assert_close(got[name], want[name], rtol=SPREAD, atol=SPREAD)
