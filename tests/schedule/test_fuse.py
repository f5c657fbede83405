"""Fusion keeps meaning (checked by the interpreter) and reaches the kernel counts it exists for."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from lamina.ir.loops import LibraryCall, Load, Nest, Store
from lamina.ir.loops_interp import run_program
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import Fused, fuse


def fused(function: Callable[..., Any], *args: Any, mode: Literal["real", "fake", "symbolic"] = "fake") -> Fused:
    """The fused program of ``function``, after checking that it computes what the function does."""
    gm = make_fx(function, tracing_mode=mode)(*args)
    result = fuse(lower(gm, "test"))
    inputs = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    expected = function(*args)
    expected = expected if isinstance(expected, tuple | list) else (expected,)
    placeholders = gm.graph.find_nodes(op="placeholder")
    if len(placeholders) == len(inputs):
        for got, want in zip(run_program(result.program, inputs), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    return result


def nests(result: Fused) -> int:
    return sum(isinstance(s, Nest) for s in result.program.steps)


def calls(result: Fused) -> int:
    return sum(isinstance(s, LibraryCall) for s in result.program.steps)


def test_pointwise_chain_is_one_nest() -> None:
    result = fused(lambda x, y: torch.relu(x * y + 1).exp() - x, torch.randn(4, 6), torch.randn(6))
    assert nests(result) == 1


def test_softmax_with_work_on_both_sides_is_one_nest() -> None:
    result = fused(lambda x, b: torch.softmax(x * 0.5 + b, -1).mul(3), torch.randn(2, 5, 8), torch.randn(8))
    assert nests(result) == 1


def test_layer_norm_after_a_residual_is_one_nest() -> None:
    def function(
        x: torch.Tensor, r: torch.Tensor, w: torch.Tensor, b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        h = x + r
        return h, F.layer_norm(h, (8,), w, b)

    result = fused(function, torch.randn(2, 3, 8), torch.randn(2, 3, 8), torch.randn(8), torch.randn(8))
    assert nests(result) == 1


def test_views_between_producer_and_consumer_do_not_stop_fusion() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a = (x * 2).view(2, 3, 8)
        return torch.softmax(a + y, -1).reshape(6, 8)

    assert nests(fused(function, torch.randn(6, 8), torch.randn(2, 3, 8))) == 1


def test_split_and_merged_axes_line_up() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(x)
        return h.view(2, 4, 3, 5).sum((2, 3)) + h.view(2, 4, 15).amax(-1)

    assert nests(fused(function, torch.randn(8, 15))) == 1


def test_row_result_and_column_sums_come_from_one_read() -> None:
    def function(x: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        d = g * (x > 0)
        return d, d.sum(0)

    assert nests(fused(function, torch.randn(16, 8), torch.randn(16, 8))) == 1


def test_reductions_over_different_axes_used_inside_stay_apart() -> None:
    result = fused(lambda x: torch.softmax(x, 0) + torch.softmax(x, 1), torch.randn(6, 8))
    assert nests(result) == 2
    refused = [d.reason for d in result.decisions if d.kind == "fuse" and not d.taken]
    assert any("different axes" in reason for reason in refused)


def test_products_with_a_vector_read_each_matrix_along_its_rows() -> None:
    """Joined, the second matrix would be read down its columns while the first ones' rows are at hand."""

    def gated(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        return (down * (F.silu((gate * x).sum(-1)) * (up * x).sum(-1))).sum(-1)

    result = fused(gated, torch.randn(64), torch.randn(96, 64), torch.randn(96, 64), torch.randn(64, 96))
    read = [{e.buffer for e in s.body if isinstance(e, Load)} for s in result.program.steps if isinstance(s, Nest)]
    assert any("down_1" in buffers for buffers in read)
    assert not any("down_1" in buffers and buffers & {"gate_1", "up_1"} for buffers in read)


def test_a_library_call_between_two_nests_keeps_them_apart() -> None:
    result = fused(lambda x, w: torch.relu(torch.relu(x) @ w + x), torch.randn(8, 8), torch.randn(8, 8))
    assert (nests(result), calls(result)) == (2, 1)


def test_rotary_dissolves_its_concatenation() -> None:
    def rotary(q: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = q.chunk(2, -1)
        return q * cos + torch.cat((-b, a), -1) * sin

    result = fused(rotary, torch.randn(2, 4, 6, 8), torch.randn(6, 8), torch.randn(6, 8))
    assert nests(result) == 1, "both halves in one pass"
    stored = {e.buffer for s in result.program.steps if isinstance(s, Nest) for e in s.body if isinstance(e, Store)}
    assert len(stored) == 1, "only the result is written, not the concatenation"


def test_a_concatenation_of_concatenations_along_another_dimension_is_dissolved() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([x, x.abs()], 1)
        return torch.cat([rows, rows.tanh()], 2) + y

    result = fused(function, torch.randn(4, 3, 5), torch.randn(4, 6, 10))
    assert nests(result) == 1, "four pieces in one pass"


@pytest.mark.parametrize("seed", range(40))
def test_random_concatenations_mean_the_same(seed: int) -> None:
    """Pieces along one or several dimensions, of values and of other concatenations, also rolled, flipped and cut."""
    r = random.Random(seed)

    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        values, outs = [x, y * 2], []
        for _ in range(r.randint(2, 5)):
            a, dim = r.choice(values), r.randrange(3)
            size = list(a.shape)
            b = r.choice([v for v in values if [*v.shape[:dim], *v.shape[dim + 1 :]] == size[:dim] + size[dim + 1 :]])
            made = torch.cat([r.choice((torch.sin, torch.neg, torch.abs))(a), b, *([a + 1] * r.randint(0, 1))], dim)
            kind = r.randrange(5)
            if kind == 0:
                made = made.roll(r.randint(1, 3), dim)
            elif kind == 1:
                made = made.flip(dim)
            elif kind == 2:
                made = made.narrow(dim, 1, made.shape[dim] - 1)
            made = made * 2 + torch.arange(made.shape[-1])
            values.append(made)
            outs += [made.sum(r.randrange(3))] if r.random() < 0.3 else []
            outs += [made] if r.random() < 0.3 else []
        return [*outs, values[-1].cos()]

    state = r.getstate()

    def repeatable(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        r.setstate(state)
        return function(x, y)

    fused(repeatable, torch.randn(2, 3, 4), torch.randn(2, 3, 4))


def test_halves_of_heads_in_one_row_are_read_once() -> None:
    """Both halves of what a product gives: of each head a part of the row, which no axis runs over without gaps."""

    def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        q = x.view(2, x.shape[0] // 2, 4, 8).transpose(1, 2)
        a, b = q.chunk(2, -1)
        return q * cos + torch.cat((-b, a), -1) * sin

    assert nests(fused(rotary, torch.randn(12, 32), torch.randn(6, 8), torch.randn(6, 8))) == 1


@pytest.mark.parametrize(("places", "count"), [(4, 1), (512, 2)])
def test_costly_values_of_a_table_are_not_computed_again_in_each_row(places: int, count: int) -> None:
    """Sines that all heads read; of few of them a kernel of their own takes longer."""

    def turned(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        return x * angles.cos() + angles.sin()

    assert nests(fused(turned, torch.randn(64, places, 16), torch.randn(places, 16))) == count
    assert nests(fused(turned, torch.randn(places, 16, 64), torch.randn(places, 16, 1))) == 1, "once for a row"


def test_parts_of_a_larger_tensor_are_no_copies_of_their_own() -> None:
    """As in a shift of some channels by assignments: each part is a fraction of what it is copied from."""

    def function(x: torch.Tensor) -> torch.Tensor:
        result = torch.zeros_like(x)
        for k in range(0, 6, 2):
            lines = result[k : k + 2]
            part = torch.ops.aten.copy(lines[:, 1:], x[k : k + 2, :-1])
            result = torch.slice_scatter(result, torch.slice_scatter(lines, part, 1, 1), 0, k, k + 2)
        return result * 2 + x

    assert nests(fused(function, torch.randn(6, 9))) == 1


def test_writes_to_an_input_come_after_its_readers() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = x.sum(0)
        x.copy_(y * 2)
        return total + x[0]

    gm = make_fx(torch.func.functionalize(function), tracing_mode="fake")(torch.randn(4, 3), torch.randn(4, 3))
    program = fuse(lower(gm, "test")).program
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    kept = x.clone()
    (got,) = run_program(program, [x, y])
    torch.testing.assert_close(got, function(kept, y))
    torch.testing.assert_close(x, kept)


def scaled_by_what_is_updated(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
    product = y * x
    x.copy_(x + 3)
    return (product,)


def scaled_by_what_was_updated(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
    new = x + 3
    x.copy_(new)
    return (y * new,)


def added_to_the_rows(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
    y.copy_(y + x)
    x.copy_(x * 2)
    return (y.sum(),)


@pytest.mark.parametrize("function", [scaled_by_what_is_updated, scaled_by_what_was_updated, added_to_the_rows])
def test_rows_that_read_a_vector_all_read_it_before_it_is_written(function: Callable[..., Any]) -> None:
    x, y = torch.randn(2), torch.randn(5, 2)
    result = fuse(lower(make_fx(function)(x.clone(), y.clone()), "test"))
    ours, theirs = (x.clone(), y.clone()), (x.clone(), y.clone())
    torch.testing.assert_close(run_program(result.program, ours), list(function(*theirs)))
    torch.testing.assert_close(ours, theirs)
    vectors = [s for s in result.program.steps if isinstance(s, Nest) and len(s.axes) == 1]
    assert len(vectors) == 1  # what updates the vector is a nest of its own


@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_rounding_between_operations_follows_numerics(numerics: str) -> None:
    x = torch.randn(64, dtype=torch.bfloat16)
    gm = make_fx(lambda v: (v * 1.7) * 1.3, tracing_mode="fake")(x)
    (got,) = run_program(fuse(lower(gm, "test"), numerics).program, [x])
    step = (x * 1.7) * 1.3
    once = ((x.float() * 1.7) * 1.3).bfloat16()
    assert not torch.equal(step, once), "the sample must tell the two apart"
    assert torch.equal(got, step if numerics == "eager" else once)


def test_symbolic_sizes_fuse_like_static_ones() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        b, s, c = x.shape
        return torch.softmax(torch.tanh(x).view(b * s, c) * 2, -1).view(b, s, c) + x

    assert nests(fused(function, torch.randn(3, 5, 7), mode="symbolic")) == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_library_calls_read_does_not_wait_in_a_gpu_s_memory(device: str) -> None:
    """The products' operand could be read and freed before the other product makes as large a result."""

    def function(h: torch.Tensor, w: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        dw = dy.t() @ F.gelu(h)
        return dw, torch.ops.aten.gelu_backward(dy @ w, h) @ w.t()

    shapes = ((1024, 512), (64, 512), (1024, 64))
    program = lower(make_fx(function, tracing_mode="fake")(*(torch.empty(shape) for shape in shapes)), "test")
    result = fuse(replace(program, buffers=tuple(replace(b, device=device) for b in program.buffers)))
    assert nests(result) == (2 if device == "cuda" else 1)
    assert any("wait in memory" in d.reason for d in result.decisions if not d.taken) == (device == "cuda")


def test_a_factor_is_computed_where_its_padding_is() -> None:
    x, w = torch.randn(8, 13), torch.randn(16, 4)
    result = fused(lambda x, w: F.pad(x.softmax(-1), (0, 3)) @ w, x, w)
    written = {e.buffer for s in result.program.steps if isinstance(s, Nest) for e in s.body if isinstance(e, Store)}
    assert [tuple(int(n) for n in b.shape) for b in result.program.buffers if b.name in written] == [(8, 16)]
    torch.testing.assert_close(run_program(result.program, [x, w])[0], F.pad(x.softmax(-1), (0, 3)) @ w)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.avg_pool2d(x, 3, 2).mean((2, 3)),
        lambda x: F.max_pool2d(x, 3, 1, 1).softmax(1),
        lambda x: sum(x[..., k : k + 9] * (k + 1) for k in range(9)).sum(-1),
    ],
)
def test_reductions_join_windows_on_a_cpu(function: Callable[..., Any]) -> None:
    """Neighbours share what they read only on a GPU."""
    assert nests(fused(function, torch.randn(4, 8, 18, 18))) == 1
