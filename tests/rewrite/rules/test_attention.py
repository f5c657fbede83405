"""Attention by hand becomes the library's, means the same, and nothing else becomes it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

from lamina.record import Record
from lamina.rewrite.rules import attention as module
from tests.rewrite.rules.attention_spellings import NOT_ATTENTION, SPELLINGS
from tests.rewrite.rules.capturing import gradients, rewritten, run_changed

LIBRARY = F.scaled_dot_product_attention


@pytest.fixture
def _always_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "reason_against", lambda *args, **kwargs: "")


def _inputs() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 4, 24, 16, generator=generator).requires_grad_() for _ in range(3)]


def _library_calls(gm: GraphModule) -> list[Any]:
    return gm.graph.find_nodes(op="call_function", target=LIBRARY)


@pytest.mark.usefixtures("_always_pays")
@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelling_becomes_the_librarys_attention(name: str) -> None:
    spelling, inputs = SPELLINGS[name], _inputs()
    expected = spelling.function(*inputs)
    found, (gm,) = run_changed(spelling.function, inputs, rewritten(Record()))
    (call,) = _library_calls(gm)
    assert call.kwargs["is_causal"] == spelling.causal
    assert (call.kwargs["attn_mask"] is not None) == spelling.masked
    close = {"rtol": 2e-2, "atol": 2e-2} if "float32" in name else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(found, expected, **close)
    assert found.stride() == expected.stride()
    for mine, theirs in zip(gradients(found, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, **close)


@pytest.mark.usefixtures("_always_pays")
@pytest.mark.parametrize("name", NOT_ATTENTION)
def test_what_is_not_attention_stays(name: str) -> None:
    inputs = _inputs()
    function = NOT_ATTENTION[name]
    found, (gm,) = run_changed(function, inputs, rewritten(Record()))
    assert not _library_calls(gm)
    torch.testing.assert_close(found, function(*inputs), equal_nan=True)
