"""Products and convolutions on a GPU: kernels with epilogues, one row, channels-last images; values as eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lamina
from lamina.testing import judge, tensors

DTYPES = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.compiler.reset()


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(sum(shape) + len(shape))
    return (torch.randn(shape, generator=generator, device="cuda") / shape[-1] ** 0.5).to(dtype)


def check(function: Callable[..., Any], args: list[Tensor], training: bool = False) -> Any:
    """Compare with eager and fp64, forward and backward, strides too; the record."""
    compiled = lamina.compile(function, dynamic=False, options={"strict": True, "verify": True})
    results = []
    for call, dtype in ((compiled, None), (function, None), (function, torch.float64)):
        given = [a.detach().to(dtype or a.dtype).requires_grad_(training) for a in args]
        outputs = tensors(call(*given))
        found = list(outputs)
        if training:
            found += torch.autograd.grad(outputs, given, [torch.ones_like(o) for o in outputs])
        results.append(found)
    for number, (ours, eager, exact) in enumerate(zip(*results, strict=True)):
        assert not judge(ours, eager, exact), number
        assert ours.stride() == eager.stride(), number
    return compiled.record


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(512, 512, 256), (300, 257, 331)])
@pytest.mark.parametrize("training", [False, True])
def test_an_epilogue(sizes: tuple[int, int, int], dtype: torch.dtype, training: bool) -> None:
    rows, inner, columns = sizes
    args = [randn(rows, inner, dtype=dtype), randn(columns, inner, dtype=dtype), randn(columns, dtype=dtype)]
    record = check(lambda x, w, b: F.gelu(F.linear(x, w, b)), args, training)
    assert any(d.taken for d in record.decisions("product"))


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("rows", [3, 16, 40])
def test_weights_that_are_kept_as_bytes(rows: int, kind: torch.dtype) -> None:
    """A factor for each row of the weights, and one for each group of 128 of its columns."""
    codes = (randn(4096, 1024).float() * 300).clamp(-127, 127).to(kind)
    scales, groups = randn(4096, 1), randn(4096, 8, 1)

    def linear(x: Tensor, scales: Tensor, bias: Tensor) -> Tensor:
        return F.linear(x, codes.to(x.dtype) * scales, bias)

    def grouped(x: Tensor, groups: Tensor) -> Tensor:
        weights = (codes.view(4096, 8, 128).to(x.dtype) * groups).view(4096, 1024)
        return F.gelu(F.linear(x, weights), approximate="tanh")

    with torch.no_grad():
        for function, args in ((linear, [scales, randn(4096)]), (grouped, [groups])):
            record = check(function, [randn(rows, 1024), *args])
            taken = [d for d in record.decisions("product") if d.taken and len(d.subject) > 1]
            assert taken, record.decisions("product")
            (plan,) = [s.value for s in record.stages if s.name == "plan"]
            assert (plan.kernel_count, plan.library_count) == (1, 0)


def test_a_batch_with_a_residual() -> None:
    args = [randn(6, 300, 200), randn(6, 200, 96), randn(6, 300, 96)]
    check(lambda a, b, r: torch.relu(torch.bmm(a, b)) * 0.5 + r, args)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32])
def test_a_gated_pair_with_one_row(dtype: torch.dtype) -> None:
    args = [randn(1, 2048, dtype=dtype), randn(5632, 2048, dtype=dtype), randn(5632, 2048, dtype=dtype)]
    record = check(lambda x, g, u: F.silu(x @ g.t()) * (x @ u.t()), args)
    (plan,) = [s.value for s in record.stages if s.name == "plan"]
    assert (plan.kernel_count, plan.library_count) == (1, 0)


class Bottleneck(nn.Module):
    def __init__(self, width: int = 256, middle: int = 64) -> None:
        super().__init__()
        sizes = ((width, middle, 1), (middle, middle, 3), (middle, width, 1))
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, k, padding=k // 2) for a, b, k in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for _, b, _ in sizes)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for k, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            y = norm(convolution(y))
            y = F.relu(y if k < 2 else y + x)
        return y


@pytest.mark.parametrize("training", [False, True])
def test_a_bottleneck_is_channels_last_inside(training: bool) -> None:
    torch.manual_seed(0)
    module = Bottleneck().cuda().bfloat16().train(training)
    names = [name for name, _ in module.named_parameters()]
    buffers = {name: b.detach().clone() for name, b in module.named_buffers() if "tracked" not in name}

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        held = {name: b.to(x.dtype).clone() for name, b in buffers.items()}
        return torch.func.functional_call(module, (dict(zip(names, parameters, strict=True)), held), (x,))

    args = [randn(8, 256, 28, 28), *(p.detach() for p in module.parameters())]
    compiled = lamina.compile(run, dynamic=False, options={"strict": True})
    results = []
    for call, dtype in ((compiled, None), (run, None), (run, torch.float64)):
        given = [a.detach().to(dtype or a.dtype).requires_grad_(training) for a in args]
        with torch.set_grad_enabled(training):
            y = call(*given)
        found = [y]
        if training:
            # Not the biases before a norm: their gradient is nothing but rounding.
            wanted = [
                g for g, n in zip(given, ["x", *names], strict=True) if "convolutions" not in n or "bias" not in n
            ]
            found += torch.autograd.grad(y, wanted, torch.ones_like(y))
        results.append(found)
    for number, (ours, eager, exact) in enumerate(zip(*results, strict=True)):
        assert ours.stride() == eager.stride(), number
        limit = 2 * (eager.double() - exact).abs().max() + 1e-6 * exact.abs().max()
        assert (ours.double() - exact).abs().max() <= limit, number
    (choice,) = compiled.record.decisions("layout")
    assert choice.taken


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(8192, 1024, 8), (333, 300, 5), (4096, 256, 16), (2000, 16, 700), (6, 640, 3000)])
def test_thin_products(sizes: tuple[int, int, int], dtype: torch.dtype, training: bool) -> None:
    rows, inner, columns = sizes

    def linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.linear(x.to(w.dtype), w, b).tanh()

    args = [
        randn(rows, inner, dtype=dtype),
        randn(columns, inner, dtype=torch.float32),
        randn(columns, dtype=torch.float32),
    ]
    record = check(linear, args, training)
    across = inner == 16 or (columns == 16 and dtype == torch.float32)  # a weight's gradient is sixteen sums
    found = [s.value.library_count for s in record.stages if s.name == "plan"]
    assert found == ([0, int(across)] if training else [0])


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("shape", "k", "dim"), [((8192, 8), 2, -1), ((100, 64), 8, -1), ((7, 20, 33), 3, 1)])
def test_first_few_of_short_rows(shape: tuple[int, ...], k: int, dim: int, largest: bool) -> None:
    total = torch.Size(shape).numel()
    x = torch.randperm(total, device="cuda").view(shape) - total // 2
    compiled = lamina.compile(lambda x: x.topk(k, dim, largest), options={"strict": True})
    for given in (x, x.float(), x.float().where(x % 7 != 0, torch.nan)):
        ours, eager = compiled(given), given.topk(k, dim, largest)
        torch.testing.assert_close(ours[0], eager[0], rtol=0, atol=0, equal_nan=True)
        known = ~eager[0].isnan()
        assert torch.equal(ours[1][known], eager[1][known])


@pytest.mark.parametrize("training", [False, True])
def test_an_odd_vocabulary_is_padded(training: bool) -> None:
    def logits(x: Tensor, table: Tensor) -> Tensor:
        return F.log_softmax(F.linear(x, table).float(), -1)

    record = check(logits, [randn(2048, 512), randn(4097, 512)], training)
    taken = [d for s in record.stages for d in s.decisions if d.kind == "align product" and d.taken]
    assert len(taken) == (3 if training else 1)


@pytest.mark.parametrize("biased", [False, True])
def test_returned_odd_rows_need_no_second_copy(biased: bool) -> None:
    def logits(x: Tensor, table: Tensor, *bias: Tensor) -> Tensor:
        return F.linear(x, table, *bias)

    inputs = [randn(4096, 512), randn(4097, 512), *([randn(4097)] if biased else [])]
    with torch.no_grad():
        record = check(logits, inputs)
        compiled = lamina.compile(logits, dynamic=False, options={"strict": True})
        compiled(*inputs)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found = compiled(*inputs)
    assert torch.cuda.max_memory_allocated() - before < 1.1 * found.nbytes
    assert any("eight apart" in d.reason for s in record.stages for d in s.decisions)
