"""The three models of `lamina demo`: a residual block, attention written out, a small GPT."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["DEMOS", "GPT", "Attention", "Demo", "Example", "ResidualBlock"]

IS_A_PROGRAM = True
"""The own front end interprets the functions of this file as it does the user's."""


@dataclass(frozen=True, slots=True)
class Example:
    """A model with random weights, the arguments of one inference call and those of one training call."""

    model: nn.Module
    inference: tuple[Tensor, ...]
    training: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Demo:
    """One model of the demo by the name that ``--only`` takes."""

    name: str
    title: str
    make: Callable[[], Example]


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
        joined = mixed.transpose(1, 2).contiguous().view(batch, -1, self.heads * self.head_width)
        result: Tensor = self.out(joined)
        return result


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
        result: Tensor = x + self.feed(self.norm2(x))
        return result


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

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """(batch, length) to (batch, length, vocabulary) logits or, with targets, to the mean cross entropy."""
        length = tokens.size(1)
        x = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
        for block in self.blocks:
            x = block(x, self.mask[:length, :length])
        logits = functional.linear(self.norm(x), self.tokens.weight)
        if targets is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _resnet() -> Example:
    args = (torch.randn(4, 64, 56, 56),)
    return Example(ResidualBlock(64, 64), args, args)


def _attention() -> Example:
    x = torch.randn(2, 256, 512)
    return Example(Attention(512, 8), (x, x, x), (x, x, x))


def _gpt() -> Example:
    model = GPT(vocabulary=256, length=64, width=128, heads=4, layers=12)
    tokens = torch.randint(256, (4, 65))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return Example(model, (inputs,), (inputs, targets))


DEMOS = (
    Demo("resnet", "ResNet block", _resnet),
    Demo("attention", "attention by hand", _attention),
    Demo("gpt", "GPT, 12 layers", _gpt),
)
