"""From a function to Triton kernels: plans for a small GPU, run in Triton's interpreter, against eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from lamina.base.dtypes import torch_dtype
from lamina.base.target import nvidia
from lamina.codegen.triton.emit import emit
from lamina.ir.index import Axis, as_expr
from lamina.ir.loops import Buffer, BufferView, Compute, Constant, LibraryCall, Load, LoopProgram, Nest, Store
from lamina.ir.plan import GpuSchedule, KernelCall, Plan
from lamina.ir.plan_print import print_plan, read_plan
from lamina.ir.plan_verify import verify_plan
from lamina.lower.context import Lowering
from lamina.lower.to_loops import lower
from lamina.schedule.fuse import Fused, fuse
from lamina.schedule.plan import make_plan
from lamina.testing import judge, tensors
from tests.codegen.triton.harness import Interpreter
from tests.lower.torch_private import traced
from tests.schedule.test_gpu_split import on

CHANNELS_LAST = torch.channels_last
SMALL = nvidia("small", 8, approximate=False)
Library = Callable[[LibraryCall, dict[str, Tensor], dict[str, Buffer], dict[str, int]], None]


def planned(function: Callable[..., Any], *arguments: Tensor) -> Plan:
    """The plan of a function for a GPU of eight processors, printed and read back."""
    with patch.object(Lowering, "on_gpu", lambda *_: True):  # the tensors are a CPU's
        program = lower(traced(function, arguments), "test")
    program = replace(program, buffers=tuple(replace(b, device="cuda:0") for b in program.buffers))
    plan = make_plan(fuse(program), SMALL)
    verify_plan(plan)
    assert read_plan(print_plan(plan)) == plan
    return plan


def run(
    plan: Plan, interpreter: Interpreter, arguments: Sequence[Tensor], library: Library | None = None
) -> list[Tensor]:
    """Run every step in order, each buffer in memory of its own. ``library`` does library calls, errors without it."""
    memory = {n: t.clone() for n, t in zip(plan.inputs, arguments, strict=True) if isinstance(n, str)}
    for b in plan.buffers:
        if b.name not in memory:
            shape, strides = [int(n) for n in b.shape], [int(n) for n in b.strides]
            memory[b.name] = torch.empty_strided(shape, strides, dtype=torch_dtype(b.dtype))
    sources = {k.name: emit(k, SMALL) for k in plan.kernels}
    buffers = {b.name: b for b in plan.buffers}
    for step in plan.steps:
        if library is not None and isinstance(step, LibraryCall):
            library(step, memory, buffers, {})
            continue
        assert isinstance(step, KernelCall), step.op
        given = [memory[b] for b in step.buffers]
        done, failed = interpreter.run(sources[step.kernel], given, [int(n) for n in step.sizes])
        assert failed == 0
        for name, tensor in zip(step.buffers, done, strict=True):
            memory[name].copy_(tensor)
    return [view(memory[o.buffer], o) for o in plan.outputs if isinstance(o, BufferView)]


def view(tensor: Tensor, out: BufferView) -> Tensor:
    return tensor.as_strided([int(n) for n in out.shape], [int(n) for n in out.strides], int(out.offset))


def norm_backward(x: Tensor, w: Tensor, g: Tensor) -> Any:
    mean, var = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    return torch.ops.aten.native_layer_norm_backward(
        g, x, [x.shape[-1]], mean, (var + 1e-5).rsqrt(), w, w, [True, True, True]
    )


def gelu_backward(g: Tensor, x: Tensor) -> Any:
    d = torch.ops.aten.gelu_backward(g, x)
    return d, d.sum(0)


def two_layouts(g: Tensor, x: Tensor) -> Any:
    return (g * x).sum((0, 2, 3)), g.sum((0, 2, 3))


def group_norm_backward(g: Tensor, x: Tensor, w: Tensor) -> Any:
    samples, channels, high, wide = x.shape
    groups = x.reshape(samples, 4, -1)
    mean, scale = groups.mean(2), (groups.var(2, unbiased=False) + 1e-5).rsqrt()
    sizes = samples, channels, high * wide, 4
    inner = x.clone(memory_format=torch.contiguous_format)
    return torch.ops.aten.native_group_norm_backward(g.tanh(), inner, mean, scale, w, *sizes, [True, True, True])


def products(a: Tensor, b: Tensor) -> Any:
    p, q = a.log_softmax(1), b.log_softmax(1)
    return p, (p * q).sum() / len(a), (p * q).amax((0, 1))


def short_axis_beside_rows(x: Tensor, w: Tensor) -> Any:
    y = x / (1 + w.abs())
    z = F.normalize(torch.where(y > 0, y, 0.1 * y).exp().log1p() * y, dim=2) * y.abs().sqrt()
    return z / w, (z.sin() * y).sum(1)


def repeated_backward(x: Tensor, g: Tensor) -> Any:
    """The gradient of rows that were repeated, over whose sums others go along memory."""
    s = g.unflatten(2, (-1, 2)).sum(3)
    return s, (s * x).sum((0, 1, 3)), s * 2 - x


def slices_backward(x: Tensor, g: Tensor) -> Any:
    y = (x.abs() + 0.1).sqrt()
    d = F.pad(torch.ops.aten.gelu_backward(g, y[:, :5]), (0, 0, 0, 6)) + F.pad(g, (0, 0, 6, 0))
    return d / (2 * y) * x.sign(), (d * y).sum((0, 1))


torch.manual_seed(0)

CASES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], int]] = {
    "column sum": (lambda x: x.sum(0), (torch.randn(1024, 24),), 1),
    "softmax beside column sums": (lambda x: (x.sum(0), x.softmax(1), x.clone()), (torch.randn(8, 6).t(),), 1),
    "uneven column sum": (lambda x: x.sum(0), (torch.randn(1031, 24),), 1),
    "full sum": (lambda x: x.sum(), (torch.randn(33000),), 1),
    "full variance": (lambda x: x.var(), (torch.randn(64, 1024) + 30,), 1),
    "variance of a prime number": (lambda x: x.var(), (torch.randn(65537) + 30,), 1),
    "variances of a prime number of rows": (
        lambda x: torch.var_mean(x, (0, 1)),
        (torch.randn(3, 1031, 24) * 2 + 5,),
        1,
    ),
    "sum of rows that have no divisor": (lambda x: (x * 2).sum((0, 1)), (torch.rand(2, 16927, 3),), 1),
    "full argmax": (lambda x: x.argmax(), (torch.randn(65536).round(decimals=1),), 1),
    "batch norm": (lambda x: F.batch_norm(x, None, None, None, None, True), (torch.randn(32, 2, 16, 32) + 9,), 1),
    "norm backward": (norm_backward, (torch.randn(96, 40), torch.randn(40), torch.randn(96, 40)), 1),
    "norm backward of images": (
        norm_backward,
        (torch.randn(4, 6, 5, 40), torch.randn(40), torch.randn(4, 6, 5, 40)),
        1,
    ),
    "group norm backward": (
        group_norm_backward,
        (torch.randn(2, 24, 40, 36), torch.randn(2, 24, 40, 36), torch.randn(24)),
        1,
    ),
    "group norm backward of channels last": (
        group_norm_backward,
        (torch.randn(2, 24, 40, 36), torch.randn(2, 24, 40, 36).to(memory_format=CHANNELS_LAST), torch.randn(24)),
        1,
    ),
    "activation and bias gradient": (gelu_backward, (torch.randn(640, 24), torch.randn(640, 24)), 1),
    "rows and columns apart": (lambda x: (x - x.sum(1, keepdim=True), x.sum(0)), (torch.randn(6, 9001),), 1),
    "mean of norms": (lambda x, y: ((x - y).norm(dim=1) + 1).mean(), (torch.randn(700, 130), torch.randn(700, 130)), 1),
    "products of rows": (products, (torch.randn(70, 300), torch.randn(70, 300)), 1),
    "products of wide rows": (products, (torch.randn(6, 9001), torch.randn(6, 9001)), 1),
    "softmax": (lambda x: x.softmax(-1), (torch.randn(20, 77),), 0),
    "quantised rows": (lambda x: (x / (x.abs().amax(-1, keepdim=True) / 127)).round(), (torch.randn(20, 77),), 0),
    "group norm": (lambda x: F.silu(F.group_norm(x, 4)), (torch.randn(4, 8, 12, 5),), 0),
    "running counts": (
        lambda i: (i.unsqueeze(1) == torch.arange(5)).long().cumsum(0),
        (torch.randint(5, (3000,)),),
        0,
    ),
    "two layouts": (
        two_layouts,
        (
            torch.randn(4, 64, 16, 32),
            torch.randn(4, 64, 16, 32).to(memory_format=CHANNELS_LAST),
        ),
        1,
    ),
    "nests of one form": (
        lambda *tensors: tuple(t.sigmoid() for t in tensors),
        tuple(torch.randn(n) for n in (7, 24, 17000, 300, 1, 40000, 33)),
        0,
    ),
    "rows of a short axis beside its sums": (short_axis_beside_rows, (torch.randn(9, 5, 33), torch.randn(9, 1, 33)), 0),
    "two slices of one tensor": (slices_backward, (torch.randn(9, 11, 40), torch.randn(9, 5, 40)), 0),
    "sums of what was repeated": (repeated_backward, (torch.randn(8, 8, 9, 31), torch.randn(8, 8, 18, 31)), 1),
    "small and independent": (lambda x, y: (x.exp(), y.sum(1)), (torch.randn(50), torch.randn(7, 9)), 0),
}


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("name", CASES)
def test_plan(interpreter: Interpreter, name: str) -> None:
    function, arguments, cuts = CASES[name]
    plan = planned(function, *arguments)
    assert bool(cuts) == any(d.kind == "cut" for d in plan.decisions)
    ours = run(plan, interpreter, arguments)
    eager = tensors(function(*arguments))
    exact = tensors(function(*(a.double() for a in arguments)))
    for mine, theirs, right in zip(ours, eager, exact, strict=True):
        assert not judge(mine, theirs, right)


@pytest.mark.parametrize("name", ["products of wide rows", "products of rows", "mean of norms"])
def test_a_loss_over_rows_is_summed_where_they_are_reduced(name: str) -> None:
    """Sums over everything that need a row's results are sums over each row first: nothing is read for them again."""
    function, arguments, _ = CASES[name]
    plan = planned(function, *arguments)
    reads = [sum(n in plan.inputs for n in s.buffers) for s in plan.steps if isinstance(s, KernelCall)]
    assert reads[0] == 2
    assert not any(reads[1:])
    assert plan.kernels[0].schedules[0].kind in ("rows", "loops")


