"""Rows of casts, views and permutations become one, where no rounding, no stride and no alias changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

import lamina
from lamina.base.decision import Decision
from lamina.rewrite.rules.chains import join_casts, join_permutations, join_views
from lamina.rewrite.verify import verify_fx
from tests.rewrite.test_passes import graph_of

Function = Callable[..., Any]
F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64
X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))


def joined(function: Function, x: Tensor, change: Any) -> tuple[list[str], list[str], bool]:
    """The operations before and after, by name, and whether anything was done; values, strides and dtypes stay."""
    before = graph_of(lambda x: (function(x).sign(),), x)
    decisions: list[Decision] = []
    after = change(before, decisions)
    verify_fx(after, "test")
    (a,), (b,) = after(x), before(x)
    assert a.dtype == b.dtype
    assert a.stride() == b.stride()
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    assert all(d.taken and d.subject[0] == change.__name__ for d in decisions)
    assert bool(decisions) == (after is not before)
    return names(before), names(after), bool(decisions)


def names(gm: GraphModule) -> list[str]:
    called = [n for n in gm.graph.nodes if n.op == "call_function"]
    return [str(n.target).removeprefix("aten.").partition(".")[0] for n in called][:-1]


@pytest.mark.parametrize(
    ("function", "dtype", "left"),
    [
        (lambda x: x.float().double(), BF16, 1),
        (lambda x: x.to(F32).to(F64), F16, 1),
        (lambda x: x.type(torch.int16).type(torch.int32).to(torch.int64), torch.int8, 1),
        (lambda x: x.double().to(BF16), F32, 1),
        (lambda x: x.to(torch.int32).float(), torch.uint8, 1),
        (lambda x: x.float().bfloat16(), BF16, 0),
        (lambda x: x.to(F64).to(F32), F32, 0),
        (lambda x: x.to(torch.float).to(BF16).to(torch.float), BF16, 1),
        (lambda x: x.double().float().double().float(), F32, 0),
    ],
)
def test_casts_that_lose_nothing_in_between_are_one(function: Function, dtype: torch.dtype, left: int) -> None:
    _, after, done = joined(function, (50 * X).to(dtype), join_casts)
    assert done
    assert after == ["_to_copy"] * left


def test_a_number_that_a_function_transform_casts_is_left_alone() -> None:
    def function(x):
        return torch.func.vmap(torch.func.vmap(lambda a: a * 2 + 1))(x)

    gm = graph_of(lambda x: (function(x),), torch.ones(2, 4))
    assert any(not isinstance(n.args[0], torch.fx.Node) for n in gm.graph.nodes if "_to_copy" in str(n.target))
    for change in (join_casts, join_views, join_permutations):
        assert change(gm, []) is gm


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda x: x.to(torch.float).to(BF16).to(torch.float), F32),
        (lambda x: x.bfloat16().float(), F32),
        (lambda x: x.half().bfloat16(), F32),
        (lambda x: x.to(F16).to(F32), BF16),
        (lambda x: x.int().float(), F32),
        (lambda x: x.float().to(torch.int8), BF16),
        (lambda x: x.double().long(), torch.int64),
        (lambda x: x.to(torch.int8).to(torch.int32), torch.uint8),
        (lambda x: x.bool().float(), F32),
    ],
)
def test_casts_that_round_or_wrap_stay(function: Function, dtype: torch.dtype) -> None:
    before, after, done = joined(function, (50 * X).to(dtype), join_casts)
    assert not done
    assert after == before


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda x: x.permute(2, 0, 1).permute(1, 0, 2), 1),
        (lambda x: x.transpose(0, 1).transpose(1, 2), 1),
        (lambda x: x.mT.permute(1, 0, 2).transpose(-1, 0), 1),
        (lambda x: torch.swapaxes(x, 0, 2).movedim(0, -1), 1),
        (lambda x: x[0].t().transpose(0, 1).t(), 1),
    ],
)
def test_permutations_in_a_row_are_one(function: Function, left: int) -> None:
    _, after, done = joined(function, X, join_permutations)
    assert done
    assert sum(n in ("permute", "transpose", "t") for n in after) == left


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.transpose(0, 1).transpose(0, 1),
        lambda x: x.mT.mT,
        lambda x: x.permute(1, 2, 0).permute(2, 0, 1),
        lambda x: x.view(6, 4).view(2, 3, 4),
        lambda x: x.unsqueeze(1).squeeze(1),
        lambda x: x.unsqueeze(1).transpose(0, 1).transpose(0, 1).squeeze(1),
        lambda x: x.expand(2, 3, 4).unsqueeze(0).squeeze(0),
    ],
)
def test_views_that_lead_back_are_none(function: Function) -> None:
    _, after, done = joined(function, X, join_views)
    assert done
    assert not [n for n in after if n != "expand"]


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda x: x.view(6, 4).view(24), ["view"]),
        (lambda x: x.reshape(3, 8).flatten(), ["view"]),
        (lambda x: x.unsqueeze(0).view(4, 6).unsqueeze(-1), ["view"]),
        (lambda x: x.flatten(1).unflatten(1, (4, 3)), ["view"]),
        (lambda x: x[:, :1].expand(2, 3, 4).expand(5, -1, 3, 4), ["slice", "expand"]),
        (lambda x: x.expand(2, 2, 3, 4).expand(5, 2, 2, 3, 4), ["expand"]),
        (lambda x: x.unsqueeze(1).expand(-1, 2, -1, -1).expand(2, 2, 3, 4), ["unsqueeze", "expand"]),
    ],
)
def test_views_in_a_row_are_one(function: Function, left: list[str]) -> None:
    before, after, done = joined(function, X, join_views)
    assert done
    assert [n for n in after if n in before or n == "view"] == left


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.transpose(1, 2).unsqueeze(1).squeeze(0),  # neither is a view of memory in order
        lambda x: x.transpose(1, 2).unsqueeze(-1).transpose(0, 1),
        lambda x: x.view(6, 4).sin().view(24),
    ],
)
def test_other_rows_keep_their_views(function: Function) -> None:
    before, after, done = joined(function, X, join_views)
    assert not done
    assert after == before


@pytest.mark.parametrize("change", [join_views, join_permutations, join_casts])
def test_what_the_caller_can_tell_from_its_operand_stays(change: Any) -> None:
    gm = graph_of(lambda x: (x.unsqueeze(0).squeeze(0), x.mT.mT, x.double().float()), X)
    after = change(gm, [])
    results = after(X)
    assert [r.data_ptr() == X.data_ptr() for r in results] == [True, True, False]
    assert not any(r is X for r in results)


def test_sizes_known_only_at_run_time() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.transpose(0, 1).transpose(1, 2).double().float()
        return (y.unsqueeze(0).squeeze(0).flatten().view(-1, 2).expand(3, -1, -1) * 2).sum()

    torch.compiler.reset()
    compiled = lamina.compile(function, dynamic=True, backend="aten")
    for n in (4, 6, 10):
        x = torch.randn(n, 3, 2)
        torch.testing.assert_close(compiled(x), function(x))


def test_they_are_named_counted_and_left_out() -> None:
    def function(x: Tensor) -> Tensor:
        y = F.relu(x.transpose(0, 1).transpose(1, 2) * 2 * 3)
        return y.reshape(4, 6).unsqueeze(0).double().float().view(24).sin()

    x = torch.randn(4, 2, 3)
    expected = {"join_permutations": 1, "join_views": 2, "join_casts": 1, "fold_factors": 1}
    for left_out, wanted in (((), expected), (tuple(expected), dict.fromkeys(expected, 0))):
        torch.compiler.reset()
        options = {"without_rules": left_out, "expect_matches": wanted}
        compiled = lamina.compile(function, backend="aten", options=options)
        torch.testing.assert_close(compiled(x), function(x))
        found = [d for d in compiled.record.decisions("rewrite") if d.subject[0] in expected]
        assert len(found) == sum(wanted.values())
        assert all(d.taken and "test_chains.py" in str(d.subject[1]) for d in found)


def test_the_rounding_of_a_cast_is_kept_in_kernels() -> None:
    torch.compiler.reset()
    x = torch.randn(1000)
    compiled = lamina.compile(lambda x: x.to(torch.float).to(torch.bfloat16).to(torch.float) - x)
    assert torch.equal(compiled(x), x.bfloat16().float() - x)
