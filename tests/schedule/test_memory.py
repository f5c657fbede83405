"""Memory plans are safe, tight and quick; orders are legal and need less memory."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.ir.access import reads, writes
from lamina.ir.index import Size, as_expr
from lamina.ir.loops import Buffer, BufferView, LibraryCall, LoopProgram, storage_bytes
from lamina.ir.loops_interp import run_program
from lamina.ir.plan import Plan, PlanStep
from lamina.ir.plan_interp import run_plan
from lamina.ir.plan_verify import verify_plan
from lamina.schedule.memory import ALIGNMENT, live_ranges, plan_memory
from lamina.schedule.order import dependences, order, peak_bytes
from tests.effort import executed
from tests.ir.examples import EXAMPLES, buffer, example_inputs, exprs, pointwise_chain, simple_plan, view

MM = "aten.mm.default"


def product(name: str, left: Buffer, right: Buffer, out: Buffer) -> LibraryCall:
    return LibraryCall(name, MM, (view(left), view(right)), (), (out.name,))


def plan_of(buffers: Sequence[Buffer], steps: Sequence[PlanStep], *outputs: Buffer) -> Plan:
    inputs = tuple(b.name for b in buffers if b.kind == "input")
    returned = tuple(view(b) for b in outputs)
    places, arena = plan_memory(steps, buffers, inputs, returned)
    return Plan("p", inputs, tuple(buffers), (), tuple(steps), returned, places, arena)


def random_products(count: int, seed: int, window: int = 6) -> Plan:
    """Steps that each multiply two recent results of various sizes."""
    draw = random.Random(seed)
    size = [draw.choice((1, 4, 8, 24, 64)) for _ in range(count + 1)]
    buffers = [buffer("x", 8, size[0], kind="input")]
    weights = [buffer(f"w{k}", size[k], size[k + 1], kind="input") for k in range(count)]
    steps: list[PlanStep] = []
    for k in range(count):
        buffers.append(buffer(f"t{k}", 8, size[k + 1]))
        steps.append(product(f"s{k}", buffers[-2], weights[k], buffers[-1]))
        if k > window and draw.random() < 0.6:
            # Reads an old result once more, in place.
            old = buffers[draw.randrange(k - window, k)]
            steps.append(LibraryCall(f"r{k}", "aten.relu_.default", (view(old),), (), (), (old.name,)))
    return plan_of([*buffers, *weights], steps, buffers[-1])


def lower_bound(plan: Plan) -> int:
    """Most bytes of the arena alive at one step."""
    spans, _ = live_ranges(plan.steps, set())
    best = 0
    for at in range(len(plan.steps)):
        total = 0
        for place in plan.places:
            if place.where == "arena" and spans[place.buffer][0] <= at <= spans[place.buffer][1]:
                bytes_ = int(storage_bytes(plan.buffer_map()[place.buffer]))
                total += -(-bytes_ // ALIGNMENT) * ALIGNMENT
        best = max(best, total)
    return best


@pytest.mark.parametrize("seed", range(12))
def test_random_plans_are_safe_and_tight(seed: int) -> None:
    plan = random_products(60, seed)
    verify_plan(plan)
    assert lower_bound(plan) <= int(plan.arena_bytes) <= 1.35 * lower_bound(plan)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 40), st.integers(0, 10**6), st.integers(1, 12))
def test_arbitrary_lifetimes_never_overlap(count: int, seed: int, window: int) -> None:
    verify_plan(random_products(count, seed, window))


def test_a_chain_needs_two_slots() -> None:
    plan = simple_plan(pointwise_chain(50))
    assert plan.arena_bytes == 2 * 8 * 8 * 4
    assert {p.where for p in plan.places} == {"input", "arena", "output"}


def test_equal_symbolic_sizes_share_slots_and_static_ones_come_first() -> None:
    n = as_expr(Size("n", 1))
    x, y = buffer("x", n, 4, kind="input"), buffer("y", n, 4, kind="output")
    w = buffer("w", 4, 4, kind="input")
    temporary = [buffer(f"t{k}", n, 4) for k in range(4)]
    square = [buffer(f"q{k}", 4, 4) for k in range(2)]
    steps: list[PlanStep] = [product("q0", w, w, square[0]), product("q1", square[0], w, square[1])]
    chain = [x, *temporary, y]
    steps += [product(f"s{k}", chain[k], square[1], chain[k + 1]) for k in range(5)]
    plan = plan_of([x, y, w, *temporary, *square], steps, y)
    verify_plan(plan)
    offsets = {p.buffer: p.offset for p in plan.places}
    assert offsets["t0"] is offsets["t2"]
    assert offsets["t1"] is offsets["t3"]
    assert offsets["t0"] == 128
    assert offsets["t1"] is not offsets["t0"]
    assert plan.arena_bytes.evaluate({"n": 100}) == 128 + 2 * 100 * 4 * 4 + 0
    assert plan.arena_bytes.evaluate({"n": 1}) == 128 + 2 * 64
    value = [torch.randn(3, 4), torch.randn(4, 4)]
    square_value = value[1] @ value[1] @ value[1]
    want = value[0]
    for _ in range(5):
        want = want @ square_value
    torch.testing.assert_close(run_plan(plan, value)[0], want)


def test_an_argument_lives_as_long_as_a_view_of_it() -> None:
    x, y = buffer("x", 8, 8, kind="input"), buffer("y", 8, 8, kind="output")
    t, u, v = buffer("t", 8, 8), buffer("u", 8, 8), buffer("v", 8, 8)
    steps = (
        product("t", x, x, t),
        LibraryCall("v", "aten.view.default", (view(t), (8, 8)), (), ("v",)),
        product("u", x, x, u),
        product("y", u, v, y),
    )
    plan = plan_of([x, t, u, v, y], steps, y)
    offsets = {p.buffer: p.offset for p in plan.places}
    assert offsets["t"] != offsets["u"]
    verify_plan(plan)
    value = torch.randn(8, 8)
    torch.testing.assert_close(run_plan(plan, [value])[0], (value @ value) @ (value @ value))


def test_memory_behind_a_returned_view_is_not_in_the_arena() -> None:
    x, t, v = buffer("x", 8, 8, kind="input"), buffer("t", 8, 8), buffer("v", 8, 8)
    steps = (product("t", x, x, t), LibraryCall("v", "aten.view.default", (view(t), (8, 8)), (), ("v",)))
    plan = plan_of([x, t, v], steps, v)
    assert {p.buffer: p.where for p in plan.places} == {"x": "input", "t": "output", "v": "library"}


def test_unused_buffers_get_no_place_and_empty_ones_no_bytes() -> None:
    x, t, y, unused = buffer("x", 0, 8, kind="input"), buffer("t", 0, 8), buffer("y", 0, 8), buffer("unused", 4)
    w = buffer("w", 8, 8, kind="input")
    plan = plan_of([x, w, t, y, unused], (product("t", x, w, t), product("y", t, w, y)), y)
    assert plan.arena_bytes == 0
    assert "unused" not in {p.buffer for p in plan.places}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run_alike_with_shared_memory(name: str) -> None:
    program = EXAMPLES[name]
    inputs = example_inputs(program)
    want = run_program(program, [x.clone() if isinstance(x, torch.Tensor) else x for x in inputs])
    for got, expected in zip(run_plan(simple_plan(program), inputs), want, strict=True):
        torch.testing.assert_close(got, expected)


def test_the_work_of_planning_grows_with_the_buffers() -> None:
    def work(buffers: int) -> int:
        plan = random_products(buffers, 1, window=40)
        return executed(lambda: plan_memory(plan.steps, plan.buffers, plan.inputs, plan.outputs))

    few, many = work(500), work(2000)
    assert many < 5 * few
    assert many < 2000 * 2000


# ---- order ----------------------------------------------------------------------------------------------------


def ordered(program: LoopProgram) -> LoopProgram:
    steps = order(program.steps, program.buffer_map(), program.inputs, program.outputs)
    return dataclasses.replace(program, steps=steps)


def peak(program: LoopProgram) -> int:
    return peak_bytes(program.steps, program.buffer_map(), program.inputs, program.outputs)


def wide(count: int) -> LoopProgram:
    """All large temporaries first, all reductions of them after."""
    x = buffer("x", 64, 64, kind="input")
    large = [buffer(f"t{k}", 64, 64) for k in range(count)]
    small = [buffer(f"s{k}", 64, kind="output") for k in range(count)]
    steps = [LibraryCall(f"mm{k}", MM, (view(x), view(x)), (), (f"t{k}",)) for k in range(count)]
    total = "aten.sum.dim_IntList"
    steps += [LibraryCall(f"sum{k}", total, (view(large[k]), (1,)), (), (f"s{k}",)) for k in range(count)]
    return LoopProgram("wide", ("x",), (x, *large, *small), tuple(steps), tuple(view(s) for s in small))


def test_order_frees_before_it_makes() -> None:
    program = wide(10)
    better = ordered(program)
    assert sorted(s.name for s in better.steps) == sorted(s.name for s in program.steps)
    assert peak(better) < 0.3 * peak(program)
    value = torch.randn(64, 64)
    for got, want in zip(run_program(better, [value]), run_program(program, [value]), strict=True):
        torch.testing.assert_close(got, want)


def test_copies_of_inputs_are_made_where_they_are_used() -> None:
    """Copies of small weights add fewest bytes and would all come first, to be alive beside the largest activation."""
    x, weights = buffer("x", 64, 64, kind="input"), [buffer(f"w{k}", 64, 64, kind="input") for k in range(6)]
    copies = [buffer(f"c{k}", 64, 64) for k in range(6)]
    large, out = buffer("large", 256, 64), buffer("out", 64, 64, kind="output")
    between = [buffer(f"h{k}", 64, 64) for k in range(7)]
    clone, cat, cut = "aten.clone.default", "aten.cat.default", "aten.slice_copy.Tensor"
    steps = [LibraryCall(f"clone{k}", clone, (view(weights[k]),), (), (f"c{k}",)) for k in range(6)]
    steps.append(LibraryCall("widen", cat, ([view(x)] * 4,), (), ("large",)))
    steps.append(LibraryCall("narrow", cut, (view(large), 0, 0, 64), (), ("h0",)))
    steps += [LibraryCall(f"mm{k}", MM, (view(between[k]), view(copies[k])), (), (f"h{k + 1}",)) for k in range(6)]
    steps.append(LibraryCall("last", clone, (view(between[6]),), (), ("out",)))
    inputs = ("x", *(w.name for w in weights))
    program = LoopProgram("late", inputs, (x, *weights, *copies, large, *between, out), tuple(steps), (view(out),))
    better = ordered(program)
    names = [s.name for s in better.steps]
    assert all(names.index(f"mm{k}") == names.index(f"clone{k}") + 1 for k in range(6))
    assert peak(better) == 5 * 64 * 64 * 4


@pytest.mark.parametrize("name", EXAMPLES)
def test_good_orders_stay(name: str) -> None:
    assert ordered(EXAMPLES[name]).steps == EXAMPLES[name].steps


def test_readers_of_the_old_contents_come_before_the_writer() -> None:
    x = buffer("x", 64, kind="input")
    y, z = buffer("y", 64, kind="output"), buffer("z", 64, kind="output")
    v = buffer("v", 64)
    steps = (
        LibraryCall("alias", "aten.view.default", (view(x), (64,)), (), ("v",)),
        LibraryCall("old", "aten.neg.default", (view(v),), (), ("y",)),
        LibraryCall("write", "aten.zero_.default", (view(x),), (), (), ("x",)),
        LibraryCall("new", "aten.neg.default", (view(x),), (), ("z",)),
    )
    assert dependences(steps)[2] >= {0, 1}
    assert dependences(steps)[3] == {2}
    program = LoopProgram("hazard", ("x",), (x, y, z, v), steps, (view(y), view(z)))
    names = [s.name for s in ordered(program).steps]
    assert names.index("old") < names.index("write")


def test_random_draws_keep_their_order() -> None:
    x = buffer("x", 64, kind="input")
    draw = LibraryCall("a", "aten.bernoulli.p", (view(x), 0.5), (), ("a",))
    steps = (draw, dataclasses.replace(draw, name="b", outs=("b",)))
    assert dependences(steps) == [set(), {0}]


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 25), st.integers(0, 10**6))
def test_any_order_found_respects_dependences_and_is_no_worse(count: int, seed: int) -> None:
    plan = random_products(count, seed, window=3)
    draw = random.Random(seed)
    program = LoopProgram("r", plan.inputs, plan.buffers, (), plan.outputs)
    steps = [s for s in plan.steps if isinstance(s, LibraryCall)]
    program = dataclasses.replace(program, steps=tuple(steps))
    shuffled = _legal_shuffle(steps, draw)
    program = dataclasses.replace(program, steps=tuple(shuffled))
    better = ordered(program)
    position = {s.name: k for k, s in enumerate(better.steps)}
    for at, found in enumerate(dependences(program.steps)):
        for other in found:
            assert position[program.steps[other].name] < position[program.steps[at].name]
    assert peak(better) <= peak(program)


def _legal_shuffle(steps: Sequence[LibraryCall], draw: random.Random) -> list[LibraryCall]:
    before = [set(found) for found in dependences(steps)]
    left = set(range(len(steps)))
    result = []
    while left:
        ready = [k for k in sorted(left) if not (before[k] & left)]
        pick = draw.choice(ready)
        left.remove(pick)
        result.append(steps[pick])
    return result


def test_access_of_every_kind_of_step() -> None:
    plan = simple_plan(EXAMPLES["gather"])
    (step,) = plan.steps
    assert reads(step) == {"index", "table", "grad"}
    assert writes(step) == {"y", "grad"}
    call = LibraryCall("c", "aten.add_.Tensor", (BufferView("x", exprs(2), exprs(1), as_expr(0)), 1), (), (), ("x",))
    assert reads(call) == writes(call) == {"x"}
