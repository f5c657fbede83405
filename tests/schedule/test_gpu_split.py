"""Reductions cut for a GPU, evaluated: values stay, programs are enough, operands of two layouts are read in tiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lamina.base.target import nvidia
from lamina.ir.loops import Compute, Load, LoopProgram, Nest, Reduce
from lamina.ir.loops_interp import run_program
from lamina.ir.loops_verify import verify_program
from lamina.ir.plan import GpuSchedule
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import Fused, fuse
from lamina.schedule.gpu_split import spread
from lamina.schedule.plan import make_plan
from tests.lower.torch_private import traced

aten = torch.ops.aten


def on(program: LoopProgram, device: str) -> LoopProgram:
    return replace(program, buffers=tuple(replace(b, device=device) for b in program.buffers))


def cut(function: Callable[..., Any], args: list[torch.Tensor]) -> tuple[LoopProgram, LoopProgram]:
    """The fused program and the one cut for a GPU, whose values are checked."""
    fused = on(fuse(lower(traced(function, args), "t")).program, "cuda:0")
    made, _ = spread(fused, nvidia())
    verify_program(made)
    for got, want in zip(run_program(on(made, "cpu"), args), function(*args), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
    return fused, made


def test_rows_over_images_give_enough_programs() -> None:
    """No one of the reduced axes has points for every multiprocessor; two together have."""
    torch.manual_seed(0)
    x, g, w = torch.randn(20, 24, 24, 64), torch.randn(20, 24, 24, 64), torch.randn(64)
    _, mean, scale = aten.native_layer_norm(x, [64], w, w, 1e-5)

    def backward(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        g, x, mean, scale, w = given
        found = aten.native_layer_norm_backward(g, x, [64], mean, scale, w, w, [True, True, True])
        return (*found, found[0].sum((0, 1, 2)))

    _, made = cut(backward, [g, x, mean, scale, w])
    join = made.steps[-1]
    assert isinstance(join, Nest)
    programs = [a.extent.const for a in join.axes]
    assert programs[0] * programs[1] >= nvidia().processors


def test_sums_over_two_layouts_go_along_columns() -> None:
    """Batch norm's backward with a gradient whose pixels are innermost and an image whose channels are."""
    torch.manual_seed(0)
    shape = (8, 64, 48, 48)
    g, x = torch.randn(shape), torch.randn(shape).contiguous(memory_format=torch.channels_last)
    w, mean, scale = torch.randn(64), x.mean((0, 2, 3)), torch.rand(64) + 0.5

    def backward(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        g, x, mean, scale, w = given
        masks = [True, True, True]
        return tuple(aten.native_batch_norm_backward(g, x, w, None, None, mean, scale, True, 1e-5, masks))

    fused, _ = cut(backward, [g, x, mean, scale, w])
    plan = make_plan(Fused(fused, ()), nvidia())
    kinds = [schedule.kind for kernel in plan.kernels for schedule in kernel.schedules]
    assert "loops" not in kinds
    assert kinds.count("pointwise") == 1


def group_norm_backward(layout: torch.memory_format) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """A group norm's backward behind an activation, of more points than a program holds."""
    torch.manual_seed(0)
    shape, groups = (2, 32, 48, 32), 4
    x, g, w = torch.randn(shape).contiguous(memory_format=layout), torch.randn(shape), torch.randn(32)
    _, mean, scale = aten.native_group_norm(x.contiguous(), w, w, 2, 32, 48 * 32, groups, 1e-5)

    def backward(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        g, x, mean, scale, w = given
        inner = x.clone(memory_format=torch.contiguous_format)
        masks = [True, True, True]
        return tuple(aten.native_group_norm_backward(g.tanh(), inner, mean, scale, w, 2, 32, 48 * 32, groups, masks))

    return backward, [g, x, mean, scale, w]


def reads(program: LoopProgram, names: set[str]) -> int:
    """How many nests read these buffers."""
    nests = [s for s in program.steps if isinstance(s, Nest)]
    return sum(any(getattr(e, "buffer", None) in names for e in nest.body) for nest in nests)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_rows_and_columns_share_the_pass_over_what_both_reduce(layout: torch.memory_format) -> None:
    """Group and channel sums come from sums over pixels: one pass for all of them, one for the gradient."""
    fused, made = cut(*group_norm_backward(layout))
    assert reads(made, set(fused.inputs[:2])) == 2


def test_rows_that_fit_a_program_are_read_once() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(4, 8, 64), torch.randn(8)
    _, made = cut(lambda x, w: ((x * w[:, None]).sum((1, 2)), (x * x).sum((0, 2))), [x, w])
    assert reads(made, {made.inputs[0]}) == 1


def test_a_second_pass_reads_what_the_first_has_stored() -> None:
    """A gradient that is returned anyway is read in place of the three tensors it is made of; statistics join once."""
    torch.manual_seed(0)
    shape = (16, 64, 48, 48)
    tensors = [torch.randn(shape).to(torch.bfloat16).contiguous(memory_format=torch.channels_last) for _ in range(4)]
    vectors = [torch.zeros(64), torch.ones(64), torch.rand(64) + 0.5]

    def backward(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second, y, x, mean, scale, w = given
        g = aten.threshold_backward(first + second, y, 0)
        return (g, *aten.native_batch_norm_backward(g, x, w, None, None, mean, scale, True, 1e-5, [True] * 3))

    fused, _ = spread(on(fuse(lower(traced(backward, [*tensors, *vectors]), "t")).program, "cuda:0"), nvidia())
    parts, *joins, rest = (s for s in fused.steps if isinstance(s, Nest))
    assert len(joins) == 1
    sources, first, last = set(fused.inputs[:3]), *({getattr(e, "buffer", None) for e in n.body} for n in (parts, rest))
    assert sources <= first
    assert not sources & last
    for got, want in zip(
        run_program(on(fused, "cpu"), [*tensors, *vectors]), backward(*tensors, *vectors), strict=True
    ):
        torch.testing.assert_close(got.float(), want.float(), rtol=2e-2, atol=2e-2 * want.float().abs().max().item())


def test_weights_wait_until_their_channel_is_summed() -> None:
    """Sums with a channel's weight and without are one sum over pixels."""
    backward, args = group_norm_backward(torch.contiguous_format)
    _, made = cut(backward, args)
    (first,) = (s for s in made.steps if isinstance(s, Nest) and s.name.endswith("_steps"))
    assert sum(isinstance(e, Reduce) for e in first.body) == 2


def schedules(function: Callable[..., Any], args: list[torch.Tensor]) -> list[GpuSchedule]:
    """Those of a GPU's kernels for the function."""
    program = on(fuse(lower(traced(function, args), "t")).program, "cuda:0")
    plan = make_plan(Fused(program, ()), nvidia())
    return [k.schedules[0] for k in plan.kernels if isinstance(k.schedules[0], GpuSchedule)]


def test_filters_are_turned_in_tiles_of_both_layouts() -> None:
    """Taps continue along channels: the tile's sides still are different axes."""
    weight = torch.zeros(64, 64, 3, 3, dtype=torch.bfloat16)
    (found,) = schedules(lambda w: w.clone(memory_format=torch.channels_last), [weight])
    assert all(block.axes for block in found.blocks)


@pytest.mark.parametrize("width", [96, 192, 384])
def test_short_rows_with_weights_are_done_by_single_warps(width: int) -> None:
    """A kernel without weights has nothing to hand from warp to warp."""
    x, w = torch.zeros(50176, width, dtype=torch.bfloat16), torch.zeros(width, dtype=torch.bfloat16)
    (found,) = schedules(lambda x, w: aten.native_layer_norm(x, [width], w, w, 1e-5)[0], [x, w])
    assert found.kind == "rows"
    assert found.warps == 1
    assert found.blocks[0].size * found.blocks[1].size == 1024
    (found,) = schedules(lambda x: aten.native_layer_norm(x, [width], None, None, 1e-5)[0], [x])
    assert found.warps == 4


def test_columns_of_wide_rows_are_summed_over_what_was_stored() -> None:
    """The tensors that the stored one is made of are then free, and it can have their memory."""
    g, p = torch.rand(8, 1 << 17), torch.rand(8, 1 << 17).to(torch.bfloat16)

    def backward(g: torch.Tensor, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        d = (g - p.float() * g.sum(1, keepdim=True)).to(torch.bfloat16)
        return d, d.sum(0)

    program = lower(traced(backward, [g, p]), "t")
    fused, _ = spread(on(fuse(program).program, "cuda:0"), nvidia())
    columns = fused.steps[-1]
    assert isinstance(columns, Nest)
    assert not set(fused.inputs) & {e.buffer for e in columns.body if isinstance(e, Load)}
    for got, want in zip(run_program(on(fused, "cpu"), [g, p]), backward(g, p), strict=True):
        torch.testing.assert_close(got.float(), want.float(), rtol=2e-2, atol=1e-2 * want.float().abs().max().item())


def test_parts_that_end_beyond_the_axis_say_where_they_come_from() -> None:
    """Bounds of a prime number of rows are computed for the reduction that is cut."""
    x = torch.randn(7, 3)
    fused = on(fuse(lower(traced(lambda x: (x.sum(1), x.amin()), [x]), "t")).program, "cuda:0")
    made, _ = spread(fused, nvidia("small", 8))
    body = [eqn for step in made.steps if isinstance(step, Nest) for eqn in step.body]
    assert any(isinstance(eqn, Compute) and "inside_part" in eqn.ins for eqn in body)
    assert all(eqn.origin for eqn in body)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def blocks_of(function: Callable[..., Any], *args: torch.Tensor) -> list[GpuSchedule]:
    """The schedules of the first nest of each kernel."""
    program = on(fuse(lower(traced(function, list(args)), "t")).program, "cuda:0")
    plan = make_plan(Fused(program, ()), nvidia())
    return [k.schedules[0] for k in plan.kernels if isinstance(k.schedules[0], GpuSchedule)]


def parts_of(function: Callable[..., Any], *args: torch.Tensor) -> int:
    """Parts of the longest reduction of a program."""
    program = on(fuse(lower(traced(function, list(args)), "t")).program, "cuda:0")
    first = spread(program, nvidia())[0].steps[0]
    assert isinstance(first, Nest)
    return first.axes[0].extent.const


def test_sums_of_several_operands_are_of_one_tile_a_program_too() -> None:
    """A masked mean reads a value and a truth value of each point."""
    x, m = meta(1 << 24, dtype=torch.float32), meta(1 << 24, dtype=torch.bool)
    assert parts_of(lambda x, m: (torch.where(m, x, 0.0).sum() / m.sum(),), x, m) == 1024
    torch.manual_seed(0)
    x, m = torch.randn(1 << 18), torch.rand(1 << 18) < 0.5
    cut(lambda x, m: (torch.where(m, x, 0.0).sum() / m.sum(),), [x, m])


def distance(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
    return ((x - y).float().norm(dim=1).mean(),)


def test_rows_whose_norms_are_averaged_have_a_program_each() -> None:
    rows = 2895, 5790
    assert parts_of(distance, meta(*rows), meta(*rows)) == 2895
    torch.manual_seed(0)
    cut(distance, [torch.randn(700, 1100), torch.randn(700, 1100)])


def test_rows_read_at_two_places_are_held_whole() -> None:
    """No beginning suits both: peeled ends would cost a tile more and leave half of the accesses narrow."""
    (shifted,) = blocks_of(lambda x: (x[:, 1:] * x[:, :-1]).sum(1), meta(4095, 4095))
    assert (shifted.kind, shifted.peel, shifted.warps) == ("rows", 0, 8)
    (plain,) = blocks_of(lambda x: (x * 2).sum(1), meta(4095, 4095))
    assert (plain.kind, plain.peel) == ("loops", 8)


def much(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """Many instructions for each point."""
    for other in (*others, x * 0.5, x * 0.25):
        x = torch.atan2(x.tanh().asinh(), other.abs() + 0.5)
    return x


def test_short_columns_of_which_much_is_computed_are_shared() -> None:
    """84 programs, each of which computed 300 rows, left a third of a GPU idle and the rest waiting."""
    x = meta(304, 5338)
    assert parts_of(lambda x: (much(x).sum(0),), x) == 4
    (plain,) = blocks_of(lambda x: ((x * 2).sum(0),), x)
    assert plain.kind == "columns"
    torch.manual_seed(0)
    cut(lambda x: (much(x).sum(0),), [torch.randn(76, 130)])


def test_rows_that_are_few_and_compute_much_are_shared() -> None:
    """77 rows are more than half as many as there are processors, and yet leave the others idle."""
    program = on(fuse(lower(traced(lambda x: (much(x).sum(1),), [meta(77, 42712)]), "t")).program, "cuda:0")
    assert len(spread(program, nvidia())[0].steps) > 1
    plain = on(fuse(lower(traced(lambda x: ((x * 2).sum(1),), [meta(77, 42712)]), "t")).program, "cuda:0")
    assert len(spread(plain, nvidia())[0].steps) == 1
    torch.manual_seed(0)
    cut(lambda x: (much(x).sum(1),), [torch.randn(77, 4000)])


def test_axes_that_cannot_be_cut_do_not_keep_others_from_it() -> None:
    """A pooling's backward reads at halves of two places; images and channels can be shared."""
    g = torch.randn(24, 30, 18, 64, generator=torch.Generator().manual_seed(0))

    def backward(g: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor]:
        found = aten.avg_pool2d_backward(g, x, [2, 2], [2, 2], [0, 0], False, True, None)
        return ((found * x).sum((0, 1, 2)),)

    _, made = cut(backward, [g, torch.randn(24, 30, 36, 128, generator=torch.Generator().manual_seed(1))])
    first = made.steps[0]
    assert isinstance(first, Nest)
    assert first.axes[0].extent.const * first.axes[1].extent.const >= 240


@pytest.mark.parametrize("reduced", [lambda x: x.sum(0), lambda x: x.argmax(0)], ids=["sum", "place"])
def test_axes_in_remainders_are_cut(reduced: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """What is rolled before it is reduced is read at remainders: a whole tensor was one program's."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (reduced(torch.roll(x, (3,), (0,)) * 2),)

    with FakeTensorMode():
        fakes = [torch.empty(70001, device="cuda")]
        fused = fuse(lower(traced(function, fakes), "t")).program
    made, _ = spread(fused, nvidia())
    verify_program(made)
    assert len(made.steps) == 2
    x = torch.randn(70001, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(*run_program(on(made, "cpu"), [x]), *function(x))


def test_short_runs_are_reduced_with_their_neighbours() -> None:
    """Columns of three numbers: rows are dealt to parts, so that runs are long."""
    torch.manual_seed(0)
    _, made = cut(lambda x: ((x * 2).sum((0, 1)), (x * 2).var((0, 1))), [torch.randn(2, 180000, 3)])
    parts = made.steps[0]
    assert isinstance(parts, Nest)
    assert 3 * parts.axes[-2].extent.const >= 64


def test_small_tiles_of_short_columns_have_neighbours() -> None:
    """One pair of three numbers was a program; pairs that lie apart in two layouts are turned in larger tiles."""
    x = torch.zeros(200000, 2, 3, device="meta")
    y, z = (torch.zeros(8, 2, 3136, 128, device="meta"), torch.zeros(8, 2, 128, 3136, device="meta").transpose(2, 3))
    for function, args in ((lambda x: ((x * 2).sum(1),), [x]), (lambda y, z: ((y + z).sum(1),), [y, z])):
        plan = make_plan(Fused(on(fuse(lower(traced(function, args), "t")).program, "cuda:0"), ()), nvidia())
        (schedule,) = (s for kernel in plan.kernels for s in kernel.schedules)
        assert isinstance(schedule, GpuSchedule)
        assert prod(b.size for b in schedule.blocks) >= 256


@pytest.mark.parametrize(("function", "rows"), [(much, 16), (lambda *x: x[0] + x[1] * x[2] * x[3], 64)])
def test_columns_of_which_much_is_computed_leave_room_for_others(function: Callable[..., Any], rows: int) -> None:
    """Tiles of 64 by 64 spilled two kilobytes a thread, and one of 128 threads worked on a multiprocessor; few programs
    of 8 by 64 left some with a third more to do than others.
    """
    x = [meta(1 << 14, 1 << 12, dtype=torch.float32) for _ in range(4)]
    found = blocks_of(lambda *x: (function(*x).sum(0),), *x)[0]
    assert [b.size for b in found.blocks if b.role == "loop"] == [rows]


def test_what_is_gathered_is_stored_for_the_pass_after() -> None:
    """A second pass would take a sector of memory for each element again; checks of places are where they are read."""

    def gathered(x: torch.Tensor, g: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor]:
        y = torch.nn.functional.layer_norm(torch.roll(x, 4, 0), x.shape)
        z = g[at].sin() * y
        return (z - (z * y).mean() * y,)

    n = 3 * 5 * 7 * 512
    torch.manual_seed(0)
    fused, made = cut(gathered, [torch.randn(n), torch.randn(n), torch.randint(0, n, (n,))])
    assert reads(made, set(fused.inputs[1:])) == 1


def test_a_transposed_operand_moves_no_axis_outwards() -> None:
    """Its columns of 66,822 numbers are the innermost axis of all the others: 32 programs each took one."""
    x, y = torch.randn(66822, 32), torch.randn(32, 66822).t()
    _, made = cut(lambda x, y: (x * y, (x * y).sum()), [x, y])
    first = made.steps[0]
    assert isinstance(first, Nest)
    reduced = {a for e in first.body if isinstance(e, Reduce) for a in e.axes}
    kept = [a.extent.const for a in first.axes if a.name not in reduced]
    assert prod(kept) >= nvidia().processors
    assert 32 not in kept


def test_tall_tiles_that_are_barely_filled_are_loops() -> None:
    """272 rows in a tile of 512: half of what programs computed was beyond the end."""
    (sums,) = blocks_of(lambda x: (much(x).sum(1),), meta(192, 272, 136, dtype=torch.float32))
    assert [b.role for b in sums.blocks] == ["grid", "loop", "grid"]
    assert sums.blocks[-1].size == 32  # 136 columns are five tiles of 32, and barely more than two of 64
    (filled,) = blocks_of(lambda x: (much(x).sum(1),), meta(192, 500, 136, dtype=torch.float32))
    assert [b.role for b in filled.blocks] == ["grid", "whole", "grid"]
    (odd,) = blocks_of(lambda x: (much(x).sum(1),), meta(192, 272, 137, dtype=torch.float32))
    assert [b.role for b in odd.blocks] == ["grid", "loop", "grid"]
    assert odd.stages == 1  # read ahead, odd rows go in pieces of four bytes


def test_few_short_columns_of_which_much_is_computed_have_many_threads() -> None:
    """514 programs of two warps left multiprocessors waiting for eight warps each."""
    x = meta(514, 25, 228, dtype=torch.float32)
    (busy,) = blocks_of(lambda x: (much(x).sum(1),), x)
    assert busy.warps == 8
    (plain,) = blocks_of(lambda x: ((x * 2).sum(1),), x)
    assert plain.warps == 2


def test_turned_tiles_of_which_much_is_computed_are_small() -> None:
    """A thread had 64 points of sines and exponentials, and spilled."""
    x = torch.empty(78, 517, 517, dtype=torch.bfloat16, device="meta").transpose(1, 2)
    (found,) = blocks_of(lambda x: (x.expm1().sin().tanh().contiguous(),), x)
    assert max(b.size for b in found.blocks) == 32
    (plain,) = blocks_of(lambda x: ((x * 2).contiguous(),), x)
    assert max(b.size for b in plain.blocks) == 128


def test_logarithms_of_running_sums_are_taken_of_few_points_a_thread() -> None:
    """64 points a thread were 38,000 lines of code and spilled."""
    x = torch.empty(700, 210_000, device="meta")
    for scan, most in ((torch.logcumsumexp, 16), (torch.cumsum, 64)):
        found = blocks_of(lambda x, scan=scan: (scan(x * 2, 0),), x)[0]
        assert prod(b.size for b in found.blocks) <= 32 * found.warps * most
        assert most == 16 or prod(b.size for b in found.blocks) > 32 * found.warps * 16


def test_a_sum_of_everything_beside_turned_results_is_taken_in_turned_tiles() -> None:
    """A loop over both axes read a sector for each number of the transposed operand: 1.3 ms for 0.3."""
    x, y = torch.randn(282, 512, 192), torch.randn(282, 192, 512).transpose(1, 2)
    _, made = cut(lambda x, y: (x * y, (x * y).sum()), [x, y])
    first = made.steps[0]
    assert isinstance(first, Nest)
    (reduced,) = {a for e in first.body if isinstance(e, Reduce) for a in e.axes}
    extents = {a.name: a.extent.const for a in first.axes}
    assert sorted(extents.values()) == [192, 282, 512]
    assert extents[reduced] != 282
