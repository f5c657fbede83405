"""Programs written by hand: geometry, graphs, images and signals."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.sweeping.written.noting import Places, Positive, of


@of((1024, 64), Positive((1024, 64)), (1024, 64, 3))
def _rays_through_a_volume(density: Tensor, gap: Tensor, colour: Tensor) -> tuple[Tensor, Tensor]:
    alpha = 1 - torch.exp(-F.relu(density) * gap)
    left = torch.cumprod(torch.cat((torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-6), 1), 1)[:, :-1]
    w = alpha * left
    return (w[..., None] * colour.sigmoid()).sum(1), (w * gap.cumsum(1)).sum(1)


@of((512, 8, 16), Places(512, (2, 8192)), (8, 16), (8, 16))
def _attention_over_edges(x: Tensor, edges: Tensor, a: Tensor, b: Tensor) -> Tensor:
    source, target = edges
    score = F.leaky_relu((x * a).sum(-1)[source] + (x * b).sum(-1)[target], 0.2).clamp(-8, 8).exp()
    total = torch.zeros_like(x[..., 0]).index_add(0, target, score)
    share = score / (total[target] + 1e-6)
    return torch.zeros_like(x).index_add(0, target, x[source] * share[..., None])


@of((512, 4), (512, 4))
def _generalized_overlap(a: Tensor, b: Tensor) -> Tensor:
    a = torch.cat((a[:, :2], a[:, :2] + a[:, 2:].exp()), 1)[:, None]
    b = torch.cat((b[:, :2], b[:, :2] + b[:, 2:].exp()), 1)[None]
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    both = (high - low).clamp(min=0).prod(-1)
    either = (a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - both
    hull = (torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])).prod(-1)
    return both / either - (hull - either) / hull


@of((4, 3, 40, 40, 85), (3, 2))
def _decoded_boxes(raw: Tensor, anchors: Tensor) -> Tensor:
    y = raw.sigmoid()
    rows, columns = torch.meshgrid(torch.arange(40), torch.arange(40), indexing="ij")
    grid = torch.stack((columns, rows), -1).to(raw)
    xy = (y[..., :2] * 2 - 0.5 + grid) * 8
    wh = (y[..., 2:4] * 2).square() * anchors[:, None, None].abs()
    return torch.cat((xy, wh, y[..., 4:5] * y[..., 5:]), -1).flatten(1, 3)


@of(Positive((8, 3, 128, 128)))
def _colours_from_hue(x: Tensor) -> Tensor:
    h, s, v = x.unbind(1)
    n = torch.tensor([5.0, 3.0, 1.0], device=x.device, dtype=x.dtype)[:, None, None]
    k = (n + h[:, None] * 6) % 6
    return v[:, None] - (v * s)[:, None] * torch.minimum(k, 4 - k).clamp(0, 1)


@of((8, 1, 160, 160))
def _edges(x: Tensor) -> tuple[Tensor, Tensor]:
    x = F.pad(x, (1, 1, 1, 1), mode="replicate")
    rows = x[..., :-2, :] + 2 * x[..., 1:-1, :] + x[..., 2:, :]
    columns = x[..., :-2] + 2 * x[..., 1:-1] + x[..., 2:]
    gx, gy = rows[..., 2:] - rows[..., :-2], columns[..., 2:, :] - columns[..., :-2, :]
    return torch.sqrt(gx * gx + gy * gy + 1e-6), torch.atan2(gy, gx + 1e-3)


@of((8, 64, 32, 32))
def _divided_by_neighbours(x: Tensor) -> Tensor:
    squares = F.pad(x.square(), (0, 0, 0, 0, 2, 2))
    near = sum(squares[:, i : i + x.shape[1]] for i in range(5))
    return x * (2 + 1e-4 * near) ** -0.75


@of((8, 256, 64))
def _merged_tokens(x: Tensor) -> Tensor:
    a, b = x[:, ::2], x[:, 1::2]
    alike = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).transpose(1, 2)
    best, place = alike.max(-1)
    index = place[..., None].expand_as(a)
    return b.scatter_reduce(1, index, a * best[..., None].sigmoid(), "mean")


@of((8, 16, 128, 128))
def _thresholded_wavelets(x: Tensor) -> Tensor:
    a, b, c, d = x[..., ::2, ::2], x[..., ::2, 1::2], x[..., 1::2, ::2], x[..., 1::2, 1::2]
    ll, lh, hl, hh = (a + b + c + d) / 2, (a - b + c - d) / 2, (a + b - c - d) / 2, (a - b - c + d) / 2
    lh, hl, hh = (F.softshrink(t, 0.3) for t in (lh, hl, hh))
    top = torch.stack(((ll + lh + hl + hh) / 2, (ll - lh + hl - hh) / 2), -1).flatten(-2)
    low = torch.stack(((ll + lh - hl - hh) / 2, (ll - lh - hl + hh) / 2), -1).flatten(-2)
    return torch.stack((top, low), -2).flatten(-3, -2)


@of((8, 201, 400), Positive((80, 201)))
def _log_of_mel_bands(spectrum: Tensor, bands: Tensor) -> Tensor:
    power = torch.log10((bands @ spectrum.square()).clamp(min=1e-6))
    power = torch.maximum(power, power.amax((1, 2), keepdim=True) - 8)
    return (power - power.mean(-1, keepdim=True)) / (power.std(-1, keepdim=True) + 1e-5)


@of((4096, 16), (15,))
def _splines(x: Tensor, shift: Tensor) -> Tensor:
    grid = torch.linspace(-2, 2, 15, device=x.device, dtype=x.dtype) + 0.001 * shift
    x = x[..., None]
    bases = ((x >= grid[:-1]) & (x < grid[1:])).to(x.dtype)
    for k in (1, 2, 3):
        left = (x - grid[: -(k + 1)]) / (grid[k:-1] - grid[: -(k + 1)])
        right = (grid[k + 1 :] - x) / (grid[k + 1 :] - grid[1:-k])
        bases = left * bases[..., :-1] + right * bases[..., 1:]
    return bases


@of((65536, 3))
def _spherical_harmonics(v: Tensor) -> Tensor:
    x, y, z = F.normalize(v, dim=-1).unbind(-1)
    second = (x * y, y * z, 3 * z * z - 1, x * z, x * x - y * y)
    third = (y * (3 * x * x - y * y), x * y * z, y * (5 * z * z - 1), z * (5 * z * z - 3), x * (5 * z * z - 1))
    return torch.stack((torch.ones_like(x), x, y, z, *second, *third), -1)


@of((32768, 3))
def _rotations_of_axes(w: Tensor) -> Tensor:
    angle = w.square().sum(-1, keepdim=True).clamp(min=1e-6).sqrt()
    x, y, z = (w / angle).unbind(-1)
    none = torch.zeros_like(x)
    k = torch.stack((none, -z, y, z, none, -x, -y, x, none), -1).unflatten(-1, (3, 3))
    s, c = angle.sin()[..., None], angle.cos()[..., None]
    return torch.eye(3, device=w.device, dtype=w.dtype) + s * k + (1 - c) * (k @ k)


@of((1024, 3), Places(1024, (2, 16384)), (1024, 32))
def _messages_of_atoms(position: Tensor, pairs: Tensor, h: Tensor) -> Tensor:
    gap = position[pairs[0]] - position[pairs[1]]
    far = (gap.square().sum(-1) + 1e-3).sqrt()
    centres = torch.linspace(0, 5, 32, device=far.device, dtype=far.dtype)
    near = 0.5 * (torch.cos(far * math.pi / 5) + 1) * (far < 5)
    filters = torch.exp(-10 * (far[:, None] - centres).square()) * near[:, None]
    return torch.zeros_like(h).index_add(0, pairs[1], h[pairs[0]] * filters)


@of((4, 8, 64, 64), (4, 32, 32, 2))
def _sampled_by_hand(x: Tensor, at: Tensor) -> Tensor:
    n, c, h, w = x.shape
    px, py = ((at.tanh() + 1) * 31.5).unbind(-1)
    x0, y0 = px.detach().floor(), py.detach().floor()
    fx, fy = (px - x0)[:, None], (py - y0)[:, None]
    flat = x.flatten(2)

    def pick(cx: Tensor, cy: Tensor) -> Tensor:
        place = cy.long().clamp(0, h - 1) * w + cx.long().clamp(0, w - 1)
        return flat.gather(2, place.flatten(1)[:, None].expand(n, c, -1)).unflatten(2, at.shape[1:3])

    top = pick(x0, y0) * (1 - fx) + pick(x0 + 1, y0) * fx
    low = pick(x0, y0 + 1) * (1 - fx) + pick(x0 + 1, y0 + 1) * fx
    return top * (1 - fy) + low * fy


@of((8, 3, 128, 128), (8, 64, 768))
def _loss_of_patches(image: Tensor, guess: Tensor) -> Tensor:
    p = image.unflatten(3, (8, 16)).unflatten(2, (8, 16)).permute(0, 2, 4, 3, 5, 1).flatten(3, 5).flatten(1, 2)
    p = (p - p.mean(-1, keepdim=True)) / (p.var(-1, keepdim=True) + 1e-6).sqrt()
    return (guess - p).square().mean(-1).mean()


@of((32, 64, 14, 14))
def _shifted_in_time(x: Tensor) -> Tensor:
    x = x.unflatten(0, (4, 8))
    out = torch.zeros_like(x)
    out[:, :-1, :8] = x[:, 1:, :8]
    out[:, 1:, 8:16] = x[:, :-1, 8:16]
    out[:, :, 16:] = x[:, :, 16:]
    return F.relu(out.flatten(0, 1))


@of((16, 128, 256), (256,))
def _smoothed_in_time(x: Tensor, raw: Tensor) -> Tensor:
    a = raw.sigmoid()
    state, found = x[:, 0], []
    for t in range(16):
        state = a * state + (1 - a) * x[:, t]
        found.append(state)
    return torch.stack(found, 1)


@of((512, 512), (512, 512), Positive((512, 8)))
def _weights_of_eight_bits(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    q = (w.unflatten(1, (8, 64)) / scale[..., None]).round().clamp(-128, 127)
    kept = w + ((q * scale[..., None]).flatten(1) - w).detach()
    a, b = (x @ kept.T).chunk(2, -1)
    return F.silu(a) * b


@of((2048, 3), (2048, 3))
def _distance_of_clouds(a: Tensor, b: Tensor) -> Tensor:
    far = (a[:, None] - b[None]).square().sum(-1)
    return far.amin(0).mean() + far.amin(1).mean()
