"""Attention whose heads of keys and values several heads of queries read: values, gradients, memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lamina
from lamina.rewrite.rules.torch_private import shares_heads
from lamina.testing import judge
from tests.rewrite.rules.capturing import gradients

pytestmark = pytest.mark.usefixtures("fresh")

HEADS, SHARED, LENGTH = 16, 4, 512
Repeat = Callable[[Tensor], Tensor]


def _expanded(x: Tensor) -> Tensor:
    batch, heads, length, size = x.shape
    return x[:, :, None].expand(batch, heads, HEADS // SHARED, length, size).reshape(batch, HEADS, length, size)


REPEATS: dict[str, Repeat] = {
    "repeat_interleave": lambda x: x.repeat_interleave(HEADS // SHARED, 1),
    "expand": _expanded,
}


def _function(repeat: Repeat, causal: bool) -> Callable[..., Tensor]:
    def function(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        wide = x.float()
        h = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
        q, k, v = (_heads(h @ w, cos.shape[-1]) for w in (wq, wk, wv))
        q, k = (_rotated(t, cos, sin) for t in (q, k))
        mixed = F.scaled_dot_product_attention(q, repeat(k), repeat(v), is_causal=causal)
        return mixed.transpose(1, 2).flatten(2)

    return function


def _heads(x: Tensor, size: int) -> Tensor:
    return x.unflatten(-1, (-1, size)).transpose(1, 2)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


def _inputs(size: int, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    generator = torch.Generator("cuda").manual_seed(size)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device="cuda")

    weights = [randn(256, heads * size) / 16 for heads in (HEADS, SHARED, SHARED)]
    angle = randn(LENGTH, size)
    found = [randn(2, LENGTH, 256), *weights, angle.cos(), angle.sin()]
    return [t.bfloat16().to(dtype).requires_grad_(k < 4) for k, t in enumerate(found)]


def _relied_on(size: int, causal: bool) -> bool:
    q, k = (torch.empty(2, n, LENGTH, size, device="cuda", dtype=torch.bfloat16) for n in (HEADS, SHARED))
    return shares_heads(q, k, k, 0.0, causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("name", REPEATS)
def test_values_and_gradients(name: str, size: int, causal: bool) -> None:
    """Compared with eager, which repeats the heads, and with float64."""
    function = _function(REPEATS[name], causal)
    compiled = lamina.compile(function, dynamic=False, options={"strict": True})
    found = []
    for call, dtype in ((compiled, torch.bfloat16), (function, torch.bfloat16), (function, torch.float64)):
        inputs = _inputs(size, dtype)
        result = call(*inputs)
        found.append([result, *gradients(result, inputs[:4])])
    for number, (ours, eager, exact) in enumerate(zip(*found, strict=True)):
        assert not judge(ours, eager, exact), number
    shared = [d for d in compiled.record.decisions("rewrite") if d.subject[0] == "simplify_library_attention"]
    assert bool(shared) == _relied_on(size, causal)


@pytest.mark.parametrize("name", REPEATS)
def test_repeated_heads_take_no_memory(name: str) -> None:
    if not _relied_on(128, True):
        pytest.skip("this GPU's library has no kernel that shares heads")
    compiled = lamina.compile(_function(REPEATS[name], True), dynamic=False)
    inputs = _inputs(128)
    compiled(*inputs)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    result = compiled(*inputs)
    kept = torch.cuda.memory_allocated() - before
    assert result.requires_grad
    rows, size = 2 * LENGTH, 128 * 2
    heads = rows * (2 * HEADS + 2 * SHARED) * size  # queries and the result; keys and values
    others = rows * (HEADS * 4 + 256 * 2 + 4)  # logarithms of sums, the normed input and its mean
    assert kept <= heads + others + (1 << 20)
