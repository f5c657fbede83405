"""Twelve small models written the naive way: attention, norms, activations and losses by hand.

Each says which whole functions its parts are: what a library would have called, and how often.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["MODELS", "NaiveModel"]


@dataclass(frozen=True, slots=True)
class NaiveModel:
    """A model, its inputs, and its intended rewrites: the first words of rule names, with how often each applies."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    intended: Counter[str]


def _tokens(*shape: int, high: int = 50) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(1))


def _noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


class HandLayerNorm(nn.Module):
    """``(x - mean) / sqrt(var + eps) * weight + bias``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, keepdim=True, unbiased=False)
        return self.weight * (x - mean) / torch.sqrt(var + 1e-5) + self.bias


class SquareLayerNorm(HandLayerNorm):
    """The same by the mean of squares."""

    def forward(self, x: Tensor) -> Tensor:
        near = x - x.mean(dim=-1, keepdim=True)
        scale = torch.rsqrt((near**2).mean(dim=-1, keepdim=True) + 1e-5)
        return near * scale * self.weight + self.bias


class LlamaNorm(nn.Module):
    """RMS norm, in float32 and back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def _joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().view(x.shape[0], x.shape[2], -1)


class MiniGPT(nn.Module):
    """Causal self-attention as in teaching repositories, GELU by tanh, and the loss by gather."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.norm, self.last = HandLayerNorm(32), HandLayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down, self.head = nn.Linear(32, 128), nn.Linear(128, 32), nn.Linear(32, 50)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.embed(ids) + self.places(torch.arange(length, device=ids.device))
        q, k, v = (_heads(y, 4) for y in self.qkv(self.norm(x)).split(32, dim=2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        kept = torch.tril(torch.ones(length, length, device=ids.device)).view(1, 1, length, length)
        weights = F.softmax(scores.masked_fill(kept == 0, float("-inf")), dim=-1)
        x = x + self.out(_joined(weights @ v))
        y = self.up(self.last(x))
        y = 0.5 * y * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (y + 0.044715 * torch.pow(y, 3.0))))
        logp = F.log_softmax(self.head(x + self.down(y)), dim=-1)
        return -logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1).mean()


class MiniBert(nn.Module):
    """Attention with an additive padding mask, GELU by erf, softmax by exponentials at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.query, self.key, self.value = (nn.Linear(32, 32) for _ in range(3))
        self.norm, self.up, self.down = HandLayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids)
        q, k, v = _heads(self.query(x), 4), _heads(self.key(x), 4), _heads(self.value(x), 4)
        extended = (1.0 - mask[:, None, None, :]) * torch.finfo(x.dtype).min
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(8) + extended
        x = self.norm(x + _joined(torch.matmul(nn.Softmax(dim=-1)(scores), v)))
        y = self.up(x)
        y = self.down(y * 0.5 * (1.0 + torch.erf(y / math.sqrt(2.0))))[:, 0]
        powers = torch.exp(y - y.max(dim=-1, keepdim=True).values)
        return powers / powers.sum(dim=-1, keepdim=True)


class MiniLlama(nn.Module):
    """RMS norms, rotary by halves, SwiGLU with SiLU by sigmoid, attention with a mask made by triu."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.second = nn.Embedding(50, 32), LlamaNorm(32), LlamaNorm(32)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(32, 32, bias=False) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        h = self.norm(x)
        q, k, v = _heads(self.wq(h), 4), _heads(self.wk(h), 4), _heads(self.wv(h), 4)
        angle = torch.outer(torch.arange(ids.shape[1]).float(), 100.0 ** (-torch.arange(0, 8, 2).float() / 8))
        angle = torch.cat([angle, angle], -1)
        q, k = (y * angle.cos() + torch.cat([-y[..., 4:], y[..., :4]], -1) * angle.sin() for y in (q, k))
        mask = torch.full((ids.shape[1], ids.shape[1]), float("-inf")).triu(diagonal=1)
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(8)
        scores = scores + mask
        weights = F.softmax(scores.float(), dim=-1).type_as(q)
        x = x + self.wo(_joined(torch.matmul(weights, v)))
        h = self.second(x)
        gate = self.gate(h)
        return x + self.down(gate * torch.sigmoid(gate) * self.up(h))


class ComplexLlama(nn.Module):
    """Rotary by complex numbers and SiLU by exponentials, as in the first published code."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Linear(32, 32, bias=False) for _ in range(3))
        self.norm, self.gate = LlamaNorm(32), nn.Linear(32, 32)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (y.view(2, 12, 4, 8) for y in (self.wq(h), self.wk(h), self.wv(h)))
        q, k = (self.turned(y, turns) for y in (q, k))
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        weights = torch.softmax(torch.matmul(q, k.transpose(2, 3)) / math.sqrt(8), dim=-1)
        y = _joined(torch.matmul(weights, v))
        gate = self.gate(y)
        return y * (gate / (1 + torch.exp(-gate)))

    @staticmethod
    def turned(x: Tensor, turns: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns[None, :, None, :]).flatten(3).type_as(x)