def test_cut_reductions_propagate_nan(interpreter: Interpreter) -> None:
    x = torch.randn(65536)
    x[40000] = float("nan")
    x[50000] = float("nan")
    (place, top) = run(planned(lambda t: (t.argmax(), t.amax()), x), interpreter, (x,))
    assert int(place) == 40000
    assert top.isnan()


@pytest.mark.parametrize("nans", [False, True])
def test_of_equals_the_first_counts_where_loops_go_in_another_order(interpreter: Interpreter, nans: bool) -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 3, (9, 70, 33)).float()
    if nans:
        x[torch.rand(x.shape) < 0.01] = float("nan")
    x = x.permute(2, 1, 0)
    (places,) = run(planned(lambda t: t.flatten(1).argmin(1), x), interpreter, (x,))
    assert torch.equal(places, x.flatten(1).argmin(1))


def norm_of_channels(x: Tensor, w: Tensor) -> Tensor:
    mean = x.mean(1, keepdim=True)
    return (x - mean) / ((x - mean).pow(2).mean(1, keepdim=True) + 1e-6).sqrt() * w[:, None, None]


def norm_of_embedded(places: Tensor, table: Tensor, positions: Tensor) -> Tensor:
    return F.layer_norm(F.embedding(places, table) + positions, table.shape[1:])


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (norm_of_channels, (torch.randn(2, 12, 96, 96), torch.randn(12))),
        (norm_of_embedded, (torch.randint(40, (5, 11)), torch.randn(40, 48), torch.randn(11, 48))),
    ],
)
def test_norms_are_one_kernel_with_what_they_read(
    interpreter: Interpreter, function: Callable[..., Any], arguments: tuple[Tensor, ...]
) -> None:
    """Columns are held, and gathered rows are read along what is reduced, however long the places of them are."""
    plan = make_plan(fuse(on(lower(traced(function, arguments), "test"), "cuda:0")), SMALL)
    assert [len(k.nests) for k in plan.kernels] == [1]
    (ours,) = run(plan, interpreter, arguments)
    exact = function(*(a.double() if a.is_floating_point() else a for a in arguments))
    assert not judge(ours, function(*arguments), exact)


