"""Attention as people write it: functions of queries, keys and values (2, 4, 24, 16), each with what it must become."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["NOT_ATTENTION", "SPELLINGS", "Spelling"]

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Spelling:
    """One way to write attention; ``causal`` and ``masked`` say which mask the library is to be given."""

    function: Attention
    causal: bool = False
    masked: bool = False


SPELLINGS: dict[str, Spelling] = {}
NOT_ATTENTION: dict[str, Attention] = {}


def _spelling(causal: bool = False, masked: bool = False) -> Callable[[Attention], Attention]:
    def enter(function: Attention) -> Attention:
        SPELLINGS[function.__name__] = Spelling(function, causal, masked)
        return function

    return enter


def _no(function: Attention) -> Attention:
    NOT_ATTENTION[function.__name__] = function
    return function


@_spelling()
def divided(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1) @ v


@_spelling()
def scaled_query_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q * (q.size(-1) ** -0.5)
    return torch.matmul(torch.matmul(q, k.mT).softmax(-1), v)


@_spelling()
def einsum_heads_inside(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
    return torch.einsum("bhqk,bkhd->bqhd", torch.softmax(scores, -1), v).reshape(2, 24, 64)


@_spelling()
def einsum_ellipsis(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (torch.einsum("...qd, ...kd -> ...qk", q, k) / 4).softmax(dim=-1)
    return torch.einsum("...qk,...kd->...qd", weights, v)


@_spelling()
def flattened_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.reshape(8, 24, 16) for x in (q, k, v))
    scores = torch.bmm(q * 0.25, k.transpose(1, 2))
    weights = F.dropout(F.softmax(scores, dim=-1), p=0.1, training=False)
    return torch.bmm(weights, v).view(2, 4, 24, 16).transpose(1, 2).reshape(2, 24, 64)


@_spelling()
def features_before_places(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Images: values as (batch, features, places), weights transposed before the product."""
    q, k, v = q.flatten(0, 1), k.flatten(0, 1).permute(0, 2, 1), v.flatten(0, 1).permute(0, 2, 1)
    weights = torch.softmax(torch.bmm(q, k) * 16**-0.5, dim=2).permute(0, 2, 1)
    return torch.bmm(v, weights)


@_spelling()
def softmax_in_float32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.bfloat16() for x in (q, k, v))
    scores = torch.matmul(q, k.transpose(2, 3)) * 16**-0.5
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(F.dropout(weights, 0.0, True), v).float()


@_spelling()
def products_in_float32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.bfloat16() for x in (q, k, v))
    scores = (q.float() @ k.float().transpose(-1, -2)) / 4
    return (scores.softmax(-1).type_as(v) @ v).float()


