"""Attention with functions of scores, in tiles: eager's values, whatever the mask hides and whatever is NaN."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

import lamina

BATCHES, HEADS, ROWS, WIDTH = 2, 4, 600, 32
NAN, INF = math.nan, math.inf


def _mask(mask: Callable[..., Tensor], batches: int | None = None, heads: int | None = None) -> BlockMask:
    return create_block_mask(mask, batches, heads, ROWS, ROWS, device="cpu")


def _operands(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(BATCHES, HEADS, ROWS, WIDTH).to(dtype) for _ in range(3)]


SLOPES, RELATIVE, BIAS = torch.rand(HEADS), torch.randn(2 * ROWS), torch.randn(BATCHES, HEADS, ROWS, ROWS)
DOCUMENTS = torch.arange(BATCHES * ROWS).view(BATCHES, ROWS) // 70
CAUSAL = _mask(lambda b, h, i, j: i >= j)
HIDDEN = _mask(lambda b, h, i, j: (i > 150) & (j < i))
WINDOW = _mask(lambda b, h, i, j: (i - j).abs() < 20)
BY_HEAD = _mask(lambda b, h, i, j: (h == 1) | (i >= j), BATCHES, HEADS)
BY_DOCUMENT = _mask(lambda b, h, i, j: DOCUMENTS[b, i] == DOCUMENTS[b, j], BATCHES)

CALLS: dict[str, Callable[..., Any]] = {
    "no function": flex_attention,
    "causal": lambda q, k, v: flex_attention(q, k, v, block_mask=CAUSAL),
    "slopes": lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + SLOPES[h] * (j - i)),
    "relative": lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + RELATIVE[i - j + ROWS]),
    "bias": lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + BIAS[b, h, i, j]),
    "capped": lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: 2 * torch.tanh(s / 2), CAUSAL),
    "window": lambda q, k, v: flex_attention(q, k, v, block_mask=WINDOW),
    "by head": lambda q, k, v: flex_attention(q, k, v, block_mask=BY_HEAD),
    "documents": lambda q, k, v: flex_attention(q, k, v, block_mask=BY_DOCUMENT),
    "other scale": lambda q, k, v: flex_attention(q, k, v, block_mask=CAUSAL, scale=2.0),
    "grouped": lambda q, k, v: flex_attention(q, k[:, :2], v[:, :2], block_mask=CAUSAL, enable_gqa=True),
    "one batch of keys": lambda q, k, v: flex_attention(q, k[:1], v[:1], block_mask=BY_DOCUMENT),
    "one query": lambda q, k, v: flex_attention(q[:, :, :1], k, v, score_mod=lambda s, b, h, i, j: s - j * 0.01),
    "few queries": lambda q, k, v: flex_attention(q[:, :, :7], k, v, score_mod=lambda s, b, h, i, j: s - j * 0.01),
    "wide values": lambda q, k, v: flex_attention(q, k, torch.cat((v, v), -1), block_mask=CAUSAL),
    "heads inside": lambda q, k, v: flex_attention(
        *(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)), block_mask=CAUSAL
    ),
    "infinite score": lambda q, k, v: flex_attention(
        q, k, v, lambda s, b, h, i, j: torch.where((i == 50) & (j == 7), INF, s), CAUSAL
    ),
    "NaN score": lambda q, k, v: flex_attention(
        q, k, v, lambda s, b, h, i, j: torch.where((i == 5) & (j == 7), NAN, s), CAUSAL
    ),
    "no score": lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: torch.where(i == 5, -INF, s)),
}


def _logarithms(q: Tensor, k: Tensor, v: Tensor) -> Any:
    return flex_attention(q, k, v, lambda s, b, h, i, j: s + SLOPES[h], HIDDEN, return_aux=AuxRequest(lse=True))


def _check(function: Callable[..., Any], *inputs: Tensor, tolerance: float = 1e-4, dynamic: bool | None = None) -> None:
    torch.compiler.reset()
    compiled: Any = lamina.compile(function, dynamic=dynamic, options={"strict": True})
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results, expected = (torch.utils._pytree.tree_leaves(f(*inputs)) for f in (compiled, function))
    for result, wanted in zip(results, expected, strict=True):
        if wanted is not None:
            torch.testing.assert_close(result, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
            assert result.stride() == wanted.stride()
    bodies = compiled.record.decisions("body")
    assert bodies, "not asked"
    assert all(d.taken for d in bodies), [d.reason for d in bodies]


_SAMPLE = ("relative",)


@pytest.mark.parametrize("name", [n if n in _SAMPLE else pytest.param(n, marks=pytest.mark.slow) for n in CALLS])
def test_scores_that_functions_change(name: str) -> None:
    _check(CALLS[name], *_operands())


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("place", [0, 1, pytest.param(2), None])
@pytest.mark.parametrize("value", [NAN, *(pytest.param(v, marks=pytest.mark.slow) for v in (INF, -INF))])
def test_hidden_keys_are_left_out_only_where_nobody_can_tell(value: float, place: int | None) -> None:
    """Rows that see nothing are zero, unless what is hidden is no number."""
    operands = _operands()
    if place is not None:
        operands[place][0, 1, 200, 3] = value
    _check(_logarithms, *operands)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    _check(CALLS["causal"], *_operands(dtype), tolerance=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["causal", "slopes", "window"])
def test_sizes_known_at_run_time(name: str) -> None:
    _check(CALLS[name], *_operands(), dynamic=True)


@pytest.mark.slow
def test_sizes_that_the_functions_read() -> None:
    def ends(q: Tensor, k: Tensor, v: Tensor) -> Any:
        last = k.shape[2] - 1
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s - (last - j) * 0.01)

    _check(ends, *_operands(), dynamic=True)


def test_what_is_no_float_stays_a_call() -> None:
    compiled: Any = lamina.compile(flex_attention, options={"strict": True})
    operands = [x.double()[:, :, :20] for x in _operands()]
    with torch.no_grad():
        torch.testing.assert_close(compiled(*operands), flex_attention(*operands))
    assert "its operands are of torch.float64" in {d.reason for d in compiled.record.decisions("body")}
