"""GELU that the library does around products on a GPU: values, refusals, recordings, and a block in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lamina
from lamina.library_algorithms.cublas_lt import ALGORITHMS, Refused, backward, forward
from lamina.library_algorithms.gelu_operations import addmm_gelu, mm_gelu_backward, plain, plain_backward

HALF = (torch.bfloat16, torch.float16)
SHAPES = ((8, 8, 8), (17, 40, 24), (1000, 64, 72), (256, 1000, 384), (4096, 768, 3072))


def matrix(rows: int, columns: int, dtype: torch.dtype, transposed: bool = False, scale: float = 1.0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(rows * columns)
    made = torch.randn((columns, rows) if transposed else (rows, columns), generator=generator, device="cuda")
    return (made * scale).to(dtype).t() if transposed else (made * scale).to(dtype)


def operands(m: int, k: int, n: int, dtype: torch.dtype, transposed: tuple[bool, bool] = (False, True)) -> list[Tensor]:
    return [matrix(1, n, dtype)[0], matrix(m, k, dtype, transposed[0]), matrix(k, n, dtype, transposed[1], k**-0.5)]


def close(got: Tensor, want: Tensor) -> None:
    half = 2.0 ** (-7 if got.dtype == torch.bfloat16 else -10)
    torch.testing.assert_close(got.double(), want, rtol=half, atol=half)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_algorithm(shape: tuple[int, int, int], transposed: tuple[bool, bool], dtype: torch.dtype) -> None:
    bias, left, right = operands(*shape, dtype, transposed)
    wide = [t.double() for t in (bias, left, right)]
    activated, product = plain(*wide)
    gradient = plain_backward(*wide[1:], product.to(dtype).double())
    ran = 0
    for number in range(ALGORITHMS):
        try:
            out, kept = forward(bias, left, right, number)
            close(out, activated)
            close(kept, product)
            close(backward(left, right, product.to(dtype), number), gradient)
            ran += 1
        except Refused:
            break
    assert ran > 0


def test_where_the_library_refuses_the_plain_form_runs() -> None:
    bias, left, right = operands(16, 8, 13, torch.bfloat16)
    with pytest.raises(Refused):
        forward(bias, left, right, 0)
    out, kept = addmm_gelu(bias, left, right, 0)
    torch.testing.assert_close((out, kept), plain(bias, left, right), rtol=0, atol=0)
    gradient = mm_gelu_backward(left, right, kept, 0)
    torch.testing.assert_close(gradient, plain_backward(left, right, kept), rtol=0, atol=0)


def test_nan_and_infinities_stay() -> None:
    bias, left, right = operands(256, 128, 256, torch.bfloat16)
    left[3, 5], left[7, 0], right[1, 9] = float("nan"), float("inf"), float("-inf")
    for got, want in zip(addmm_gelu(bias, left, right, 0), plain(bias, left, right), strict=True):
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(got.isinf(), want.isinf())
    kept = plain(bias, left, right)[1]
    finite = matrix(256, 128, torch.bfloat16), matrix(128, 256, torch.bfloat16)
    for pair, of in ((finite, kept), ((left, right), matrix(256, 256, torch.bfloat16))):
        want = plain_backward(*pair, of)
        assert not bool((want.isnan() & ~mm_gelu_backward(*pair, of, 0).isnan()).any())


def test_a_recorded_call() -> None:
    bias, left, right = operands(256, 128, 384, torch.bfloat16)
    want = addmm_gelu(bias, left, right, 0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, kept = addmm_gelu(bias, left, right, 0)
        gradient = mm_gelu_backward(left, right, kept, 0)
    for _ in range(2):
        out.zero_()
        graph.replay()
        torch.testing.assert_close((out, kept), want, rtol=0, atol=0)
        torch.testing.assert_close(gradient, mm_gelu_backward(left, right, kept, 0), rtol=0, atol=0)


@pytest.mark.usefixtures("fresh")
def test_a_block_in_training(tmp_path: Path) -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(2048, 8192), nn.GELU("tanh"), nn.Linear(8192, 2048)).to("cuda", torch.bfloat16)
    compiled: Any = lamina.compile(block, options={"strict": True, "cache_dir": str(tmp_path)})
    x = torch.randn(2, 4096, 2048, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def step(function: Any) -> list[Tensor]:
        leaves = [x, *block.parameters()]
        result = function(x)
        return [result.detach(), *torch.autograd.grad(result.float().square().mean(), leaves)]

    got, want = step(compiled), step(block)
    for a, b in zip(got, want, strict=True):
        assert float((a - b).norm() / b.norm()) < 1e-2
    asked = [d for d in compiled.record.decisions("library epilogue") if "measured" in d.reason]
    assert len(asked) == 2
    for decision in asked:
        times = dict(decision.facts)
        assert decision.taken == (min(times, key=lambda name: float(times[name])) != "product") or (
            float(times["product"]) <= 1.01 * min(map(float, times.values()))
        )
