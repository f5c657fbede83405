"""Speed and error of the building blocks of models on a GPU, in bf16, at sizes that fill it.

``python -m benchmarks.gpu_blocks --rows mlp_gelu moe --only training --rivals eager torch``

"forward" is inference: no gradients, batch norms with their running statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu_driver import run
from benchmarks.gpu_programs import GpuData, GpuProgram, Program
from benchmarks.report import RESULTS

__all__ = ["BLOCKS", "main"]


class Bottleneck(nn.Module):
    """ResNet's: 1x1, 3x3 and 1x1 convolutions with batch norms, and the sum with the input."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, channels, 1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn1(self.conv1(x)))
        h = F.relu(self.bn2(self.conv2(h)))
        return F.relu(self.bn3(self.conv3(h)) + x)


class ConvNextBlock(nn.Module):
    """A 7x7 convolution of each channel alone, a norm over channels, an MLP, a scale and the sum with the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.full((channels,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.conv(x).permute(0, 2, 3, 1))
        h = self.down(F.gelu(self.up(h))) * self.scale
        return x + h.permute(0, 3, 1, 2)


class RmsNorm(nn.Module):
    """Divides rows by their root mean square, computed in fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class LlamaBlock(nn.Module):
    """Attention with grouped heads and rotary positions, and a gated MLP; with a cache it decodes one token."""

    def __init__(self, width: int, heads: int, kv_heads: int, inner: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = heads, kv_heads, width // heads
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * self.size, bias=False)
        self.v = nn.Linear(width, kv_heads * self.size, bias=False)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def _heads(self, x: Tensor, count: int) -> Tensor:
        return x.view(*x.shape[:2], count, self.size).transpose(1, 2)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, cache: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
    ) -> Tensor:
        h = self.norm1(x)
        q, k = _rotated(self._heads(self.q(h), self.heads), cos, sin), self._heads(self.k(h), self.kv_heads)
        k, v = _rotated(k, cos, sin), self._heads(self.v(h), self.kv_heads)
        mask = None
        if cache is not None:
            keys, values, place, mask = cache
            k, v = keys.index_copy_(2, place, k), values.index_copy_(2, place, v)
        shared = self.heads // self.kv_heads
        k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        x = x + self.o(mixed.transpose(1, 2).reshape(x.shape))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