@_spelling()
def soft_max_of_exponentials(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / 4
    powers = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    return (powers / powers.sum(dim=-1, keepdim=True)) @ v


@_spelling(causal=True)
def causal_by_tril(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) * 0.25
    kept = torch.tril(torch.ones(24, 24, device=q.device)).view(1, 1, 24, 24)
    return scores.masked_fill(kept == 0, float("-inf")).softmax(-1) @ v


@_spelling(causal=True)
def causal_by_added_triu(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.triu(torch.full((24, 24), float("-inf"), device=q.device), diagonal=1)
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / 4
    scores += mask
    return scores.softmax(-1) @ v


@_spelling(causal=True)
def causal_by_positions(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    places = torch.arange(q.shape[-2], device=q.device)
    later = places[None, :] > places[:, None]
    lowest = torch.finfo(q.dtype).min
    scores = torch.where(later, torch.full([], lowest, device=q.device), q @ k.mT)
    return torch.softmax(scores / 4, -1) @ v


@_spelling(causal=True)
def causal_in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1)
    scores.div_(math.sqrt(16))
    scores.masked_fill_(~torch.ones(24, 24, dtype=torch.bool, device=q.device).tril(), -1e9)
    return scores.softmax(-1) @ v


@_spelling(masked=True)
def padding_filled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / 4
    return scores.masked_fill((v[:, 0, :, 0] > 0)[:, None, None, :], float("-inf")).softmax(-1) @ v


@_spelling(masked=True)
def padding_added(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    extended = (1.0 - (v[:, :1, None, :, 0] > 0).to(q.dtype)) * torch.finfo(q.dtype).min
    return (torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(16) + extended).softmax(-1) @ v


@_spelling(masked=True)
def padding_and_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / 4
    scores = scores.masked_fill(torch.ones(24, 24, dtype=torch.bool, device=q.device).triu(1), -1e9)
    return torch.where((v[:, 0, :, 0] > 1)[:, None, None, :], -1e9, scores).softmax(-1) @ v


@_spelling(masked=True)
def mask_for_flattened_heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The scores are taken apart into heads for the mask, and put together again."""
    mask = torch.where(v[:, :1, None, :, 0] > 0, torch.finfo(q.dtype).min, 0.0)
    q, k, v = (x.reshape(8, 24, 16) for x in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).view(2, 4, 24, 24) / 4 + mask
    weights = F.softmax(scores.view(8, 24, 24), dim=-1)
    return torch.bmm(weights, v).view(2, 4, 24, 16)


@_spelling(masked=True)
def relative_bias(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = (v[:1, :, :, :1] - k[:1, :, :, :1].transpose(2, 3)).tanh()
    scores = torch.matmul(q, k.transpose(3, 2))
    scores += bias
    return torch.matmul(F.softmax(scores.float(), dim=-1).type_as(scores), v)


@_spelling(masked=True)
def fused_product_and_bias(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    bias = v[0, :, :, 0].repeat(2, 1)[:, None, :].expand(8, 24, 24)
    scores = torch.baddbmm(bias, q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), beta=0.5, alpha=0.25)
    return (scores.softmax(-1) @ v.flatten(0, 1)).unflatten(0, (2, 4))


@_no
def weights_returned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = (q @ k.transpose(-2, -1) / 4).softmax(-1)
    return weights @ v + weights.amax()


@_no
def softmax_over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / 4).softmax(-2) @ v


@_no
def scores_squared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1)).square().softmax(-1) @ v


@_no
def weights_summed_over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / 4).softmax(-1).transpose(-2, -1) @ v


@_no
def hidden_by_a_small_number(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    later = torch.ones(24, 24, dtype=torch.bool, device=q.device).triu(1)
    return (q @ k.transpose(-2, -1)).masked_fill(later, -5.0).softmax(-1) @ v


@_no
def weights_masked_again(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    later = torch.ones(24, 24, dtype=torch.bool, device=q.device).triu(1)
    return (q @ k.transpose(-2, -1)).softmax(-1).masked_fill(later, 0.0) @ v


@_no
def scores_read_before_they_are_changed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1)
    sharp = scores.amax()
    scores += 1.0
    return scores.softmax(-1) @ v * sharp


@_no
def row_with_every_key_masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.ones(24, 24, dtype=torch.bool, device=q.device).triu(0)
    return (q @ k.transpose(-2, -1)).masked_fill(mask, float("-inf")).softmax(-1) @ v


@_spelling()
def divided_by_a_temperature(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    temperature = v.mean((0, 2, 3), keepdim=True)[0].exp()
    return (torch.matmul(q, k.transpose(-2, -1)) / temperature).softmax(-1) @ v


@_spelling(causal=True)
def causal_by_indices(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As in libraries that build masks from functions of places: packed sequences, of which there is one."""
    places = torch.arange(24, device=q.device).unsqueeze(0).expand(2, -1)
    sequence = (torch.diff(places, prepend=places[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    rows = torch.arange(2, device=q.device)[:, None, None, None]
    ours = torch.arange(24, device=q.device)[None, None, :, None]
    others = torch.arange(24, device=q.device)[None, None, None, :]
    seen = places.new_ones((), dtype=torch.bool) & (places[rows, others] <= places[rows, ours])
    seen = seen & (sequence[rows, ours] == sequence[rows, others])
    mask = torch.where(seen, torch.tensor(0.0), torch.finfo(q.dtype).min)
    return (torch.matmul(q, k.transpose(2, 3)) * 0.25 + mask).softmax(-1) @ v


@_no
def scores_without_gradients(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        scores = q @ k.transpose(-2, -1)
    return scores.softmax(-1) @ v


@_no
def queries_written_to_before_the_second_product(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    queries = q.sin()
    weights = (queries @ k.transpose(-2, -1)).detach().softmax(-1)
    queries.zero_()
    return weights @ v + queries


@_no
def batch_grows_with_the_values(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q[:1] @ k[:1].transpose(-2, -1)).softmax(-1) @ v


@_no
def batch_grows_with_the_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q[:1] @ k[:1].transpose(-2, -1) + v.mean((1, 3))[:, None, None, :].detach()
    return scores.softmax(-1) @ v


@_no
def scaled_in_a_wider_dtype(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q.bfloat16() @ k.bfloat16().transpose(-2, -1)
    scale = torch.arange(1.0, 5.0, device=q.device).sqrt()[:, None, None] * v.mean().exp()
    return (scores * scale).softmax(-1).bfloat16() @ v.bfloat16()


@_no
def added_numbers_that_the_queries_dtype_has_not(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q.bfloat16() @ k.bfloat16().transpose(-2, -1)).float()
    bias = torch.arange(24, dtype=torch.float32, device=q.device) * 1.03
    return (scores + bias).softmax(-1).bfloat16() @ v.bfloat16()
