"""Attention by hand is eager's for any values: infinities and NaN behind masks, scores as low as a mask's numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina
from lamina.record import Record
from lamina.rewrite.rules import attention as module
from lamina.rewrite.rules import checked_attention as operation
from tests.rewrite.rules.capturing import rewritten, run_changed

N = 24
INF, NAN = math.inf, math.nan
PADDED = torch.zeros(2, 1, 1, N, dtype=torch.bool)
PADDED[0, ..., 20:] = True
SOME = torch.zeros(N, N, dtype=torch.bool)
SOME[3], SOME[:, 5:7] = True, True


def _later() -> Tensor:
    """Made where it is used, as models do: what is known while compiling."""
    return torch.ones(N, N, dtype=torch.bool).triu(1)


def _padded() -> Tensor:
    return PADDED


def _some() -> Tensor:
    return SOME


Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def _filled(mask: Callable[[], Tensor], fill: float, before: float = 0.25, after: float = 1.0) -> Attention:
    return lambda q, k, v: (((q @ k.mT) * before).masked_fill(mask(), fill) * after).softmax(-1) @ v


def _added(mask: Callable[[], Tensor], fill: float, before: float = 0.25) -> Attention:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        total = torch.zeros(mask().shape).masked_fill(mask(), fill).to(q.dtype)
        return ((q @ k.mT) * before + total).softmax(-1) @ v

    return function


CAUSAL: dict[str, Attention] = {
    "filled with -inf": _filled(_later, -INF),
    "filled with -1e4": _filled(_later, -1e4),
    "filled with -1e9": _filled(_later, -1e9),
    "filled, then scaled a little": _filled(_later, -1e9, 1.0, 0.25),
    "filled, then scaled away": _filled(_later, -1e4, 1.0, 1e-4),
    "filled after a division": lambda q, k, v: (q @ k.mT / 4).masked_fill(_later(), -1e4).div(1e4).softmax(-1) @ v,
    "added -inf": _added(_later, -INF),
    "added -1e4": _added(_later, -1e4, 1.0),
    "chosen": lambda q, k, v: torch.where(_later(), -2e4, q @ k.mT).softmax(-1) @ v,
}
MASKED: dict[str, Attention] = {
    "none": lambda q, k, v: (q @ k.mT * 0.25).softmax(-1) @ v,
    "padding filled with -inf": _filled(_padded, -INF),
    "padding filled with -1e4": _filled(_padded, -1e4),
    "padding added, -1e9": _added(_padded, -1e9),
    "padding and causal": lambda q, k, v: (
        ((q @ k.mT).masked_fill(PADDED, -1e5) * 0.5).masked_fill(_later(), -1e9).softmax(-1) @ v
    ),
    "rows masked by -inf": _filled(_some, -INF),
    "rows masked by -1e9": _filled(_some, -1e9),
    "rows masked by an added -1e9": _added(_some, -1e9),
    "rows masked by two numbers": lambda q, k, v: (
        (q @ k.mT).masked_fill(SOME, -1e9).masked_fill(_later(), -1e4).softmax(-1) @ v
    ),
    "scaled by a tensor": lambda q, k, v: (
        (q @ k.mT * torch.tensor([0.5, 2.0])[:, None, None]).masked_fill(SOME, -1e9).softmax(-1) @ v
    ),
}
VALUES: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
    "ordinary": lambda q, k, v: None,
    "large scores": lambda q, k, v: (q.mul_(60), k.mul_(60)),
    "larger scores": lambda q, k, v: (q.mul_(300), k.mul_(300)),
    "scores that overflow": lambda q, k, v: (q.mul_(1e30), k.mul_(1e30)),
    "infinite values": lambda q, k, v: v[:, :, 21].fill_(INF),
    "values not a number": lambda q, k, v: v[0, 1, 22].fill_(NAN),
    "keys not a number": lambda q, k, v: k[0, :, 22].fill_(NAN),
    "infinite keys": lambda q, k, v: k[:, :, 23].fill_(-INF),
    "a query not a number": lambda q, k, v: q[0, 0, 4].fill_(NAN),
    "values of the largest size": lambda q, k, v: v.fill_(3e38),
}


@pytest.fixture(autouse=True)
def _always_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(*args: Any, causal: bool, training: bool, **kwargs: Any) -> str:
        return "" if causal or not training else "a mask in training"

    monkeypatch.setattr(module, "reason_against", reason)


def _inputs(values: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(2, 2, N, 8, generator=generator).to(dtype) for _ in range(3)]
    VALUES[values](*made)
    return made


def _compare(function: Attention, values: str, training: bool) -> None:
    results = []
    for run in (function, lamina.compile(function, options={"strict": True}, dynamic=False)):
        leaves = [x.requires_grad_(training) for x in _inputs(values)]
        found = run(*leaves)
        results.append([found.detach()])
        if training:
            found.backward(torch.linspace(-1, 1, found.numel()).reshape(found.shape))
            results[-1] += [x.grad for x in leaves if x.grad is not None]
    torch._dynamo.reset()
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4, equal_nan=True)


SAMPLE = [(form, values) for i, form in enumerate((*CAUSAL, *MASKED)) for values in list(VALUES)[i % 3 :: 3]]
REST = [(form, values) for form in (*CAUSAL, *MASKED) for values in VALUES if (form, values) not in SAMPLE]


@pytest.mark.sampled(one_in=9)
@pytest.mark.parametrize(("form", "values"), SAMPLE[::2])
def test_values_are_eagers(form: str, values: str) -> None:
    _compare({**CAUSAL, **MASKED}[form], values, False)


ROUNDED = ("values of the largest size", "larger scores")
"""Eager's gradients of these are those of scores and sums that round to anything."""


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize(("form", "values"), [(f, v) for f, v in SAMPLE if f in CAUSAL and v not in ROUNDED][::3])
def test_gradients_are_eagers(form: str, values: str) -> None:
    _compare(CAUSAL[form], values, True)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "values"), [*SAMPLE[1::2], *REST])
