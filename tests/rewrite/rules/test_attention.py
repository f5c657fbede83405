"""Attention by hand becomes the library's, means the same, and nothing else becomes it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

from lamina.record import Record
from lamina.rewrite.rules import attention as module
from tests.rewrite.rules.attention_spellings import NOT_ATTENTION, SPELLINGS
from tests.rewrite.rules.capturing import applied, gradients, rewritten, run_changed

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
    found, (gm,) = run_changed(spelling.function, inputs, rewritten(Record(), finite=True))
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
    found, (gm,) = run_changed(function, inputs, rewritten(Record(), finite=True))
    assert not _library_calls(gm)
    torch.testing.assert_close(found, function(*inputs), equal_nan=True)


@pytest.mark.usefixtures("_always_pays")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fill", [float("-inf"), -1e9, -1e30])
@pytest.mark.parametrize("added", [False, True])
def test_rows_whose_keys_are_all_masked_are_as_in_eager(fill: float, added: bool, dtype: torch.dtype) -> None:
    mask = torch.zeros(2, 1, 24, 24, dtype=torch.bool)
    mask[0, 0, 3], mask[1, :, :, 5:9] = True, True

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) / 4
        if added:
            return (scores + torch.where(mask, fill, 0.0).to(scores.dtype)).softmax(-1) @ v
        return scores.masked_fill(mask, fill).softmax(-1) @ v

    inputs = [x.detach().to(dtype).requires_grad_() for x in _inputs()]
    found, (gm,) = run_changed(function, inputs, rewritten(Record(), finite=True))
    (call,) = _library_calls(gm)
    assert (call.args[0].op == "placeholder") == (fill == float("-inf"))
    expected = function(*inputs)
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 3e-2, "atol": 3e-2}
    torch.testing.assert_close(found, expected, equal_nan=True, **close)
    assert bool(found[0, :, 3].isnan().all()) == (fill == float("-inf"))
    (q, k, v), (eager_q, eager_k, eager_v) = gradients(found, inputs), gradients(expected, inputs)
    torch.testing.assert_close(v, eager_v, equal_nan=True, **close)
    for one, other in ((q, eager_q), (k, eager_k)):  # of queries and keys, where no row is masked
        torch.testing.assert_close(one[1], other[1], **close)


ADDED: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "filled zeros": (lambda hide: torch.zeros(hide.shape).masked_fill(hide, float("-inf")), False),
    "chosen": (lambda hide: torch.where(hide, float("-inf"), 0.5).expand(2, 1, 24, 24), False),
    "filled twice": (lambda hide: torch.where(hide, float("-inf"), 0.0).masked_fill(hide.flip(-1), -1e9), True),
    "times minus one": (lambda hide: -torch.where(hide, float("inf"), 0.0), True),
    "anything": (lambda hide: hide * -1e9, True),
}


@pytest.mark.usefixtures("_always_pays")
@pytest.mark.parametrize("name", ADDED)
def test_queries_are_copied_where_rows_may_be_masked_by_finite_numbers(name: str) -> None:
    mask, copied = ADDED[name]
    hide = torch.zeros(1, 1, 24, 24, dtype=torch.bool)
    hide[..., 20:] = True

    def function(q: Tensor, k: Tensor, v: Tensor, hide: Tensor) -> Tensor:
        return (q @ k.transpose(-2, -1) / 4 + mask(hide)).softmax(-1) @ v

    inputs = _inputs()
    found, (gm,) = run_changed(function, [*inputs, hide], rewritten(Record(), finite=True))
    (call,) = _library_calls(gm)
    assert (call.args[0].op != "placeholder") == copied
    expected = function(*inputs, hide)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(gradients(found, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("_always_pays")
@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        *((torch.float32, n) for n in (float("-inf"), -1e9, torch.finfo(torch.float32).min)),
        *((torch.bfloat16, n) for n in (float("-inf"), -1e9, torch.finfo(torch.bfloat16).min)),
        *((torch.float16, n) for n in (float("-inf"), torch.finfo(torch.float16).min)),
    ],
)
def test_without_gradients_no_queries_are_copied_for_rows_whose_keys_are_all_masked(
    dtype: torch.dtype, number: float
) -> None:
    mask = torch.zeros(2, 1, 24, 24, dtype=torch.bool)
    mask[0, 0, 3], mask[1, :, :, 5:9] = True, True

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-2, -1) / 4).masked_fill(mask, number).softmax(-1) @ v

    inputs = [x.detach().to(dtype) for x in _inputs()]
    found, (gm,) = run_changed(function, inputs, rewritten(Record(), finite=True))
    (call,) = _library_calls(gm)
    assert (call.args[0].op == "placeholder") == (dtype != torch.float16 or number == float("-inf"))
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 3e-2, "atol": 3e-2}
    torch.testing.assert_close(found, function(*inputs), equal_nan=True, **close)
    assert bool(found[0, :, 3].isnan().all()) == (number == float("-inf"))


def test_where_the_library_is_not_faster_attention_stays() -> None:
    record = Record()
    _, (gm,) = run_changed(SPELLINGS["divided"].function, _inputs(), rewritten(record, finite=True))
    assert not _library_calls(gm)
    (decision,) = [d for stage in record.stages if stage.name == "rewrite" for d in stage.decisions]
    assert not decision.taken
    assert decision.reason == "on a CPU training is as fast by hand, unless the mask is causal alone"


@pytest.mark.usefixtures("_always_pays")
def test_sizes_may_be_symbols() -> None:
    record = Record()

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        later = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        return scores.masked_fill(later, float("-inf")).softmax(-1) @ v

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=lambda gm, _: rewritten(record, finite=True)(gm).forward, dynamic=True)
    for length in (24, 40):
        inputs = [torch.randn(2, 4, length, 16) for _ in range(3)]
        torch.testing.assert_close(compiled(*inputs), function(*inputs), rtol=1e-4, atol=1e-5)
    assert applied(record) == ["use_library_attention"]