def norm_of_channels_last(x: Tensor, w: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 4, w))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (
            norm_of_channels_last,
            (torch.randn(2, 40, 16, 32).add(5).to(memory_format=torch.channels_last), torch.randn(40)),
        ),
        (lambda x: x.sum((1, 3)), (torch.randn(4, 256, 8, 18),)),
        (lambda x: x.amax((1, 3)), (torch.randn(4, 256, 8, 18),)),
    ],
)
def test_short_runs_are_read_wide(
    interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], arguments: Any
) -> None:
    """Neighbouring groups' channels are read together and joined afterwards."""
    monkeypatch.setattr("lamina.schedule.gpu_cut_choice.MANY", 1)
    plan = planned(function, *arguments)
    assert any(d.kind == "cut" for d in plan.decisions)
    assert plan.kernels[0].schedules[0].kind == "columns"
    (ours,) = run(plan, interpreter, arguments)
    exact = function(*(a.double() for a in arguments))
    assert not judge(ours, function(*arguments), exact)


def test_nests_of_one_form_share_launches() -> None:
    """Lengths that would make the others' accesses narrow have a launch of their own, and so has a single number."""
    function, arguments, _ = CASES["nests of one form"]
    plan = planned(function, *arguments)
    assert sorted(len(k.nests) for k in plan.kernels) == [1, 3, 3]
    assert all(emit(k, SMALL).text.count("libdevice.exp(") == 1 for k in plan.kernels)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_floats_of_eight_bits(interpreter: Interpreter, dtype: torch.dtype) -> None:
    """Conversions on a GPU are part of the kernels around them and round as eager's, beyond the largest number too."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        scaled = (x * 2).to(dtype)
        return scaled, scaled.float() + 1

    torch.manual_seed(0)
    x = torch.cat([torch.randn(2000), torch.randn(2000) * 2e-3, torch.randn(2000) * 1e4, torch.tensor([232.0, 240.0])])
    with FakeTensorMode():
        graph = traced(function, (torch.empty(x.shape, device="cuda"),))
    plan = make_plan(fuse(lower(graph, "test")), SMALL)
    assert plan.library_count == 0
    ours, eager = run(plan, interpreter, (x,)), function(x)
    finite = eager[1].isfinite()  # the interpreter takes the infinities of float8_e5m2 for numbers
    torch.testing.assert_close(ours[0].float(), eager[0].float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(ours[1][finite], eager[1][finite], rtol=0, atol=0)


def test_updated_numbers_do_not_serialise(interpreter: Interpreter) -> None:
    """A step number that a nest reads and increases is written by a launch of its own."""
    axis = Axis("i0", as_expr(20000))
    update = Nest(
        "update",
        (axis,),
        (
            Load("v0", "step", (), "float32"),
            Constant("v1", 1.0, "float32"),
            Compute("v2", "add", ("v0", "v1"), "float32"),
            Load("v3", "x", (as_expr(axis),), "float32"),
            Compute("v4", "mul", ("v3", "v2"), "float32"),
            Store("x", (as_expr(axis),), "v4"),
            Store("step", (), "v2"),
        ),
    )
    one, none = as_expr(1), as_expr(0)
    buffers = (
        Buffer("x", "float32", (axis.extent,), (one,), "cpu", "input"),
        Buffer("step", "float32", (), (), "cpu", "input"),
    )
    views = tuple(BufferView(b.name, b.shape, b.strides, none) for b in buffers)
    program = LoopProgram("test", ("x", "step"), buffers, (update,), views)
    plan = make_plan(Fused(program, ()), SMALL)
    verify_plan(plan)
    assert [b.role for k in plan.kernels for s in k.schedules for b in s.blocks] == ["grid"]
    x, step = run(plan, interpreter, (torch.ones(20000), torch.tensor(3.0)))
    assert torch.equal(x, torch.full((20000,), 4.0))
    assert step == 4


def test_what_is_gathered_for_one_pass_is_kept_for_the_next(interpreter: Interpreter) -> None:
    """Behind a row that is read rolled, so that its parts are at remainders."""

    def gathered_twice(x: Tensor, at: Tensor) -> Tensor:
        y = F.layer_norm(torch.roll(x, 4, 0), (x.numel(),))
        z = x[at].sin() * y
        return z - (z * y).mean() * y

    rng = torch.Generator().manual_seed(0)
    args = torch.randn(16800, generator=rng), torch.randint(0, 16800, (16800,), generator=rng)
    plan = planned(gathered_twice, *args)
    assert len(plan.steps) > 1
    exact = gathered_twice(args[0].double(), args[1])
    (ours,) = run(plan, interpreter, args)
    assert not judge(ours, gathered_twice(*args), exact)


def overlap(a: Tensor, b: Tensor) -> Tensor:
    low, high = torch.max(a[:, None, :2], b[None, :, :2]), torch.min(a[:, None, 2:], b[None, :, 2:])
    sides = (high - low).clamp(min=0)
    return sides[..., 0] * sides[..., 1]


def distances(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, None] - b[None]).square().sum(-1).sqrt()


@pytest.mark.parametrize("function", [overlap, distances])
@pytest.mark.parametrize(("rows", "columns"), [(3, 256), (37, 261), (16, 100), (40, 250)])
def test_rows_with_operands_in_common_that_lie_apart(
    interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], rows: int, columns: int
) -> None:
    monkeypatch.setattr("lamina.schedule.gpu.MANY_POINTS", 1)
    a, b = torch.randn(rows, 4), torch.randn(columns, 4)
    plan = planned(lambda a, b: (function(a, b),), a, b)
    (kernel,) = plan.kernels
    (schedule,) = kernel.schedules
    assert isinstance(schedule, GpuSchedule)
    if rows > 3:
        assert schedule.kind == "pointwise"
        assert [block.size for block in schedule.blocks] == [8, 64 if columns == 261 else 128]
    (result,) = run(plan, interpreter, (a, b))
    torch.testing.assert_close(result, function(a, b))


def test_pairs_of_each_image(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.schedule.gpu.MANY_POINTS", 1)
    a, b = torch.randn(3, 20, 4), torch.randn(3, 128, 4)
    paired = torch.vmap(overlap)
    plan = planned(lambda a, b: (paired(a, b),), a, b)
    (schedule,) = plan.kernels[0].schedules
    assert isinstance(schedule, GpuSchedule)
    assert [block.size for block in schedule.blocks] == [1, 8, 128]
    (result,) = run(plan, interpreter, (a, b))
    torch.testing.assert_close(result, paired(a, b))
