"""The twenty CPU patterns: small programs whose speed a compiler decides. Outputs stay under 16 MB."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["PATTERNS", "Data", "Pattern", "Problem", "private_copy"]


@dataclass(slots=True)
class Data:
    """Makes the same random inputs for every run: drawn in fp32, rounded to ``stored``, held in ``computed``."""

    stored: torch.dtype
    computed: torch.dtype
    training: bool
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))
    leaves: list[Tensor] = field(default_factory=list)

    def randn(self, *shape: int, scale: float = 1.0) -> Tensor:
        """A tensor that needs no gradient."""
        drawn = torch.randn(shape, generator=self.generator) * scale
        return drawn.to(self.stored).to(self.computed)

    def leaf(self, *shape: int, scale: float = 1.0) -> Tensor:
        """A tensor that gets a gradient when training."""
        tensor = self.randn(*shape, scale=scale).requires_grad_(self.training)
        if self.training:
            self.leaves.append(tensor)
        return tensor

    def integers(self, high: int, *shape: int) -> Tensor:
        """Integers from 0 to ``high`` - 1."""
        return torch.randint(high, shape, generator=self.generator)


@dataclass(frozen=True, slots=True)
class Problem:
    """A function and its arguments; ``state`` are the tensors that it changes in place."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    state: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Pattern:
    """One row group of the table; ``modes`` says whether it runs forward, forward and backward, or both."""

    name: str
    build: Callable[[Data], Problem]
    modes: tuple[str, ...] = ("forward", "training")


def private_copy(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with a code object of its own: captured graphs are kept by code object, one per rival."""
    if not isinstance(function, types.FunctionType):
        raise TypeError(f"{function!r} is no plain Python function")
    code = function.__code__.replace()
    return types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )


def _layer_norm(data: Data) -> Problem:
    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(x, (768,), w, b)

    return Problem(function, (data.leaf(2048, 768), data.leaf(768), data.leaf(768)))


def _rms_norm_residual(data: Data) -> Problem:
    def function(x: Tensor, residual: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x + residual
        wide = h.float() if h.dtype == torch.bfloat16 else h
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return (wide * scale).to(x.dtype) * w, h

    return Problem(function, (data.leaf(2048, 1024), data.leaf(2048, 1024), data.leaf(1024)))


def _group_norm_silu(data: Data) -> Problem:
    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.silu(F.group_norm(x, 32, w, b))

    return Problem(function, (data.leaf(4, 320, 32, 32), data.leaf(320), data.leaf(320)))


def _batch_norm_relu(data: Data) -> Problem:
    def function(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.relu(F.batch_norm(x, mean, var, w, b, training=True))

    mean, var = torch.zeros(64, dtype=data.computed), torch.ones(64, dtype=data.computed)
    return Problem(function, (data.leaf(16, 64, 32, 32), mean, var, data.leaf(64), data.leaf(64)), (mean, var))


def _softmax(data: Data) -> Problem:
    return Problem(lambda x: (x * 0.125).softmax(-1), (data.leaf(4096, 512, scale=4),))


def _log_softmax_odd(data: Data) -> Problem:
    return Problem(lambda x: F.log_softmax(x, -1), (data.leaf(256, 8003, scale=3),))


def _cross_entropy(data: Data) -> Problem:
    return Problem(lambda x, t: F.cross_entropy(x, t), (data.leaf(512, 5000, scale=3), data.integers(5000, 512)))


def _smooth_l1(data: Data) -> Problem:
    return Problem(lambda x, t: F.smooth_l1_loss(x, t, beta=0.5), (data.leaf(1024, 1024), data.randn(1024, 1024)))


def _bias_gelu(data: Data) -> Problem:
    return Problem(lambda x, b: F.gelu(x + b), (data.leaf(1024, 3072), data.leaf(3072)))


def _swiglu(data: Data) -> Problem:
    return Problem(lambda gate, up: F.silu(gate) * up, (data.leaf(1024, 2048), data.leaf(1024, 2048)))


def _rotary(data: Data) -> Problem:
    def turned(x: Tensor) -> Tensor:
        low, high = x.chunk(2, -1)
        return torch.cat([-high, low], -1)

    def function(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return q * cos + turned(q) * sin, k * cos + turned(k) * sin

    angle = data.randn(512, 64)
    return Problem(function, (data.leaf(2, 16, 512, 64), data.leaf(2, 4, 512, 64), angle.cos(), angle.sin()))


def _attention(data: Data) -> Problem:
    def function(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        return scores.masked_fill(mask, float("-inf")).softmax(-1) @ v

    mask = torch.ones(256, 256, dtype=torch.bool).triu(1)
    return Problem(function, (*(data.leaf(2, 8, 256, 64) for _ in range(3)), mask))


def _row_moments(data: Data) -> Problem:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.mean(-1), x.var(-1)

    return Problem(function, (data.leaf(4096, 1000),))


def _column_sum(data: Data) -> Problem:
    return Problem(lambda x: (x * x).sum(0), (data.leaf(4096, 1000),))


def _middle_mean(data: Data) -> Problem:
    return Problem(lambda x: x.abs().mean(1), (data.leaf(32, 256, 384),))


def _full_variance(data: Data) -> Problem:
    return Problem(lambda x: x.var(), (data.leaf(2048, 1500),))


def _transposed_add(data: Data) -> Problem:
    return Problem(lambda x, y: (x.t() + y) * 0.5, (data.leaf(1536, 1024), data.leaf(1024, 1536)))


def _cumulative_sum(data: Data) -> Problem:
    return Problem(lambda x, m: (x * m).cumsum(-1), (data.leaf(2048, 512), data.randn(2048, 512)))


def _adamw(data: Data) -> Problem:
    shapes = [(256, 256), (256,), (256, 512), (512,), (512, 256), (256,), (256,), (64, 256)] * 4
    parameters = [data.randn(*shape).requires_grad_() for shape in shapes]
    for parameter in parameters:
        parameter.grad = data.randn(*parameter.shape)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)

    def function() -> None:
        optimizer.step()

    return Problem(function, (), tuple(parameters))


def _embedding(data: Data) -> Problem:
    def function(tokens: Tensor, table: Tensor, positions: Tensor) -> Tensor:
        return F.embedding(tokens, table) * 16.0 + positions

    return Problem(function, (data.integers(8000, 8, 512), data.leaf(8000, 256), data.leaf(512, 256)))


PATTERNS = (
    Pattern("layer_norm", _layer_norm),
    Pattern("rms_norm_residual", _rms_norm_residual),
    Pattern("group_norm_silu", _group_norm_silu),
    Pattern("batch_norm_relu", _batch_norm_relu),
    Pattern("softmax", _softmax),
    Pattern("log_softmax_odd", _log_softmax_odd),
    Pattern("cross_entropy", _cross_entropy),
    Pattern("smooth_l1", _smooth_l1),
    Pattern("bias_gelu", _bias_gelu),
    Pattern("swiglu", _swiglu),
    Pattern("rotary", _rotary),
    Pattern("attention", _attention),
    Pattern("row_moments", _row_moments),
    Pattern("column_sum", _column_sum),
    Pattern("middle_mean", _middle_mean),
    Pattern("full_variance", _full_variance),
    Pattern("transposed_add", _transposed_add),
    Pattern("cumulative_sum", _cumulative_sum),
    Pattern("adamw", _adamw, ("forward",)),
    Pattern("embedding", _embedding),
)
