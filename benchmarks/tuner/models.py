"""Two times ten models for CPUs and three for GPUs, from chains of elementwise operators to layers of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

__all__ = ["GPU_MODELS", "MODELS", "OTHERS", "model_of"]


class Residual(nn.Module):
    """A block that is added to what it was given."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        """The sum."""
        return x + self.inner(x)


class Chain(nn.Module):
    """Twelve operators on elements."""

    def forward(self, x: Tensor) -> Tensor:
        """A result of the input's shape."""
        y = torch.sigmoid(x) * torch.tanh(x) + x.exp() / (1 + x.square())
        return torch.where(y > 0, y.log1p(), y * 0.1).clamp(-3, 3)


class Statistics(nn.Module):
    """Reductions over rows."""

    def forward(self, x: Tensor) -> Tensor:
        """Rows with mean zero and variance one, in softmax."""
        y = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()
        return y.softmax(-1) * y.abs().amax(-1, keepdim=True)


class Rotary(nn.Module):
    """Rotary embedding of heads."""

    def forward(self, x: Tensor) -> Tensor:
        """Heads, each turned by its place."""
        length, width = x.shape[-2], x.shape[-1]
        rates = torch.arange(0, width, 2) / width
        turns = torch.arange(length).unsqueeze(-1) / 10000**rates
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.cat([even * turns.cos() - odd * turns.sin(), even * turns.sin() + odd * turns.cos()], -1)


class Gated(nn.Module):
    """A feed-forward layer with a gate."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(width, inner), nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """A result of the input's shape."""
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Attention(nn.Module):
    """Causal attention of the input with itself, in single operators."""

    def forward(self, x: Tensor) -> Tensor:
        """Heads of the input's shape."""
        length = x.shape[-2]
        scores = x @ x.transpose(-1, -2) / x.shape[-1] ** 0.5
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ x


class Distances(nn.Module):
    """Distances of points from each other, and how many are near."""

    def forward(self, x: Tensor) -> Tensor:
        """One number for each point."""
        apart = (x.unsqueeze(1) - x.unsqueeze(0)).square().sum(-1).sqrt()
        return (apart < 3.0).float().mean(-1) * apart.mean(-1)


class Excited(nn.Module):
    """Channels weighted by what is in them on the whole."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(channels, channels // 4), nn.Linear(channels // 4, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Images of the input's shape."""
        weights = self.up(torch.relu(self.down(x.mean((2, 3))))).sigmoid()
        return x * weights[..., None, None]


class Recurrence(nn.Module):
    """A state that is carried along for a few steps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.carry = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The state after eight steps."""
        state = torch.zeros_like(x)
        for _ in range(8):
            state = torch.tanh(self.carry(state) + x)
        return state


class Losses(nn.Module):
    """Cross entropy of rows against their largest element."""

    def forward(self, x: Tensor) -> Tensor:
        """A loss for each row."""
        return nn.functional.cross_entropy(x, x.argmax(-1), reduction="none", label_smoothing=0.1)


def _net() -> nn.Module:
    layers = [nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.SiLU()]
    return nn.Sequential(*layers, nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16), nn.Hardswish())


MODELS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "chain": (Chain, (256, 4096)),
    "statistics": (Statistics, (512, 2048)),
    "rotary": (Rotary, (4, 8, 256, 64)),
    "layer norm and gelu": (lambda: nn.Sequential(nn.LayerNorm(1024), nn.GELU()), (1024, 1024)),
    "mlp": (lambda: nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)), (64, 256)),
    "residual mlp": (
        lambda: Residual(nn.LayerNorm(256), nn.Linear(256, 512), nn.SiLU(), nn.Linear(512, 256)),
        (256, 256),
    ),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(128, 4, 512, batch_first=True), (8, 64, 128)),
    "convolutions": (_net, (4, 16, 64, 64)),
    "group norm": (lambda: nn.Sequential(nn.GroupNorm(8, 64), nn.SiLU(), nn.AvgPool2d(2)), (8, 64, 56, 56)),
    "wide linear": (lambda: nn.Linear(1024, 1024), (256, 1024)),
}


OTHERS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "gated": (lambda: Gated(256, 512), (128, 256)),
    "attention": (Attention, (4, 8, 128, 32)),
    "distances": (Distances, (384, 16)),
    "excited": (lambda: Excited(32), (8, 32, 48, 48)),
    "recurrence": (lambda: Recurrence(128), (64, 128)),
    "losses": (Losses, (512, 4096)),
    "rms norm": (lambda: nn.Sequential(nn.RMSNorm(512), nn.SiLU(), nn.Softplus()), (1024, 512)),
    "depthwise": (
        lambda: nn.Sequential(nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.GELU(), nn.Conv2d(32, 32, 1)),
        (4, 32, 56, 56),
    ),
    "pooled": (
        lambda: Residual(nn.BatchNorm2d(32), nn.Hardswish(), nn.AvgPool2d(3, 1, 1), nn.Tanh()),
        (8, 32, 56, 56),
    ),
    "small product": (lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)), (16, 64)),
}


GPU_MODELS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "chain": (Chain, (4096, 4096)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True), (8, 512, 1024)),
    "convolutions": (_net, (32, 16, 224, 224)),
}


def model_of(name: str, device: str = "cpu") -> tuple[nn.Module, Tensor]:
    """A model of these in eval mode, the same each time, and its input."""
    torch.manual_seed(0)
    make, shape = (GPU_MODELS if device == "cuda" else {**MODELS, **OTHERS})[name]
    return make().eval().to(device), torch.randn(shape).to(device)
