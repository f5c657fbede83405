"""Reductions inside the loops of others, in whatever order a schedule has the loops: generated nests, interpreted."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from lamina.backends.written_plans import written_plan
from lamina.codegen.triton.emit import emit
from lamina.codegen.triton.source import UnsupportedKernel
from lamina.ir.index import as_expr
from lamina.ir.loops import Buffer, BufferView, LoopProgram, Nest, Reduce
from lamina.ir.loops_interp import run_nest
from lamina.ir.plan import Block, GpuSchedule
from lamina.schedule import grid_planning, plan
from lamina.schedule.fuse import Fused
from lamina.schedule.gpu import choose
from lamina.schedule.gpu_cutting import NestToCut
from lamina.schedule.memo import Memo
from lamina.schedule.reductions_apart import reduces_over_several, with_reductions_apart
from lamina.schedule.work_reasons import REDUCTIONS_APART
from tests.codegen.harness import dense
from tests.codegen.triton.harness import TARGET, Interpreter, both, case
from tests.codegen.triton.test_plans import run
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


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("seed", SEEDS)
def test_nested_reductions(interpreter: Interpreter, seed: int) -> None:
    torch.manual_seed(seed)
    body, buffers, inputs = generated(seed)
    if seed in CROSSED:
        with pytest.raises(UnsupportedKernel, match="across two loops"):
            case("nested", [body.nest()], buffers, schedule=scheduled(seed, body))
        return
    made = case("nested", [body.nest()], buffers, schedule=scheduled(seed, body))
    got, want = both(made, interpreter, inputs, {})
    for name in got:
        torch.testing.assert_close(got[name], want[name], rtol=SPREAD, atol=SPREAD)


@pytest.mark.sampled(one_in=3)
@pytest.mark.parametrize("seed", SEEDS)
def test_taken_apart(seed: int) -> None:
    """The nests of single sets of reduced axes do what the one did, whatever it is."""
    torch.manual_seed(seed)
    body, buffers, inputs = generated(seed)
    nest, held = body.nest(), tuple(replace(b, device="cuda:0") for b in buffers)
    program = LoopProgram("apart", (), held, (nest,), ())
    made, decisions = with_reductions_apart(program, {"nest": REDUCTIONS_APART()}, TARGET)
    assert len(decisions) == reduces_over_several(nest) <= (len(made.steps) > 1)
    given = {b.name: inputs.get(b.name, torch.zeros([int(n) for n in b.shape])) for b in made.buffers}
    got, want = ({name: t.clone() for name, t in given.items()} for _ in range(2))
    run_nest(nest, want, {})
    for part in made.steps:
        assert isinstance(part, Nest)
        assert not reduces_over_several(part)
        run_nest(part, got, {})
    for b in buffers:
        torch.testing.assert_close(got[b.name], want[b.name], rtol=SPREAD, atol=SPREAD)


def test_what_cannot_be_written_is_planned_in_parts(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops in an order in which no kernel can be written: each set of reduced axes has a kernel, and that is said."""
    body, buffers, inputs = generated(min(CROSSED))
    held = tuple(replace(b, device="cuda:0", kind="input" if b.name in inputs else "output") for b in buffers)
    outs = tuple(BufferView(b.name, b.shape, b.strides, as_expr(0)) for b in held if b.name not in inputs)
    fused = Fused(LoopProgram("crossed", tuple(inputs), held, (body.nest(),), outs), ())
    loops = scheduled(min(CROSSED), body)

    def schedule(nest: Nest, *given: Any) -> GpuSchedule:
        return loops if len(NestToCut(nest).sets) > 1 else choose(nest, *given)

    monkeypatch.setattr(grid_planning, "choose", schedule)
    monkeypatch.setattr(grid_planning, "spread", lambda program, target, memo: (program, []))
    with pytest.raises(UnsupportedKernel):
        [emit(k, TARGET) for k in plan.make_plan(fused, TARGET).kernels]
    made = written_plan(fused, TARGET, None, Memo())
    (said,) = (d for d in made.decisions if d.kind == "distribute")
    assert said.subject == ("nest",)
    assert "no kernel could be written" in str(said.reason)
    got = run(made, interpreter, list(inputs.values()))
    want = {**inputs, **{b.name: torch.zeros([int(n) for n in b.shape]) for b in buffers if b.name not in inputs}}
    run_nest(body.nest(), want, {})
    for out, value in zip(outs, got, strict=True):
        torch.testing.assert_close(value, want[out.buffer], rtol=SPREAD, atol=SPREAD)


@pytest.mark.parametrize("chain", [1, 60])
def test_a_kernel_that_is_expected_to_be_slow_is_taken_apart(monkeypatch: pytest.MonkeyPatch, chain: int) -> None:
    """Sums by rows and by columns in 24 programs of 4096 points: soon done, or with much to compute at each point."""
    body = Body(256, 24, 4, 16)
    value = body.load("X", *body.at)
    for _ in range(chain):
        value = body.op("sin", value)
    body.store("rows", [body.at[0], body.at[1], body.at[3]], body.reduce("sum", value, 2))
    body.store("columns", [body.at[1], body.at[2]], body.reduce("sum", value, 0, 3))
    shapes = {"X": (256, 24, 4, 16), "rows": (256, 24, 16), "columns": (24, 4)}
    buffers = tuple(
        replace(dense(name, "float32", shape), device="cuda:0", kind="input" if name == "X" else "output")
        for name, shape in shapes.items()
    )
    outs = tuple(BufferView(b.name, b.shape, b.strides, as_expr(0)) for b in buffers[1:])
    fused = Fused(LoopProgram("sums", ("X",), buffers, (body.nest(),), outs), ())
    at_once = Block(("i0", "i3"), 4096, "whole")
    few = GpuSchedule("mixed", (Block(("i1",), 1, "grid"), Block(("i2",), 1, "loop"), at_once), warps=16)

    def schedule(nest: Nest, *given: Any) -> GpuSchedule:
        return few if len(NestToCut(nest).sets) > 1 else choose(nest, *given)

    monkeypatch.setattr(grid_planning, "choose", schedule)
    monkeypatch.setattr(grid_planning, "spread", lambda program, target, memo: (program, []))
    made = written_plan(fused, TARGET, None, Memo())
    said = [d for d in made.decisions if d.kind == "distribute"]
    assert bool(said) == (chain > 1)
    assert all("expected to take much longer" in str(d.reason) for d in said)
    assert (made.kernel_count > 1) == (chain > 1)
