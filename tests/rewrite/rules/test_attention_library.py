"""Calls of the library's attention without masks that say nothing new and without repeated heads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.nn.attention import SDPBackend, sdpa_kernel

import lamina
from lamina.base.devices import FUSED_ATTENTION
from lamina.record import Record
from lamina.rewrite.rules import attention_library as module
from lamina.rewrite.rules.attention_call import LIBRARY
from tests.rewrite.rules.capturing import gradients, kinds_with, rewritten, run_changed

sdpa = F.scaled_dot_product_attention


def nothing(q: Tensor) -> Tensor:
    """As libraries of models make it: repeated along the keys in no memory of its own."""
    at = torch.arange(q.shape[-2], device=q.device)
    return (at[None, None, :, None] >= 0).expand(q.shape[0], -1, -1, q.shape[-2])


def zeros(q: Tensor) -> Tensor:
    return q.new_zeros(q.shape[-2], q.shape[-2])


def later(q: Tensor) -> Tensor:
    at = torch.arange(q.shape[-2], device=q.device)
    return (at[None, :] <= at[:, None])[None, None].expand(q.shape[0], 1, -1, -1)


def added(q: Tensor) -> Tensor:
    return torch.full((q.shape[-2], q.shape[-2]), -math.inf, device=q.device).triu(1)


def window(q: Tensor) -> Tensor:
    at = torch.arange(q.shape[-2], device=q.device)
    return (at[None, :] <= at[:, None]) & (at[None, :] > at[:, None] - 3)


def bias(q: Tensor) -> Tensor:
    return torch.arange(q.shape[-2], device=q.device, dtype=torch.float32)[None, :] - 2


def everything(q: Tensor) -> Tensor:
    return torch.zeros(q.shape[-2], q.shape[-2], device=q.device, dtype=torch.bool)


def one_batch(q: Tensor) -> Tensor:
    """One of the two batches sees everything."""
    at = torch.arange(q.shape[-2], device=q.device)
    return (at[None, :] <= at[:, None]) | (torch.arange(2, device=q.device)[:, None, None, None] > 0)


MASKS: dict[str, tuple[Callable[[Tensor], Tensor], dict[str, Any]]] = {
    "nothing": (nothing, {}),
    "zeros": (zeros, {}),
    "later": (later, {"is_causal": True}),
    "added": (added, {"is_causal": True}),
    "window": (window, {"attn_mask": ...}),
    "bias": (bias, {"attn_mask": ...}),
    "everything": (everything, {"attn_mask": ...}),
    "one batch": (one_batch, {"attn_mask": ...}),
}


def calls(gm: GraphModule) -> list[dict[str, Any]]:
    """The arguments by name of the library's attention; what is a tensor as an ellipsis."""
    found = gm.graph.find_nodes(op="call_function", target=sdpa)
    return [{k: ... if isinstance(v, Node) else v for k, v in node.kwargs.items()} for node in found]


@pytest.mark.parametrize("name", MASKS)
def test_masks_that_are_known(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "kind_of", kinds_with(FUSED_ATTENTION))
    mask, expected = MASKS[name]
    inputs = [torch.randn(2, 4, 6, 8, generator=torch.Generator().manual_seed(k)).requires_grad_() for k in range(3)]

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(q, k, v, attn_mask=mask(q), scale=0.5)

    found, (gm,) = run_changed(function, inputs, rewritten(Record()))
    assert calls(gm) == [{**expected, "scale": 0.5}]
    exact = function(*inputs)
    torch.testing.assert_close(found, exact)
    for mine, theirs in zip(gradients(found, inputs), gradients(exact, inputs), strict=True):
        torch.testing.assert_close(mine, theirs)


def by_number(q: Tensor) -> Tensor:
    return q.new_zeros(q.shape[-2], q.shape[-2]).masked_fill(torch.ones(q.shape[-2], q.shape[-2]).triu(1).bool(), -1e4)


def _last_is_infinite(q: Tensor, k: Tensor, v: Tensor) -> None:
    del q
    k[..., -1, :] = math.inf
    v[..., -1, :] = math.nan


def _scores_are_large(q: Tensor, k: Tensor, v: Tensor) -> None:
    del v
    for x in (q, k):
        x.mul_(500)


@pytest.mark.parametrize("spoil", [_last_is_infinite, _scores_are_large])
@pytest.mark.parametrize("mask", [later, added, by_number])
def test_a_causal_mask_is_eagers_whatever_it_hides(
    mask: Callable[[Tensor], Tensor], spoil: Callable[..., None]
) -> None:
    q, k, v = (torch.randn(2, 4, 6, 8, generator=torch.Generator().manual_seed(n)) for n in range(3))
    spoil(q, k, v)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(q, k, v, attn_mask=mask(q))

    found, _ = run_changed(function, [q, k, v], rewritten(Record()))
    torch.testing.assert_close(found, function(q, k, v), equal_nan=True)
    torch.compiler.reset()
    torch.testing.assert_close(lamina.compile(function)(q, k, v), function(q, k, v), equal_nan=True)


def test_numbers_that_hide_are_assumed_to_be_far_only_where_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "kind_of", kinds_with(FUSED_ATTENTION))
    q = torch.randn(2, 4, 6, 8)
    for finite, kept in ((False, True), (True, False)):
        compiled = lamina.compile(lambda q: sdpa(q, q, q, by_number(q)), options={"assume_finite": finite})
        compiled(q)
        said = [d for d in compiled.record.decisions("rewrite") if d.subject[0] == "simplify_library_attention"]
        assert (not said) is kept
        torch.compiler.reset()