def test_all_values_are_eagers(form: str, values: str) -> None:
    _compare({**CAUSAL, **MASKED}[form], values, False)
    if form in CAUSAL and values not in ROUNDED:
        _compare(CAUSAL[form], values, True)


@pytest.mark.parametrize("form", [name for name in (*CAUSAL, *MASKED) if "away" not in name and "division" not in name])
def test_the_library_is_called_for_ordinary_values(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    exact = operation._exact
    monkeypatch.setattr(operation, "_exact", lambda *args: asked.append(exact(*args)) or asked[-1])
    _, (gm,) = run_changed({**CAUSAL, **MASKED}[form], _inputs("ordinary"), rewritten(Record()))
    assert gm.graph.find_nodes(op="call_function", target=operation.checked_attention)
    assert asked == [form not in ("rows masked by two numbers", "rows masked by an added -1e9")] or form.startswith(
        "rows"
    )


def test_a_mask_scaled_to_the_size_of_scores_is_no_mask() -> None:
    _, (gm,) = run_changed(CAUSAL["filled, then scaled away"], _inputs("ordinary"), rewritten(Record()))
    assert not gm.graph.find_nodes(op="call_function", target=operation.checked_attention)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_overflows_where_eager_does(dtype: torch.dtype) -> None:
    function = CAUSAL["filled with -inf"]
    q, k, v = _inputs("ordinary", dtype)
    torch._dynamo.reset()
    found = lamina.compile(function, dynamic=False)(q * 200, k * 200, v)
    expected = function(q * 200, k * 200, v)
    assert torch.equal(found.isnan(), expected.isnan())
    assert bool(expected.isnan().any()) == (dtype == torch.float16)


def test_the_operations_are_what_their_fakes_say() -> None:
    q, k, v = (x.requires_grad_() for x in _inputs("ordinary"))
    names = [("product", -1, 0.5, False), ("fill", 0, -INF, False), ("softmax", -1, 1.0, False)]
    steps = operation.steps_text([(*name, torch.float32) for name in (*names, ("weights", -1, 1.0, False))])
    assert json.loads(steps)[1] == ["fill", 0, -INF, False, "float32"]
    given = (q, k, v, [_later()], steps, 0.5, -INF)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(operation.checked_attention_forward, given, test_utils=tests)
    with torch.no_grad():
        out, logarithm = operation.checked_attention_forward(*given)
    back = (torch.ones_like(out), q, k, v, out, logarithm, [_later()], steps, 0.5, -INF)
    torch.library.opcheck(operation.checked_attention_backward, back, test_utils=tests)
    whole = (q, k, v, q, None, None, [_later()], steps, True, 0.5, -INF)
    torch.library.opcheck(operation.checked_attention, whole, test_utils=tests)