class MoeBlock(nn.Module):
    """Top-k routing into a fixed number of places for each expert, without waiting for the GPU (as GShard does)."""

    def __init__(self, width: int, inner: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.experts, self.chosen = experts, chosen
        self.router = nn.Linear(width, experts, bias=False)
        self.gate = nn.Parameter(torch.randn(experts, width, inner) / math.sqrt(width))
        self.up = nn.Parameter(torch.randn(experts, width, inner) / math.sqrt(width))
        self.down = nn.Parameter(torch.randn(experts, inner, width) / math.sqrt(inner))

    def forward(self, x: Tensor) -> Tensor:
        tokens, width = x.shape
        places = 5 * tokens * self.chosen // (4 * self.experts)
        logits = F.linear(x.float(), self.router.weight.float())
        weights, experts = logits.softmax(-1).topk(self.chosen, -1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        expert = experts.reshape(-1)
        turn = (F.one_hot(expert, self.experts).cumsum(0) - 1).gather(1, expert[:, None]).squeeze(1)
        # Those that find their expert's places taken go to one place beyond all, whose result is zero.
        place = torch.where(turn < places, expert * places + turn, self.experts * places)
        inputs = x.new_zeros(self.experts * places + 1, width).index_copy(0, place, x.repeat_interleave(self.chosen, 0))
        h = inputs[:-1].view(self.experts, places, width)
        h = torch.bmm(F.silu(torch.bmm(h, self.gate)) * torch.bmm(h, self.up), self.down)
        results = torch.cat([h.reshape(-1, width), h.new_zeros(1, width)]).index_select(0, place)
        return x + (results.view(tokens, self.chosen, width) * weights[..., None]).sum(1)


def bottleneck(data: GpuData, batch: int = 64, channels: int = 256, size: int = 56) -> Program:
    """A block of ResNet-50's first stage."""
    block = data.module(lambda: Bottleneck(channels, channels // 4))
    return Program(lambda x: block(x), (data.leaf(batch, channels, size, size),), _buffers(block, data))


def _buffers(block: nn.Module, data: GpuData) -> tuple[Tensor, ...]:
    return tuple(block.buffers()) if data.training else ()


def attention(data: GpuData, batch: int = 8, heads: int = 16, length: int = 2048, size: int = 64) -> Program:
    """Causal attention written out, with the mask as an addend."""
    mask = torch.full((length, length), -math.inf, device=data.device, dtype=data.computed).triu(1)

    def function(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        return (scores + mask).softmax(-1) @ v

    return Program(function, (*(data.leaf(batch, heads, length, size) for _ in range(3)), mask))


def mlp_gelu(data: GpuData, tokens: int = 16384, width: int = 2048) -> Program:
    """Two products with a bias and a GELU between them."""
    block = data.module(
        lambda: nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
    )
    return Program(lambda x: block(x), (data.leaf(tokens, width),))


LLAMA = (4096, 32, 8, 14336)


def _llama(
    data: GpuData, batch: int, length: int, sizes: tuple[int, int, int, int]
) -> tuple[LlamaBlock, tuple[Tensor, Tensor, Tensor]]:
    """The block, and its input with the cosines and sines of the positions."""
    block = data.module(lambda: LlamaBlock(*sizes))
    angle = data.randn(length, sizes[0] // sizes[1])
    return block, (data.leaf(batch, length, sizes[0]), angle.cos(), angle.sin())


def llama_block(data: GpuData, batch: int = 2, length: int = 4096, sizes: tuple[int, int, int, int] = LLAMA) -> Program:
    """A whole sequence: reading a prompt, or training."""
    block, args = _llama(data, batch, length, sizes)
    return Program(lambda x, cos, sin: block(x, cos, sin), args)


def llama_decode(data: GpuData, cached: int = 4096, sizes: tuple[int, int, int, int] = LLAMA) -> Program:
    """One more token of one sequence, with half of the cache in use."""
    block, args = _llama(data, 1, 1, sizes)
    shape = (1, sizes[2], cached, sizes[0] // sizes[1])
    keys, values = data.randn(*shape), data.randn(*shape)
    place = torch.tensor([cached // 2], device=data.device)
    mask = torch.arange(cached, device=data.device)[None, :] <= place

    def function(x: Tensor, cos: Tensor, sin: Tensor, k: Tensor, v: Tensor, place: Tensor, mask: Tensor) -> Tensor:
        return block(x, cos, sin, (k, v, place, mask))

    return Program(function, (*args, keys, values, place, mask), (keys, values))


def moe(data: GpuData, tokens: int = 8192, width: int = 1024, inner: int = 2816, experts: int = 8) -> Program:
    """Gated experts, two for each token."""
    block = data.module(lambda: MoeBlock(width, inner, experts, 2))
    return Program(lambda x: block(x), (data.leaf(tokens, width),))


def convnext(data: GpuData, batch: int = 64, channels: int = 192, size: int = 28) -> Program:
    """A block of ConvNeXt's second stage."""
    block = data.module(lambda: ConvNextBlock(channels))
    return Program(lambda x: block(x), (data.leaf(batch, channels, size, size),))


def _rows() -> list[GpuProgram]:
    both, forward, training = ("forward", "training"), ("forward",), ("training",)
    rows: tuple[tuple[str, Callable[[GpuData], Program], tuple[str, ...]], ...] = (
        ("mlp_gelu", mlp_gelu, both),
        ("attention", attention, both),
        ("llama_prefill", llama_block, forward),
        ("llama_decode", llama_decode, forward),
        ("llama_train", llama_block, training),
        ("bottleneck", bottleneck, both),
        ("convnext", convnext, both),
        ("moe", moe, both),
    )
    return [GpuProgram(name, build, modes, bound_by_bytes=False) for name, build, modes in rows]


BLOCKS = tuple(_rows())


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write JSON; 1 if a result is wrong."""
    return run("GPU blocks", BLOCKS, RESULTS / "gpu_blocks.json", __doc__, argv, "benchmarks.gpu_blocks")


if __name__ == "__main__":
    raise SystemExit(main())
