"""Custom operations as users define them: results of their own, gradients, writes to arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("lamina_tests::gated", mutates_args=())
def gated(x: Tensor, y: Tensor, scale: float) -> Tensor:
    """``scale * x * sigmoid(y)``."""
    return x * torch.sigmoid(y) * scale


@gated.register_fake
def _(x: Tensor, y: Tensor, scale: float) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("lamina_tests::gated_backward", mutates_args=())
def gated_backward(grad: Tensor, x: Tensor, y: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    s = torch.sigmoid(y)
    return grad * scale * s, grad * scale * x * s * (1 - s)


@gated_backward.register_fake
def _(grad: Tensor, x: Tensor, y: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(y)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.scale = inputs[2]


def _backward(ctx: Any, grad: Tensor) -> Any:
    return (*gated_backward(grad, *ctx.saved_tensors, ctx.scale), None)


gated.register_autograd(_backward, setup_context=_keep)


@torch.library.custom_op("lamina_tests::scaled", mutates_args=())
def scaled(x: Tensor, by: float = 3.0) -> Tensor:
    """``x * by``."""
    return x * by


@scaled.register_fake
def _(x: Tensor, by: float = 3.0) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("lamina_tests::row_squares", mutates_args=())
def row_squares(x: Tensor) -> Tensor:
    """Sums of squares over the last dimension."""
    return x.square().sum(-1)


@row_squares.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[:-1])


@torch.library.custom_op("lamina_tests::add_", mutates_args={"x"})
def add_(x: Tensor, n: float) -> None:
    x.add_(n)


@torch.library.custom_op("lamina_tests::double_into", mutates_args={"out"})
def double_into(x: Tensor, out: Tensor) -> Tensor:
    """``2 x`` goes to ``out``, ``x + 1`` is returned."""
    out.copy_(x * 2)
    return x + 1


@double_into.register_fake
def _(x: Tensor, out: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("lamina_tests::scale_all", mutates_args={"tensors"})
def scale_all(tensors: list[Tensor], by: float) -> None:
    for tensor in tensors:
        tensor.mul_(by)


@torch.library.custom_op("lamina_tests::gives_back", mutates_args=())
def gives_back(x: Tensor) -> Tensor:
    """Against the rules: the result is the argument."""
    return x


@gives_back.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("lamina_tests::fill_maybe", mutates_args={"out"})
def fill_maybe(x: Tensor, out: Tensor | None, number: float = 3.0) -> Tensor:
    """``number * x``; ``out``, if given, is filled with the number."""
    if out is not None:
        out.fill_(number)
    return x * number


@fill_maybe.register_fake
def _(x: Tensor, out: Tensor | None, number: float = 3.0) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("lamina_tests::strides", mutates_args=())
def strides(x: Tensor) -> Tensor:
    """The strides of a matrix: what code that looks at memory rests on."""
    return torch.tensor([float(x.stride(0)), float(x.stride(1))])


@strides.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(2)