class EinsumTransformer(nn.Module):
    """Attention by einsum with heads inside, layer norm by squares, softplus by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm, self.out = nn.Linear(32, 96), SquareLayerNorm(32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).reshape(2, 12, 3, 4, 8).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 8**-0.5
        mixed = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(dim=-1), v)
        return torch.log(1 + torch.exp(self.out(mixed.reshape(2, 12, 32))))


class MiniViT(nn.Module):
    """Patches, scaled queries, GELU by erf in another order, pooling and log-softmax by logsumexp."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.qkv = nn.Conv2d(3, 32, 4, 4), nn.Linear(32, 96)
        self.norm, self.up, self.head = HandLayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(x)).reshape(2, -1, 3, 4, 8).permute(2, 0, 3, 1, 4)
        weights = ((q * 8**-0.5) @ k.transpose(-2, -1)).softmax(dim=-1)
        x = x + (weights @ v).transpose(1, 2).reshape(2, -1, 32)
        y = self.up(x)
        y = 0.5 * (1 + torch.erf(y * 0.7071067811865476)) * y
        scores = self.head(y.mean(1))
        return scores - torch.logsumexp(scores, dim=-1, keepdim=True)


class MiniT5(nn.Module):
    """Attention without a scale, with a learned relative bias, softmax in float32, GELU by tanh, factored."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(32, 32, bias=False) for _ in range(4))
        self.bias, self.norm, self.up = nn.Embedding(23, 4), LlamaNorm(32), nn.Linear(32, 64)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = _heads(self.q(h), 4), _heads(self.k(h), 4), _heads(self.v(h), 4)
        places = torch.arange(12)
        bias = self.bias(places[None, :] - places[:, None] + 11).permute(2, 0, 1).unsqueeze(0)
        scores = torch.matmul(q, k.transpose(3, 2))
        scores += bias
        weights = F.softmax(scores.float(), dim=-1).type_as(scores)
        y = self.up(x + self.o(_joined(torch.matmul(weights, v))))
        return 0.5 * y * (1 + torch.tanh(0.7978845608028654 * y * (1 + 0.044715 * y * y)))


class SpatialAttention(nn.Module):
    """Attention over the places of an image, values as (batch, features, places), after a SiLU by sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Conv2d(16, 16, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        h = x * torch.sigmoid(x)
        q = self.q(h).reshape(2, 16, 36).permute(0, 2, 1)
        weights = torch.bmm(q, self.k(h).reshape(2, 16, 36)) * 16 ** (-0.5)
        weights = F.softmax(weights, dim=2).permute(0, 2, 1)
        return x + torch.bmm(self.v(h).reshape(2, 16, 36), weights).reshape(2, 16, 6, 6)


class Speech(nn.Module):
    """Heads folded into the batch, products by bmm, the mask at four dimensions and in place, loss by one-hot."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.head = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 20)

    def forward(self, x: Tensor, mask: Tensor, targets: Tensor) -> Tensor:
        q = _heads(self.q(x) * 8**-0.5, 4).reshape(8, 12, 8)
        k, v = (_heads(y, 4).reshape(8, 12, 8) for y in (self.k(x), self.v(x)))
        scores = torch.bmm(q, k.transpose(1, 2)).view(2, 4, 12, 12)
        scores = scores.masked_fill_(mask[:, None, None, :] < 0.5, -1e9)
        weights = F.softmax(scores.view(8, 12, 12), dim=-1)
        mixed = torch.bmm(F.dropout(weights, p=0.0, training=self.training), v)
        logp = torch.log(torch.softmax(self.head(_joined(mixed.view(2, 4, 12, 8))), dim=-1))
        return -(F.one_hot(targets, 20) * logp).sum(-1).mean()


class Classifier(nn.Module):
    """No attention: SiLU, GELU by erfc, layer norm twice, and the loss by logsumexp and gather."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 10)
        self.norm, self.last = HandLayerNorm(32), SquareLayerNorm(32)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        h = self.norm(self.a(x))
        h = h * (1 / (1 + torch.exp(-h)))
        h = self.b(h)
        h = self.last(0.5 * h * torch.erfc(-h / math.sqrt(2)))
        h = self.c(h)
        return (torch.logsumexp(h, dim=1) - h.gather(1, targets[:, None]).squeeze(1)).mean()


class Mixture(nn.Module):
    """A router with softmax by exponentials and logsumexp by hand, experts with SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(32, 4)
        self.up, self.gate = nn.Parameter(torch.randn(4, 32, 32) * 0.1), nn.Parameter(torch.randn(4, 32, 32) * 0.1)
        self.norm = LlamaNorm(32)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.norm(x)
        scores = self.router(h)
        powers = torch.exp(scores - torch.amax(scores, dim=-1, keepdim=True))
        share = powers / torch.sum(powers, dim=-1, keepdim=True)
        gate = torch.einsum("nd,edf->nef", h, self.gate)
        mixed = torch.sigmoid(gate) * gate * torch.einsum("nd,edf->nef", h, self.up)
        top = scores.max(dim=-1, keepdim=True)[0]
        total = top.squeeze(-1) + torch.log(torch.exp(scores - top).sum(dim=-1))
        return x + (share[:, :, None] * mixed).sum(1), total.square().mean()


class Contrastive(nn.Module):
    """Two towers, and their loss by log-softmax over rows and columns, picked on the diagonal by gather."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(32, 16), nn.Linear(32, 16)
        self.norm = SquareLayerNorm(32)

    def forward(self, x: Tensor, y: Tensor, pairs: Tensor) -> Tensor:
        a, b = self.left(self.norm(x)), self.right(self.norm(y))
        scores = (a @ b.t()) / 0.07
        rows = torch.log_softmax(scores, dim=-1).gather(1, pairs.unsqueeze(1)).squeeze(1)
        shifted = scores.t() - scores.t().max(dim=-1, keepdim=True).values
        columns = shifted - torch.log(torch.exp(shifted).sum(-1, keepdim=True))
        return -(rows.mean() + columns.gather(1, pairs.unsqueeze(1)).squeeze(1).mean()) / 2


def _turns() -> Tensor:
    return torch.polar(torch.ones(12, 4), _noise(12, 4))


def _kept() -> Tensor:
    return (torch.arange(12)[None, :] < torch.tensor([12, 9])[:, None]).float()


_ATTENTION = "use_library_attention"

MODELS: dict[str, NaiveModel] = {
    "gpt": NaiveModel(
        MiniGPT,
        lambda: (_tokens(2, 12), _tokens(2, 12)),
        Counter({_ATTENTION: 1, "layer norm": 2, "gelu": 1, "cross entropy": 1}),
    ),
    "bert": NaiveModel(
        MiniBert,
        lambda: (_tokens(2, 12), _kept()),
        Counter({_ATTENTION: 1, "layer norm": 1, "gelu": 1, "softmax": 1}),
    ),
    "llama": NaiveModel(MiniLlama, lambda: (_tokens(2, 12),), Counter({_ATTENTION: 1, "rms norm": 2, "silu": 1})),
    "llama, complex": NaiveModel(
        ComplexLlama,
        lambda: (_noise(2, 12, 32), _turns()),
        Counter({_ATTENTION: 1, "rms norm": 1, "silu": 1, "turn_in_real_numbers": 2}),
    ),
    "einsum": NaiveModel(
        EinsumTransformer, lambda: (_noise(2, 12, 32),), Counter({_ATTENTION: 1, "layer norm": 1, "softplus": 1})
    ),
    "vit": NaiveModel(
        MiniViT,
        lambda: (_noise(2, 3, 16, 16),),
        Counter({_ATTENTION: 1, "layer norm": 1, "gelu": 1, "log-softmax": 1}),
    ),
    "t5": NaiveModel(MiniT5, lambda: (_noise(2, 12, 32),), Counter({_ATTENTION: 1, "rms norm": 1, "gelu": 1})),
    "spatial": NaiveModel(SpatialAttention, lambda: (_noise(2, 16, 6, 6),), Counter({_ATTENTION: 1, "silu": 1})),
    "speech": NaiveModel(
        Speech,
        lambda: (_noise(2, 12, 32), _kept(), _tokens(2, 12, high=20)),
        Counter({_ATTENTION: 1, "log-softmax": 1, "cross entropy": 1}),
    ),
    "classifier": NaiveModel(
        Classifier,
        lambda: (_noise(6, 32), _tokens(6, high=10)),
        Counter({"layer norm": 2, "silu": 1, "cross entropy": 1}),
    ),
    "mixture": NaiveModel(
        Mixture, lambda: (_noise(6, 32),), Counter({"rms norm": 1, "softmax": 1, "silu": 1, "logsumexp": 1})
    ),
    "contrastive": NaiveModel(
        Contrastive,
        lambda: (_noise(6, 32), _noise(6, 32), torch.arange(6)),
        Counter({"layer norm": 2, "log-softmax": 1, "cross entropy": 2}),
    ),
}
