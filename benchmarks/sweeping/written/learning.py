"""Programs written by hand: losses, updates and sampling, as training and generation have them around a model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.sweeping.written.noting import Places, Positive, of


@of((256, 256), (256, 256))
def _assignment_of_sinkhorn(cost: Tensor, noise: Tensor) -> Tensor:
    log = (cost + 0.1 * noise) / 0.5
    for _ in range(5):
        log = log - torch.logsumexp(log, 1, keepdim=True)
        log = log - torch.logsumexp(log, 0, keepdim=True)
    return log.exp()


@of((16, 512), (16, 512), Positive((16, 512)))
def _advantages(rewards: Tensor, values: Tensor, live: Tensor) -> Tensor:
    following = F.pad(values[:, 1:], (0, 1))
    errors = rewards + 0.99 * following * live - values
    decay = 0.95 ** torch.arange(errors.shape[1], device=errors.device, dtype=errors.dtype)
    sums = (errors * decay).flip(1).cumsum(1).flip(1) / decay.clamp(min=1e-6)
    return (sums - sums.mean()) / (sums.std() + 1e-8)


@of((4096, 64), Places(64, (4096,)), (4096,), (4096,))
def _clipped_policy_loss(logits: Tensor, actions: Tensor, old: Tensor, gain: Tensor) -> Tensor:
    log = F.log_softmax(logits, -1)
    ratio = (log.gather(1, actions[:, None]).squeeze(1) - old).clamp(-3, 3).exp()
    lower = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
    entropy = -(log.exp() * log).sum(-1)
    return -(lower + 0.01 * entropy).mean()


@of((512, 64), (512, 64), Positive((512, 784)), (512, 784))
def _variational_bound(mean: Tensor, log_variance: Tensor, x: Tensor, logits: Tensor) -> Tensor:
    kept = F.binary_cross_entropy_with_logits(logits, x.detach(), reduction="none").sum(-1)
    gap = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1)
    return (kept + gap).mean()


@of((512, 256), (512, 256))
def _correlations_off_diagonal(a: Tensor, b: Tensor) -> Tensor:
    a = (a - a.mean(0)) / (a.std(0) + 1e-4)
    b = (b - b.mean(0)) / (b.std(0) + 1e-4)
    c = a.T @ b / a.shape[0]
    on = (torch.diagonal(c) - 1).square().sum()
    off = c.flatten()[:-1].view(c.shape[0] - 1, c.shape[0] + 1)[:, 1:].square().sum()
    return on + 0.005 * off


@of((4096,), Positive((4096,)), Places(2, (4096,)))
def _partial_likelihood(risk: Tensor, time: Tensor, event: Tensor) -> Tensor:
    order = time.detach().argsort(descending=True)
    risk, event = risk[order], event[order].to(risk.dtype)
    return -((risk - torch.logcumsumexp(risk.float(), 0).to(risk.dtype)) * event).sum() / event.sum().clamp(min=1)


@of((32, 128), Places(5, (32, 128)))
def _loss_of_pairs_by_rank(scores: Tensor, grades: Tensor) -> Tensor:
    gap = scores[:, :, None] - scores[:, None, :]
    better = grades[:, :, None] > grades[:, None, :]
    gain = (2.0 ** grades[:, :, None] - 2.0 ** grades[:, None, :]).abs().to(scores.dtype)
    return (F.softplus(-gap) * gain * better).sum() / better.sum().clamp(min=1)


@of((256, 1000), Places(1000, (256,)), Places(256, (256,)), Positive((256, 1)))
def _mixed_labels(logits: Tensor, labels: Tensor, other: Tensor, share: Tensor) -> Tensor:
    wanted = F.one_hot(labels, 1000).to(logits.dtype) * 0.9 + 0.1 / 1000
    wanted = share * wanted + (1 - share) * wanted[other]
    return -(wanted * F.log_softmax(logits, -1)).sum(-1).mean()


@of((2048, 512), (512,), Places(8, (2048,)))
def _tokens_to_experts(x: Tensor, w: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    logits = (x * w).unflatten(-1, (8, 64)).sum(-1)
    weights, chosen = logits.softmax(-1).topk(2, -1)
    weights = weights / weights.sum(-1, keepdim=True)
    hot = F.one_hot(chosen, 8)
    place = (hot.flatten(0, 1).cumsum(0) - 1).view_as(hot)
    kept = ((place * hot).sum(-1) < 640).to(x.dtype) * weights
    load = hot.sum((0, 1)).to(x.dtype) / hot.shape[0]
    return kept, (load * logits.softmax(-1).mean(0)).sum() * 8


@of((8, 4, 8000), (8, 4))
def _step_of_a_beam(logits: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    total = (F.log_softmax(logits, -1) + scores[..., None]).flatten(1)
    best, place = total.topk(8, -1)
    word, beam = place % logits.shape[-1], place // logits.shape[-1]
    return best, logits.gather(2, word[:, :4, None]).squeeze(-1) + scores.gather(1, beam[:, :4])


@of((32, 16000), Places(16000, (32, 256)))
def _repeated_words(logits: Tensor, seen: Tensor) -> Tensor:
    old = logits.gather(1, seen)
    logits = logits.scatter(1, seen, torch.where(old < 0, old * 1.3, old / 1.3)) / 0.7
    p = logits.softmax(-1)
    return torch.where(p < 0.05 * p.amax(-1, keepdim=True), 0.0, p)


@of((1024, 1024), (1024, 1024), (1024, 1024), Positive((1024, 1024)))
def _step_of_adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    m = torch.lerp(m, g, 0.1)
    v = v * 0.999 + g * g * 0.001
    step = (m / 0.1) / ((v / 0.001).sqrt() + 1e-8) + 0.01 * p
    return p - 1e-3 * p.norm() / step.norm().clamp(min=1e-6) * step, m, v


@of((16, 48, 24), (24, 24), Places(24, (16, 48)))
def _likelihood_of_tags(scores: Tensor, moves: Tensor, tags: Tensor) -> Tensor:
    alpha = scores[:, 0]
    for t in range(1, 12):
        alpha = torch.logsumexp(alpha[:, :, None] + moves, 1) + scores[:, t]
    path = scores.gather(2, tags[..., None]).squeeze(-1).sum(1) + moves[tags[:, :-1], tags[:, 1:]].sum(1)
    return (torch.logsumexp(alpha, 1) - path).mean()


@of((4096, 64), (256, 64))
def _nearest_codes(x: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    far = x.square().sum(1, keepdim=True) - 2 * x @ codes.T + codes.square().sum(1)
    place = far.argmin(1)
    q = codes[place]
    loss = F.mse_loss(q.detach(), x) * 0.25 + F.mse_loss(q, x.detach())
    return x + (q - x).detach(), loss


@of((2048, 32), (64, 32))
def _step_of_k_means(x: Tensor, centres: Tensor) -> Tensor:
    near = torch.cdist(x, centres).argmin(1)
    hot = F.one_hot(near, 64).to(x.dtype)
    return hot.T @ x / hot.sum(0).clamp(min=1)[:, None]


@of((16, 3, 64, 64), Places(1000, (16,)), (16, 3, 64, 64), Positive((1000,)))
def _noised_images(x: Tensor, t: Tensor, noise: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    a = kept.cumsum(0).flip(0) / 1000
    a = a[t][:, None, None, None].clamp(0.001, 0.999)
    noisy = a.sqrt() * x + (1 - a).sqrt() * noise
    weight = (a / (1 - a)).clamp(max=5.0)
    return noisy, (weight * (noisy - x).square()).mean()