def test_a_causal_mask_of_other_sizes_stays() -> None:
    """``is_causal`` of fewer queries than keys has no flash attention."""
    q, k = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 6, 8)

    def function(q: Tensor, k: Tensor) -> Tensor:
        return sdpa(q, k, k, torch.ones(4, 6, dtype=torch.bool).tril())

    found, (gm,) = run_changed(function, [q, k], rewritten(Record()))
    (call,) = gm.graph.find_nodes(op="call_function", target=sdpa)
    assert len(call.args) == 4
    torch.testing.assert_close(found, function(q, k))


def by_expanding(x: Tensor, count: int) -> Tensor:
    batch, heads, length, size = x.shape
    return x[:, :, None, :, :].expand(batch, heads, count, length, size).reshape(batch, heads * count, length, size)


def before_turning(x: Tensor, count: int) -> Tensor:
    x = x.transpose(1, 2)
    batch, length, heads, size = x.shape
    wide = x.unsqueeze(3).expand(batch, length, heads, count, size).reshape(batch, length, heads * count, size)
    return wide.transpose(1, 2)


def by_a_view(x: Tensor, count: int) -> Tensor:
    batch, heads, length, size = x.shape
    return x.reshape(batch, heads, 1, length, size).expand(-1, -1, count, -1, -1).clone().flatten(1, 2)


def in_groups(x: Tensor, count: int) -> Tensor:
    """Another order of heads."""
    return x.unsqueeze(1).expand(-1, count, -1, -1, -1).flatten(1, 2)


def one_after_another(x: Tensor, count: int) -> Tensor:
    """Another order of heads."""
    return x.repeat(1, count, 1, 1)


def along_the_keys(x: Tensor, count: int) -> Tensor:
    return x.repeat_interleave(count, 2).repeat(1, count, 1, 1)


REPEATS: dict[str, tuple[Callable[[Tensor, int], Tensor], bool]] = {
    "repeat_interleave": (lambda x, count: x.repeat_interleave(count, 1), True),
    "from the end": (lambda x, count: torch.repeat_interleave(x, count, dim=-3), True),
    "expand": (by_expanding, True),
    "transposed": (before_turning, True),
    "a view": (by_a_view, True),
    "a copy": (lambda x, count: x.repeat_interleave(count, 1).contiguous(), True),
    "groups": (in_groups, False),
    "another order": (one_after_another, False),
    "another dimension": (along_the_keys, False),
}


def root_mean_square(x: Tensor) -> Tensor:
    """What a rule makes one operation of; the whole graph is of ATen's operations from there on."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def shared_heads(gm: GraphModule) -> bool:
    """Whether the graph's attention shares heads of keys."""
    (call,) = [n for n in gm.graph.nodes if n.target in LIBRARY]
    if call.kwargs.get("enable_gqa"):
        assert call.args[1].meta["example_value"].shape == (2, 2, 6, 8)
        return True
    return False


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("name", REPEATS)
def test_heads_that_are_repeated(name: str, normed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "kind_of", kinds_with(FUSED_ATTENTION))
    repeat, shared = REPEATS[name]
    inputs = [
        torch.randn(2, heads, 6, 8, generator=torch.Generator().manual_seed(k)).bfloat16().requires_grad_()
        for k, heads in enumerate((8, 2, 2))
    ]

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k = root_mean_square(k) if normed else k
        return sdpa(q, repeat(k, 4), repeat(v, 4), is_causal=name != "another dimension")

    found, (gm,) = run_changed(function, inputs, rewritten(Record()))
    assert shared_heads(gm) == shared
    exact = function(*inputs)
    torch.testing.assert_close(found, exact, rtol=2e-2, atol=2e-2)
    for mine, theirs in zip(gradients(found, inputs), gradients(exact, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=4e-2)


def test_heads_are_repeated_where_no_fused_kernel_shares_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "kind_of", kinds_with(FUSED_ATTENTION))
    q, k = torch.randn(2, 8, 6, 8).bfloat16(), torch.randn(2, 2, 6, 8).bfloat16()

    def function(q: Tensor, k: Tensor) -> Tensor:
        wide = k.repeat_interleave(4, 1)
        return sdpa(q, wide, wide)

    for kernels in ([SDPBackend.MATH], [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
        with sdpa_kernel(kernels):
            found, (gm,) = run_changed(function, [q, k], rewritten(Record()))
            assert shared_heads(gm) == (len(kernels) == 2)
            torch.testing.assert_close(found, function(q, k), rtol=2e-2, atol=2e-2)


def test_keys_written_to_meanwhile_stay_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "kind_of", kinds_with(FUSED_ATTENTION))
    q, k = torch.randn(1, 4, 6, 8).bfloat16(), torch.randn(1, 2, 6, 8).bfloat16()

    def function(q: Tensor, k: Tensor) -> Tensor:
        k = k + 1
        wide = k.repeat_interleave(2, 1)
        k.zero_()
        return sdpa(q, wide, wide)

    found, (gm,) = run_changed(function, [q, k], rewritten(Record()))
    (call,) = gm.graph.find_nodes(op="call_function", target=sdpa)
    assert not call.kwargs.get("enable_gqa")
    torch.testing.assert_close(found, function(q, k))
