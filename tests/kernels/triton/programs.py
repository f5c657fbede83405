"""Functions that launch Triton kernels of their own, as users write them; they run on any device that Triton has."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x_ptr + at, mask=inside) + tl.load(y_ptr + at, mask=inside)
    tl.store(out_ptr + at, total, mask=inside)


@triton.jit
def halves_kernel(x_ptr, low_ptr, high_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside)
    tl.store(low_ptr + at, tl.where(x < 0, x, 0.0), mask=inside)
    tl.store(high_ptr + at, tl.where(x < 0, 0.0, x), mask=inside)


@triton.jit
def accumulate_kernel(x_ptr, total_ptr, scale, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    old = tl.load(total_ptr + at, mask=inside)
    tl.store(total_ptr + at, old + scale * tl.load(x_ptr + at, mask=inside), mask=inside)


@triton.jit
def rows_kernel(x_ptr, out_ptr, columns, x_stride, out_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    x = tl.load(x_ptr + row * x_stride + at, mask=inside)
    tl.store(out_ptr + row * out_stride + at, 2.0 * x, mask=inside)


autotuned_kernel = triton.autotune(
    configs=[triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 256}, num_warps=4)], key=["n"]
)(add_kernel)


def blocks(n: int) -> Any:
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


def plain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    scaled = x * 2
    out = torch.empty_like(scaled)
    add_kernel[blocks(out.numel())](scaled, y, out, out.numel(), BLOCK=128)
    return torch.relu(out) + 1


def autotuned(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    scaled = x * 2
    out = torch.empty_like(scaled)
    autotuned_kernel[blocks(out.numel())](scaled, y, out, out.numel())
    return torch.relu(out) + 1


def warps(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), 128),)](x, y.exp(), out, x.numel(), BLOCK=128, num_warps=8)
    return out.sin()


def two_results(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    given = x - y
    low, high = torch.empty_like(given), torch.empty_like(given)
    halves_kernel[blocks(x.numel())](given, low, high, x.numel(), BLOCK=128)
    return low.exp() - high


def into_zeros(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x)
    accumulate_kernel[blocks(x.numel())](x, total, 0.5, x.numel(), BLOCK=128)
    accumulate_kernel[blocks(x.numel())](y, total, -2.0, x.numel(), BLOCK=128)
    return total * total


def into_input(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    accumulate_kernel[blocks(x.numel())](x.cos(), total, 3.0, x.numel(), BLOCK=128)
    return total + x


def input_read_before(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    before = total * 2
    accumulate_kernel[blocks(x.numel())](x, total, 1.0, x.numel(), BLOCK=128)
    return before + total


def old_value_kept(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    made = x + y
    copy = made.clone()
    accumulate_kernel[blocks(x.numel())](x, copy, 1.0, x.numel(), BLOCK=128)
    return made * copy


def same_tensor_twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    made = x * y
    add_kernel[blocks(x.numel())](made, made, made, x.numel(), BLOCK=128)
    return made.tanh()


def part_of_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = y.clone()
    half = x.shape[1] // 2
    source = (x + 1)[:, half:]
    rows_kernel[(x.shape[0],)](source, out[:, :half], half, source.stride(0), out.stride(0), BLOCK=64)
    return out + 1


def transposed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    source = (x * y).t()
    out = torch.empty_like(source)
    add_kernel[blocks(x.numel())](source, source, out, x.numel(), BLOCK=128)
    return out + source


def returned_and_given(x: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    accumulate_kernel[blocks(x.numel())](x, total, 1.0, x.numel(), BLOCK=128)
    return total, total.view(-1) * 2


PROGRAMS = (
    *(plain, autotuned, warps, two_results, into_zeros, into_input, input_read_before, old_value_kept),
    *(same_tensor_twice, part_of_rows, transposed, returned_and_given),
)
"""Functions of two tensors of one shape with two dimensions."""


@triton_op("lamina_tests::weighted", mutates_args={})
def weighted(x: torch.Tensor, y: torch.Tensor, scale: float) -> torch.Tensor:
    """``y + scale * x``."""
    out = y.clone()
    wrap_triton(accumulate_kernel)[blocks(x.numel())](x, out, scale, x.numel(), BLOCK=128)
    return out


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.scale = inputs[2]


def _weighted_backward(ctx: Any, grad: torch.Tensor) -> Any:
    return weighted(grad, torch.zeros_like(grad), ctx.scale), grad, None


weighted.register_autograd(_weighted_backward, setup_context=_keep)


class Scaled(torch.autograd.Function):
    """``3 x`` by a kernel, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        accumulate_kernel[blocks(x.numel())](x, out, 3.0, x.numel(), BLOCK=128)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        grad = grad.contiguous()
        out = torch.zeros_like(grad)
        accumulate_kernel[blocks(grad.numel())](grad, out, 3.0, grad.numel(), BLOCK=128)
        return out


def differentiable_operation(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return weighted(x.sin(), y * y, 0.25).relu() * x


def differentiable_function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return Scaled.apply(x * y).tanh() + x


DIFFERENTIABLE = (differentiable_operation, differentiable_function)
"""The same, differentiable in both."""
