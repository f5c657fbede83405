"""Attention of one query by its parts means what the library's means; other calls stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lamina.base.devices import TRITON
from lamina.record import Record
from lamina.rewrite.rules import attention_one_query as module
from tests.rewrite.rules.capturing import kinds_with, rewritten, run_changed

LIBRARY = (F.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention.default)
KEYS = 256


@pytest.fixture
def _everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "kind_of", kinds_with(language=TRITON))


def tensors(dtype: torch.dtype = torch.float32, heads: int = 4, shared: int = 1, queries: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, heads, queries, 16), (2, heads // shared, KEYS, 16), (2, heads // shared, KEYS, 16)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


KEPT = torch.rand(2, 1, 1, KEYS, generator=torch.Generator().manual_seed(1)) > 0.5
"""Keys that are not masked; of the second row all are."""
KEPT[1] = False
ADDED = torch.randn(1, KEYS, generator=torch.Generator().manual_seed(2))


def library_calls(gm: torch.fx.GraphModule) -> int:
    return sum(node.target in LIBRARY for node in gm.graph.nodes)


CALLS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "plain": lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
    "scaled": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.7),
    "rows masked": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, KEPT),
    "added": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=ADDED.to(q.dtype)),
    "three dimensions": lambda q, k, v: F.scaled_dot_product_attention(q[0], k[0], v[0]),
    "transposed": lambda q, k, v: F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 1, 64),
}


@pytest.mark.usefixtures("_everywhere")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CALLS)
def test_the_parts_give_the_librarys_result(name: str, dtype: torch.dtype) -> None:
    record, inputs = Record(), tensors(dtype)
    found, (gm,) = run_changed(CALLS[name], inputs, rewritten(record))
    assert library_calls(gm) == 0
    expected = CALLS[name](*inputs)
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(found, expected, **close)
    decisions = [d for stage in record.stages if stage.name == "rewrite" for d in stage.decisions]
    assert any(d.taken and d.subject[0] == "open_attention_of_one_query" for d in decisions)


@pytest.mark.usefixtures("_everywhere")
def test_heads_share_keys() -> None:
    inputs = tensors(shared=2)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    found, (gm,) = run_changed(function, inputs, rewritten(Record()))
    assert library_calls(gm) == 0
    torch.testing.assert_close(found, function(*inputs), rtol=1e-4, atol=1e-5)


def _few_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k[:, :, :16], v[:, :, :16])


@pytest.mark.usefixtures("_everywhere")
@pytest.mark.parametrize(
    ("function", "changed"),
    [
        (CALLS["plain"], {"queries": 2}),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), {}),
        (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5), {}),
        (_few_keys, {}),
        (CALLS["plain"], {"dtype": torch.float64}),
        (lambda q, k, v: F.scaled_dot_product_attention(q[:1], k, v), {}),  # the batch grows
    ],
)
def test_other_calls_stay(function: Callable[..., Tensor], changed: dict[str, Any]) -> None:
    _, (gm,) = run_changed(function, tensors(**changed), rewritten(Record()))
    assert library_calls(gm) == 1


@pytest.mark.usefixtures("_everywhere")
def test_what_needs_a_gradient_stays() -> None:
    _, (gm,) = run_changed(CALLS["plain"], [x.requires_grad_() for x in tensors()], rewritten(Record()))
    assert library_calls(gm) == 1


def test_on_a_processor_the_call_stays() -> None:
    _, (gm,) = run_changed(CALLS["plain"], tensors(), rewritten(Record()))
    assert library_calls(gm) == 1
