"""A GPT with attention by hand and dropout, as tutorials write it: the model of the compile-time figures."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.patterns import private_copy

__all__ = ["BATCH", "GPT", "HEADS", "LENGTH", "VOCABULARY", "WIDTH", "Block", "batch", "private_gpt"]

VOCABULARY, BATCH, LENGTH, WIDTH, HEADS, DROPOUT = 512, 4, 64, 128, 4, 0.1


class Block(nn.Module):
    """Norm, attention, norm, feed-forward. (batch, length, width) in and out."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop_scores, self.drop_mixed, self.drop_feed = (nn.Dropout(DROPOUT) for _ in range(3))
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = (t.view(b, n, HEADS, c // HEADS).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(c // HEADS)
        scores = scores.masked_fill(self.mask[:n, :n], float("-inf"))
        mixed = self.drop_scores(F.softmax(scores, -1)) @ v
        x = x + self.drop_mixed(self.out(mixed.transpose(1, 2).contiguous().view(b, n, c)))
        return x + self.drop_feed(self.down(F.gelu(self.up(self.after(x)))))


class GPT(nn.Module):
    """A causal language model; returns the mean cross entropy."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.drop = nn.Dropout(DROPOUT)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Two (batch, length) integer tensors to a scalar."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.tokens(tokens) + self.positions(positions))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


def private_gpt(layers: int) -> GPT:
    """A GPT whose forward has a code object of its own, so that rivals in one process share no captured graph."""
    torch.manual_seed(0)
    own = type("GPT", (GPT,), {"forward": private_copy(GPT.forward)})
    return own(layers)  # type: ignore[no-any-return]


def batch() -> tuple[Tensor, Tensor]:
    """Tokens and targets."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
