"""Eight models whose activations are much larger than their weights, for figures of memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["MODELS"]


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.after, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(self.before(x)).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, n, c))
        return x + self.down(F.gelu(self.up(self.after(x))))


class _Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.blocks = nn.Embedding(8000, 128), nn.Sequential(*(_Block(128, 4) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(128), nn.Linear(128, 8000, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.head(self.norm(self.blocks(self.tokens(tokens))))
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.last = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.last(self.second(F.relu(self.norm(self.first(x))))))


class _Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 32, 3, padding=1), nn.Linear(32, 10)
        self.blocks = nn.Sequential(*(_Residual(32) for _ in range(4)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3))).pow(2).mean()


class _SwiGlu(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(128) for _ in range(4))
        self.gates, self.ups = (nn.ModuleList(nn.Linear(128, 344, bias=False) for _ in range(4)) for _ in range(2))
        self.downs = nn.ModuleList(nn.Linear(344, 128, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for norm, gate, up, down in zip(self.norms, self.gates, self.ups, self.downs, strict=True):
            h = norm(x)
            x = x + down(F.silu(gate(h)) * up(h))
        return x.pow(2).mean()


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.downs = nn.ModuleList(nn.Conv2d(8 * 2**i, 16 * 2**i, 3, padding=1, stride=2) for i in range(3))
        self.ups = nn.ModuleList(nn.Conv2d(24 * 2**i, 8 * 2**i, 3, padding=1) for i in range(3))
        self.norms = nn.ModuleList(nn.GroupNorm(4, 16 * 2**i) for i in range(3))

    def forward(self, x: Tensor) -> Tensor:
        skipped = [x := self.stem(x)]
        for down, norm in zip(self.downs, self.norms, strict=True):
            skipped.append(x := F.silu(norm(down(x))))
        skipped.pop()
        for up in reversed(self.ups):
            larger = F.interpolate(x, scale_factor=2, mode="bilinear")
            x = F.silu(up(torch.cat([larger, skipped.pop()], 1)))
        return x.mean()


class _Dropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.dropout(F.gelu(layer(x)), 0.1) + x
        return x.mean()


class _Attention(nn.Module):
    """Written by hand, with a mask and dropout."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(64, 192)
        self.register_buffer("mask", torch.ones(512, 512, dtype=torch.bool).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.mT / 8).masked_fill(self.mask, -1e9).softmax(-1)
        return (F.dropout(scores, 0.1) @ v).pow(2).mean()


class _Loss(nn.Module):
    """A sum of elementwise terms of one large parameter, of which nothing must be saved."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.randn(2048, 8192))

    def forward(self, wanted: Tensor) -> Tensor:
        x = self.scores
        focal = F.binary_cross_entropy_with_logits(x, wanted, reduction="none") * (1 - (2 * wanted - 1) * x.tanh()) ** 2
        return (focal * x.sigmoid().log1p()).sum() + (x.softmax(-1) * x.log_softmax(-1)).sum()


def _encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "GPT": (_Gpt, lambda: torch.randint(0, 8000, (16, 256))),
    "CNN": (_Cnn, lambda: torch.randn(16, 3, 128, 128)),
    "SwiGLU": (_SwiGlu, lambda: torch.randn(16, 1024, 128)),
    "U-Net": (_UNet, lambda: torch.randn(8, 3, 256, 256)),
    "dropout": (_Dropout, lambda: torch.randn(65536, 256)),
    "attention": (_Attention, lambda: torch.randn(16, 512, 64)),
    "loss": (_Loss, lambda: torch.rand(2048, 8192)),
    "encoder": (_encoder, lambda: torch.randn(16, 256, 128)),
}
"""How each model is made, and an input of it. Its result, or the mean of its result's squares, is differentiated."""
