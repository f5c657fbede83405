"""On which devices, and for which dtypes, the library's attention takes the place of attention by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lamina.rewrite.rules.attention_pays import reason_against


class Like:
    """What is asked of a tensor, without a device to hold it."""

    def __init__(self, dtype: torch.dtype, device: str, features: int = 64) -> None:
        self.dtype, self.device, self.shape = dtype, torch.device(device), torch.Size((2, 4, 1024, features))


def reason(dtype: torch.dtype, device: str = "cuda", training: bool = False, causal: bool = False) -> str:
    query = Like(dtype, device)
    return reason_against(query, query, 1024, causal=causal, dropout=0.0, mask_requires_grad=False, training=training)


@pytest.mark.parametrize("training", [False, True])
def test_half_precision_on_a_gpu(training: bool) -> None:
    assert not reason(torch.bfloat16, training=training)


@pytest.mark.parametrize(("masked", "training"), [(True, False), (False, True), (True, True)])
def test_float16_keys_that_are_masked_get_their_gradient_by_hand(masked: bool, training: bool) -> None:
    query = Like(torch.float16, "cuda")
    found = reason_against(
        query, query, 1024, causal=False, dropout=0.0, mask_requires_grad=False, training=training, masked=masked
    )
    assert bool(found) == (masked and training)


@pytest.mark.parametrize(
    ("queries", "keys", "by_hand"), [(9, 9, True), (32, 32, True), (1, 1024, False), (49, 49, False)]
)
def test_heads_of_few_queries_and_keys_stay_by_hand_on_a_gpu(queries: int, keys: int, by_hand: bool) -> None:
    query = Like(torch.bfloat16, "cuda")
    query.shape = torch.Size((1000, 8, queries, 16))
    told: Any = {"causal": False, "dropout": 0.0, "mask_requires_grad": False, "training": True}
    assert bool(reason_against(query, query, keys, **told)) is by_hand


def test_exact_float32_gradients_stay_by_hand() -> None:
    assert not reason(torch.float32)
    assert "gradients" in reason(torch.float32, training=True)


def test_where_products_are_tf32_the_librarys_gradients_are_as_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert not reason(torch.float32, training=True)


def test_on_a_cpu_it_pays_for_causal_masks() -> None:
    assert not reason(torch.float32, "cpu", training=True, causal=True)
    assert "by hand" in reason(torch.float32, "cpu", training=True)


@pytest.mark.parametrize(("dtype", "device"), [(torch.float64, "cuda"), (torch.float32, "mps")])
def test_what_was_not_measured_stays(dtype: torch.dtype, device: str) -> None:
    assert reason(dtype, device)


@pytest.mark.parametrize("masked", [False, True])
def test_a_mask_of_a_size_known_at_run_time_only_stays_by_hand_on_a_gpu(masked: bool) -> None:
    query, keys = Like(torch.bfloat16, "cuda"), object()
    told: Any = {"causal": False, "dropout": 0.0, "mask_requires_grad": False, "training": False, "masked": masked}
    assert bool(reason_against(query, query, keys, **told)) is masked
    assert not reason_against(query, query, 1024, **told)


@pytest.mark.parametrize(
    ("dtype", "features", "masked", "by_hand"),
    [
        (torch.float32, 129, False, True),
        (torch.float32, 132, False, False),
        (torch.bfloat16, 129, False, False),  # the library fills features up for its flash attention
        (torch.bfloat16, 132, True, True),
        (torch.bfloat16, 136, True, False),
    ],
)
def test_heads_for_which_the_library_has_no_fast_kernel_stay_by_hand(
    dtype: torch.dtype, features: int, masked: bool, by_hand: bool
) -> None:
    query = Like(dtype, "cuda", features)
    told: Any = {"causal": False, "dropout": 0.0, "mask_requires_grad": False, "training": False, "masked": masked}
    assert bool(reason_against(query, query, 1024, **told)) is by_hand
