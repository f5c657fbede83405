"""The three models of `lamina demo`: a residual block, attention written out, a small GPT."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["DEMOS", "Attention", "Demo", "GPT", "ResidualBlock"]


@dataclass(frozen=True, slots=True)
class Demo:
    """One model of the demo: ``make(device)`` gives it with random weights and the arguments of one call."""

    name: str
    title: str
    make: Callable[[torch.device], tuple[nn.Module, tuple[Tensor, ...]]]


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm around a shortcut. (batch, channels, height, width) in and out."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            projection = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_channels, H, W) to (N, out_channels, H / stride, W / stride)."""
        out = torch.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return torch.relu(out)


class Attention(nn.Module):
    """Multi-head attention out of matrix products and a softmax."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_width = width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """Three (batch, length, width) to one; where ``mask`` is 0 nothing is attended to."""
        batch = query.size(0)
        q, k, v = (
            projection(x).view(batch, -1, self.heads, self.head_width).transpose(1, 2)
            for projection, x in ((self.query, query), (self.key, key), (self.value, value))
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.head_width)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        mixed = torch.matmul(functional.softmax(scores, dim=-1), v)
        return self.out(mixed.transpose(1, 2).contiguous().view(batch, -1, self.heads * self.head_width))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.attention(h, h, h, mask)
        return x + self.feed(self.norm2(x))


class GPT(nn.Module):
    """A causal language model of ``layers`` blocks; the head is tied to the embedding."""

    mask: Tensor

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", torch.ones(length, length).tril(), persistent=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Two (batch, length) of integers to the (batch, length, vocabulary) logits and the mean cross entropy."""
        length = tokens.size(1)
        x = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        for block in self.blocks:
            x = block(x, self.mask[:length, :length])
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _resnet(device: torch.device) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return ResidualBlock(64, 64).to(device), (torch.randn(4, 64, 56, 56, device=device),)


def _attention(device: torch.device) -> tuple[nn.Module, tuple[Tensor, ...]]:
    x = torch.randn(2, 256, 512, device=device)
    return Attention(512, 8).to(device), (x, x, x)


def _gpt(device: torch.device) -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = GPT(vocabulary=256, length=64, width=128, heads=4, layers=12).to(device)
    tokens = torch.randint(256, (4, 65), device=device)
    return model, (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


DEMOS = (
    Demo("resnet", "ResNet block, 64 channels, 4x56x56", _resnet),
    Demo("attention", "attention by hand, 8 heads, 2x256x512", _attention),
    Demo("gpt", "GPT, 12 layers of width 128, 4x64 tokens", _gpt),
)
