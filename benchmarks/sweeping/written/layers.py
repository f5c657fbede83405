"""Programs written by hand: what models do between library calls, as neither grammar nor named patterns have it."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.sweeping.written.noting import Places, Positive, of


@of((2048, 1024))
def _gate_of_every_second(x: Tensor) -> Tensor:
    return F.silu(x[..., ::2].clamp(max=7.0)) * (x[..., 1::2].clamp(-7.0, 7.0) + 1)


@of((8, 256, 8, 64), Positive((256, 32)), Positive((256, 32)))
def _rotary_of_neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    c, s = cos[:, None], sin[:, None]
    return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)


@of((512, 1000), Positive((512, 1000)))
def _gumbel_softmax(logits: Tensor, u: Tensor) -> Tensor:
    return torch.softmax((logits - torch.log(-torch.log(u * 0.99))) / 0.7, -1)


@of((256, 256), (256, 256))
def _contrastive_loss(a: Tensor, b: Tensor) -> Tensor:
    scores = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T / 0.07
    places = torch.arange(a.shape[0], device=a.device)
    return (F.cross_entropy(scores, places) + F.cross_entropy(scores.T, places)) / 2


@of((4, 8, 128, 128), Places(8, (4, 128, 128)))
def _dice_loss(logits: Tensor, labels: Tensor) -> Tensor:
    p = logits.softmax(1)
    wanted = F.one_hot(labels, 8).movedim(-1, 1).to(p.dtype)
    both = (p * wanted).sum((2, 3))
    return (1 - (2 * both + 1) / (p.sum((2, 3)) + wanted.sum((2, 3)) + 1)).mean()


@of((4, 3, 256, 256))
def _total_variation(x: Tensor) -> Tensor:
    down, right = x[..., 1:, :] - x[..., :-1, :], x[..., 1:] - x[..., :-1]
    return down.abs().mean((1, 2, 3)) + right.abs().mean((1, 2, 3))


@of((4, 3, 96, 96), (4, 3, 96, 96))
def _structural_similarity(x: Tensor, y: Tensor) -> Tensor:
    def mean(t: Tensor) -> Tensor:
        return F.avg_pool2d(t, 3, 1)

    a, b = mean(x), mean(y)
    va, vb, ab = mean(x * x) - a * a, mean(y * y) - b * b, mean(x * y) - a * b
    top = (2 * a * b + 0.01) * (2 * ab + 0.03)
    return top / ((a * a + b * b + 0.01) * (va + vb + 0.03))


@of((512, 1024))
def _hadamard(x: Tensor) -> Tensor:
    width = 1
    while width < 1024:
        pairs = x.view(512, -1, 2, width)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        x = torch.stack((a + b, a - b), 2).view(512, 1024)
        width *= 4
    return x / math.sqrt(1024)


@of((8, 512, 64), Positive((8, 512, 64)))
def _decayed_sums(x: Tensor, decay: Tensor) -> Tensor:
    steps = torch.cumsum(-decay * 0.05, 1)
    return torch.cumsum(x * torch.exp(-steps), 1) * torch.exp(steps)


@of((16, 128, 256), (16, 128, 256), (256,), Positive((16, 1, 1)))
def _layer_scale_and_depth(x: Tensor, y: Tensor, gamma: Tensor, keep: Tensor) -> Tensor:
    return x + gamma * y * (keep > 0.2) / 0.8


@of((8192, 16))
def _products_of_pairs(x: Tensor) -> Tensor:
    i, j = torch.triu_indices(16, 16, device=x.device)
    return torch.cat((x, x[:, i] * x[:, j]), -1)


@of((384, 32), (384, 32))
def _kernel_regression(a: Tensor, b: Tensor) -> Tensor:
    square = (a * a).sum(-1, keepdim=True) + (b * b).sum(-1) - 2 * a @ b.T
    weight = torch.exp(-square.clamp(min=0) / 32)
    return weight / (weight.sum(-1, keepdim=True) + 1e-6)


@of((65536, 4), (65536, 3))
def _turned_by_quaternions(q: Tensor, v: Tensor) -> Tensor:
    q = q / q.norm(dim=-1, keepdim=True)
    w, u = q[:, :1], q[:, 1:]
    t = 2 * torch.linalg.cross(u, v)
    return v + w * t + torch.linalg.cross(u, t)


@of((32768, 3, 3))
def _inverse_of_three_by_three(m: Tensor) -> Tensor:
    a, b, c = m.unbind(1)
    columns = (torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b))
    determinant = (a * columns[0]).sum(-1)
    return torch.stack(columns, -1) / (determinant.abs()[:, None, None] + 1)


@of(Positive((8, 3, 128, 128)))
def _hue_and_saturation(x: Tensor) -> Tensor:
    high, low = x.amax(1), x.amin(1)
    r, g, b = x.unbind(1)
    span = high - low + 1e-6
    hue = torch.where(high == r, (g - b) / span % 6, torch.where(high == g, (b - r) / span + 2, (r - g) / span + 4))
    return torch.stack((hue / 6, span / (high + 1e-6), high), 1)


@of((64, 1000))
def _nucleus(logits: Tensor) -> Tensor:
    p, places = logits.softmax(-1).sort(-1, descending=True)
    kept = p * (p.cumsum(-1) - p < 0.9)
    return torch.zeros_like(p).scatter(-1, places, kept / kept.sum(-1, keepdim=True))


@of((16, 256, 256), (256,))
def _pooled_by_attention(x: Tensor, w: Tensor) -> Tensor:
    weight = torch.softmax((x * w).sum(-1) / 16, -1)
    return (weight[..., None] * x).sum(1)


@of((16384,), (64,))
def _soft_histogram(x: Tensor, centres: Tensor) -> Tensor:
    near = (x[:, None] - centres) / 0.1
    return (torch.sigmoid(near + 0.5) - torch.sigmoid(near - 0.5)).sum(0) / x.shape[0]


@of((4, 512, 512), (512, 4), (512,))
def _causal_taps(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    padded = F.pad(x, (3, 0))
    taps = sum(padded[..., k : k + 512] * w[:, k, None] for k in range(4))
    return F.silu(taps + bias[:, None])


@of((512, 2048), (512, 512))
def _lstm_cell(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    i, f, g, o = gates.chunk(4, -1)
    cell = torch.sigmoid(f + 1) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


@of((512, 1536), (512, 1536), (512, 512))
def _gru_cell(x: Tensor, h: Tensor, state: Tensor) -> Tensor:
    (a, b, c), (d, e, f) = x.chunk(3, -1), h.chunk(3, -1)
    z = torch.sigmoid(b + e)
    return (1 - z) * torch.tanh(c + torch.sigmoid(a + d) * f) + z * state


@of((1024, 1024))
def _rounded_in_groups(w: Tensor) -> Tensor:
    groups = w.unflatten(-1, (-1, 32))
    scale = groups.abs().amax(-1, keepdim=True) / 7
    steps = groups / scale.clamp(min=1e-8)
    return ((steps + (steps.round() - steps).detach()).clamp(-8, 7) * scale).flatten(-2)


@of((8, 64, 56, 56))
def _shuffled_channels(x: Tensor) -> Tensor:
    return (F.relu(x) ** 2).unflatten(1, (4, 16)).transpose(1, 2).flatten(1, 2) * 0.5


@of((4, 16, 128, 128), (64,), (64,))
def _depth_from_space(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.pixel_unshuffle(x, 2)
    y = (y - y.mean(1, keepdim=True)) * torch.rsqrt(y.var(1, keepdim=True) + 1e-5)
    return y * w[:, None, None] + b[:, None, None]


@of((4096, 24), (4096, 24), (4096, 24), (4096,))
def _mixture_density(weight: Tensor, mean: Tensor, spread: Tensor, x: Tensor) -> Tensor:
    log = -0.5 * ((x[:, None] - mean) * torch.exp(-spread)) ** 2 - spread - 0.919
    return -torch.logsumexp(torch.log_softmax(weight, -1) + log, -1).mean()


@of((384, 64), Places(10, (384,)))
def _hardest_triplets(x: Tensor, labels: Tensor) -> Tensor:
    x = F.normalize(x, dim=-1)
    far = (2 - 2 * x @ x.T).clamp(min=1e-6).sqrt()
    same = labels[:, None] == labels
    return F.relu(torch.where(same, far, 0).amax(-1) - torch.where(same, 9, far).amin(-1) + 0.2).mean()


@of((4096, 3), (3, 64))
def _fourier_features(x: Tensor, w: Tensor) -> Tensor:
    angles = 2 * math.pi * (x @ w)
    return torch.cat((x, angles.sin(), angles.cos()), -1)


@of((16384, 16, 2))
def _areas_of_polygons(p: Tensor) -> Tensor:
    x, y = p.unbind(-1)
    return 0.5 * (x * y.roll(-1, 1) - y * x.roll(-1, 1)).sum(-1).abs()


@of((8, 4, 128, 130))
def _median_of_three(x: Tensor) -> Tensor:
    a, b, c = x[..., :-2], x[..., 1:-1], x[..., 2:]
    return torch.maximum(torch.minimum(a, b), torch.minimum(torch.maximum(a, b), c))


@of(Positive((4, 192, 192)))
def _points_of_depths(depth: Tensor) -> Tensor:
    line = torch.arange(192.0, device=depth.device)
    v, u = torch.meshgrid(line, line, indexing="ij")
    return torch.stack((depth * (u - 96) / 100, depth * (v - 96) / 100, depth), -1)


@of((256, 512))
def _room_above(x: Tensor) -> Tensor:
    return torch.cummax(x, -1).values.diff(dim=-1, prepend=x[:, :1]) + torch.logcumsumexp(x, -1)


@of((16, 32, 28, 28), (32,), (32,))
def _instance_norm_prelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.instance_norm(x, weight=w, bias=b)
    return F.prelu(y, w) + F.adaptive_avg_pool2d(y, 1)


@of((8192, 81), Places(81, (8192,)))
def _focal_loss_of_labels(logits: Tensor, labels: Tensor) -> Tensor:
    log = torch.log_softmax(logits, -1).gather(1, labels[:, None]).squeeze(1)
    return (-((1 - log.exp()) ** 2) * log).mean()


@of((16, 8, 64, 64), (8, 64, 64))
def _scores_with_slopes(scores: Tensor, bias: Tensor) -> Tensor:
    i = torch.arange(64, device=scores.device)
    seen = (i[:, None] >= i) & (i[:, None] - i < 48)
    scores = 30 * torch.tanh((scores + bias) / 30)
    return torch.softmax(scores.masked_fill(~seen, float("-inf")).float(), -1).to(scores.dtype)
