"""Programs with a part that no loop nest computes, between parts that fuse: what ``benchmarks.parts`` measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from benchmarks.torch_private import TwoTensor, each, group_of_one, out_dtype, print_op, scan, scan_by, while_loop

__all__ = ["PROGRAMS", "Program"]

N, D = 512, 768


@dataclass(frozen=True, slots=True)
class Program:
    """A function, what makes its inputs, and whether eager can differentiate it. ``dynamic``: sizes are symbols."""

    name: str
    function: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]
    trains: bool = True
    dynamic: bool = False


PROGRAMS: list[Program] = []


def _program(inputs: Callable[[], tuple[Any, ...]], **how: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS.append(Program(function.__name__, function, inputs, **how))
        return function

    return add


def _rows() -> tuple[Tensor, ...]:
    return (torch.randn(N, D),)


def _pair() -> tuple[Tensor, ...]:
    return torch.randn(N, D), torch.randn(N, D)


def _blocks() -> tuple[Tensor, ...]:
    return (torch.randn(8, 64, D),)


def before(x: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(x) * 1.5 + 0.1, (x.shape[-1],))


def after(x: Tensor) -> Tensor:
    return torch.tanh(F.rms_norm(x, (x.shape[-1],))) * x + 1


# ---- higher-order operators -----------------------------------------------------------------------------------


@_program(lambda: (*_rows(), torch.ones(1)))
def cond(x: Tensor, p: Tensor) -> Tensor:
    return after(torch.cond(p.sum() > 0, lambda a: before(a) + 1, lambda a: after(a) * 2, (before(x),)))


@_program(_rows, dynamic=True)
def cond_on_a_size(x: Tensor) -> Tensor:
    return after(torch.cond(x.shape[0] > 10, lambda a: before(a) + 1, lambda a: after(a) * 2, (before(x),)))


@_program(_rows, trains=False)
def while_loop_counted(x: Tensor) -> Tensor:
    start = torch.zeros((), dtype=torch.int64), before(x)
    return after(while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, after(a)), start)[1])


@_program(_rows, trains=False)
def while_loop_number(x: Tensor) -> Tensor:
    return after(while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, after(a)), (0, before(x)))[1])


@_program(_rows, trains=False)
def while_loop_on_data(x: Tensor) -> Tensor:
    start = torch.zeros((), dtype=torch.int64), before(x)
    return after(while_loop(lambda i, a: a.sum() < 1e6, lambda i, a: (i + 1, a * 1.5 + 1), start)[1])


@_program(_blocks)
def scan_rows(x: Tensor) -> Tensor:
    last, h = scan(lambda c, a: (c * 0.5 + a, torch.tanh(c) + a), torch.zeros(64, D), before(x))
    return after(h) + last


@_program(lambda: (torch.randn(64, D),))
def associative_scan(x: Tensor) -> Tensor:
    return after(scan_by(lambda a, b: a + b, before(x), 0, combine_mode="generic"))


@_program(_blocks)
def map_rows(x: Tensor) -> Tensor:
    return after(each(lambda a: before(a) + 1, before(x)))


@_program(lambda: (torch.randn(2, 4, 128, 64),), trains=False)
def flex(x: Tensor) -> Tensor:
    h = before(x)
    return after(flex_attention(h, h, h, score_mod=lambda s, b, head, q, k: s + (q - k) * 0.01))


@_program(lambda: (torch.randn(1, 8, 1024, 64),), trains=False)
def flex_causal(x: Tensor) -> Tensor:
    h = before(x)
    mask = create_block_mask(lambda b, head, q, k: q >= k, None, None, 1024, 1024, device="cpu")
    return after(flex_attention(h, h, h, block_mask=mask))


@torch.compiler.nested_compile_region
def _region(x: Tensor) -> Tensor:
    return before(x) + after(x)


@_program(_rows)
def nested_region(x: Tensor) -> Tensor:
    for _ in range(3):
        x = _region(x)
    return after(x)


@torch.compiler.nested_compile_region
def _layer(x: Tensor, w: Tensor) -> Tensor:
    return before(x @ w)


@_program(lambda: (*_rows(), torch.randn(D, D) * 0.03))
def nested_layers(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(3):
        x = _layer(x, w)
    return after(x)


@_program(_rows)
def checkpointed(x: Tensor) -> Tensor:
    h: Tensor = checkpoint(lambda a: before(a) + after(a), before(x), use_reentrant=False)
    return after(h)


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * 3 * x * x


@_program(_rows)
def autograd_function(x: Tensor) -> Tensor:
    return after(_Cube.apply(before(x)))


@torch.library.custom_op("lamina_parts::into", mutates_args={"out"})
def _into(x: Tensor, out: Tensor) -> None:
    out.copy_(x * 2)


@_program(_rows, trains=False)
def custom_op_that_writes(x: Tensor) -> Tensor:
    h = before(x)
    out = torch.empty_like(h)
    _into(h, out)
    return after(out)


@torch.library.custom_op("lamina_parts::twice", mutates_args=())
def _twice(x: Tensor) -> Tensor:
    return x * 2


_twice.register_fake(torch.empty_like)
_twice.register_autograd(lambda ctx, gradient: gradient * 2)


@_program(_rows)
def custom_op(x: Tensor) -> Tensor:
    return after(_twice(before(x)))


@_program(lambda: (torch.randn(256, 256), torch.randint(-9, 9, (256, 256), dtype=torch.int8)), trains=False)
def product_of_bytes(x: Tensor, w: Tensor) -> Tensor:
    return after(out_dtype(torch.ops.aten.mm.default, torch.int32, (before(x) * 10).to(torch.int8), w).float())


@_program(_rows, trains=False)
def printing(x: Tensor) -> Tensor:
    h = before(x)
    print_op("")
    return after(h)


@_program(_blocks)
def vmapped(x: Tensor) -> Tensor:
    return after(torch.vmap(lambda a: before(a) + 1)(before(x)))


@_program(_rows)
def gradient_inside(x: Tensor) -> Tensor:
    return after(torch.func.grad(lambda a: before(a).square().sum())(before(x)))


# ---- complex numbers ------------------------------------------------------------------------------------------


@_program(lambda: (torch.randn(2, 128, 8, 64), torch.randn(128, 32)))
def rotary(x: Tensor, angle: Tensor) -> Tensor:
    pairs = torch.view_as_complex(before(x).reshape(*x.shape[:-1], -1, 2))
    return after(torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)[:, None]).flatten(-2))


@_program(_rows)
def fourier_and_back(x: Tensor) -> Tensor:
    return after(torch.fft.ifft(torch.fft.fft(before(x))).real)


@_program(lambda: (*_rows(), torch.randn(D // 2 + 1)))
def filtered(x: Tensor, f: Tensor) -> Tensor:
    return after(torch.fft.irfft(torch.fft.rfft(before(x)) * f, n=D))


@_program(lambda: (torch.randn(4, 128, D),))
def fourier_mixing(x: Tensor) -> Tensor:
    return after(torch.fft.fft2(before(x)).real + x)


@_program(lambda: (torch.randn(4, 16000), torch.hann_window(400)))
def spectrogram(x: Tensor, w: Tensor) -> Tensor:
    return after(torch.stft(before(x), 400, 160, window=w, return_complex=True).abs().log1p())


@_program(_pair)
def complex_arithmetic(x: Tensor, y: Tensor) -> Tensor:
    c = torch.complex(before(x), before(y))
    d = c * c.conj() + c.exp()
    return after(d.real) + after(d.imag)


@_program(lambda: (torch.randn(N, D, dtype=torch.complex64),))
def complex_input(x: Tensor) -> Tensor:
    return after(before(x.real) + x.abs())


@_program(_pair)
def complex_result(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.complex(after(before(x)), before(y)), after(x)


@_program(lambda: (*_rows(), torch.randn(D, 64, dtype=torch.complex64)))
def complex_product(x: Tensor, w: Tensor) -> Tensor:
    return after((before(x).to(torch.complex64) @ w).abs())


@_program(lambda: (torch.randn(4, 128, 512), torch.randn(128, 16), torch.randn(128, 16)))
def state_space(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    decay = torch.complex(-a.abs(), b)
    kernel = torch.exp(decay[..., None] * torch.arange(512)).sum(1).real / 8
    return after(torch.fft.irfft(torch.fft.rfft(before(x), n=1024) * torch.fft.rfft(kernel, n=1024), n=1024)[..., :512])


# ---- tensors of other kinds -----------------------------------------------------------------------------------


@_program(lambda: (group_of_one().distribute(torch.randn(N, D)),), trains=False)
def dtensor(x: Any) -> Tensor:
    local: Tensor = after(before(x)).to_local()  # type: ignore[attr-defined]
    return local


@_program(lambda: (*_rows(), group_of_one()))
def dtensor_inside(x: Tensor, group: Any) -> Tensor:
    return after((group.from_local(before(x)) * 2).to_local())


@_program(lambda: (TwoTensor(*_pair()),), trains=False)
def two_tensors(x: Tensor) -> Tensor:
    return after(before(x))


@_program(lambda: (*_rows(), torch.eye(N).to_sparse()))
def sparse_product(x: Tensor, s: Tensor) -> Tensor:
    return after(torch.sparse.mm(s, before(x)))


@_program(lambda: (*_rows(), torch.eye(N).to_sparse_csr()), trains=False)
def sparse_rows(x: Tensor, s: Tensor) -> Tensor:
    return after(s @ before(x))


@_program(_rows, trains=False)
def quantised(x: Tensor) -> Tensor:
    return after(torch.quantize_per_tensor(before(x), 0.05, 0, torch.qint8).dequantize())


@_program(_rows, trains=False)
def jagged(x: Tensor) -> Tensor:
    h = before(x)
    return after(torch.nested.as_nested_tensor([h[:100], h[100:]], layout=torch.jagged).values())


# ---- inputs of other kinds, numbers that only a run tells --------------------------------------------------------


class _Settings:
    scale = 1.5


@_program(lambda: (*_rows(), _Settings()))
def user_object(x: Tensor, settings: _Settings) -> Tensor:
    return after(before(x) * settings.scale)


@_program(lambda: (*_rows(), None, "gelu"))
def none_and_text(x: Tensor, mask: Tensor | None, kind: str) -> Tensor:
    h = F.gelu(before(x)) if kind == "gelu" else before(x)
    return after(h if mask is None else h * mask)


@_program(lambda: (*_rows(), torch.Generator()), trains=False)
def generator(x: Tensor, generator: torch.Generator) -> Tensor:
    generator.manual_seed(3)
    return after(before(x) + torch.rand(x.shape, generator=generator))


@_program(_rows, dynamic=True)
def truth_of_a_size(x: Tensor) -> Tensor:
    return after(before(x)) * (2 if x.shape[0] > 10 else 1)


@_program(lambda: (*_rows(), 0.37))
def number(x: Tensor, factor: float) -> Tensor:
    return after(before(x) * factor)


@_program(_rows)
def item(x: Tensor) -> Tensor:
    h = before(x)
    return after(h * h.max().item())
