"""Factors, identities, common values, dead code, idle dropout and transposed operands, each as people write it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lamina
from lamina.record import Record
from lamina.rewrite.passes import remove_dead_code
from tests.rewrite.rules.capturing import applied, calls, rewritten, run_changed
from tests.rewrite.test_passes import graph_of

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
W = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
WHOLE = torch.arange(48).reshape(6, 8)
Function = Callable[..., Any]


def made(function: Function, *args: Tensor) -> Counter[str]:
    """How often each rewrite was made in a compilation; values and gradients are eager's."""
    torch.compiler.reset()
    compiled = lamina.compile(function, backend="aten", fullgraph=True)
    ours = [a.clone().requires_grad_(a.is_floating_point()) for a in args]
    theirs = [a.clone().requires_grad_(a.is_floating_point()) for a in args]
    found, expected = compiled(*ours), function(*theirs)
    torch.testing.assert_close(found, expected)
    if expected.requires_grad:
        found.sum().backward()
        expected.sum().backward()
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.grad, b.grad)
    return Counter(applied(compiled.record))


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize(
    ("rule", "function", "x"),
    [
        *(("fold_factors", f, X) for f in (
            lambda x: x * 2 * 3 + 0,
            lambda x: 2 * (3 * x) + 0,
            lambda x: torch.mul(x.mul(2.0), 3) + 0,
        )),
        *(("remove_no_ops", f, X) for f in (
            lambda x: (x * 1).sin(), lambda x: (1.0 * x).sin(), lambda x: torch.mul(x, 1).sin(),
            lambda x: (x / 1).sin(), lambda x: x.div(1.0).sin(), lambda x: torch.true_divide(x, 1).sin(),
            lambda x: (x - 0).sin(), lambda x: x.sub(0.0).sin(), lambda x: torch.sub(x, 0).sin(),
            lambda x: (x**1).sin(), lambda x: x.pow(1.0).sin(), lambda x: torch.pow(x, 1).sin(),
        )),
        *(("remove_no_ops", f, WHOLE) for f in (
            lambda x: (x + 0) * 2, lambda x: (0 + x) * 2, lambda x: torch.add(x, 0) * 2,
        )),
        *(("merge_common", f, X) for f in (
            lambda x: x.sin().exp() * x.sin().exp(),
            lambda x: torch.softmax(x, -1) + F.softmax(x, dim=-1) * 2,
            lambda x: (x @ x.T).relu() - torch.matmul(x, x.T).sigmoid(),
        )),
    ],
)  # fmt: skip
def test_a_spelling_is_tidied(rule: str, function: Function, x: Tensor) -> None:
    assert made(function, x)[rule] >= 1


def unused_call(x: Tensor) -> Tensor:
    x.exp()
    return x.sin()


def unused_chain(x: Tensor) -> Tensor:
    scores = torch.softmax(x @ x.T, dim=-1)
    weights = scores * 2
    return x.sin() + 0 * len([weights])


def unused_result(x: Tensor) -> Tensor:
    return [x.cos().sum(0), x.sin()][1]


@pytest.mark.parametrize("function", [unused_call, unused_chain, unused_result])
def test_what_nothing_needs_is_not_computed(function: Function) -> None:
    gm, decisions = graph_of(function, X), []
    names = [n.name for n in gm.graph.nodes if n.op == "call_function"]
    after = remove_dead_code(gm, decisions)
    left = [n.name for n in after.graph.nodes if n.op == "call_function"]
    assert len(left) < len(names)
    assert not {"exp", "_softmax", "cos", "sum_1"} & set(left)
    assert decisions
    assert {d.subject[0] for d in decisions} == {"remove_dead_code"}
    torch.testing.assert_close(after(X)[0], function(X))


@pytest.mark.parametrize(
    ("rule", "function", "x"),
    [
        ("fold_factors", lambda x: x * 1e30 * 1e-30, X),
        ("fold_factors", lambda x: (x + 2) + 3, X),
        ("remove_no_ops", lambda x: (x + 0).sign(), X),
        ("remove_no_ops", lambda x: (x - (-0.0)).sign(), X),
        ("remove_no_ops", lambda x: x * 1, X),
        ("merge_common", lambda x: F.dropout(x, 0.5, True).sign() - F.dropout(x, 0.5, True).sign(), X),
    ],
)
def test_what_could_be_told_apart_stays(rule: str, function: Function, x: Tensor) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(function, backend="aten")
    compiled(x)
    assert rule not in applied(compiled.record)


def test_a_negative_zero_keeps_its_sign() -> None:
    torch.compiler.reset()
    zero = torch.tensor([-0.0, 0.0])
    for function in (lambda x: (x - (-0.0)) * 2, lambda x: (x + 0) * 2, lambda x: (x - 0.0) * 2):
        found = lamina.compile(function, backend="aten")(zero)
        assert torch.equal(torch.signbit(found), torch.signbit(function(zero)))


class Dropping(nn.Module):
    """A dropout between two operations."""

    def __init__(self, drop: nn.Module) -> None:
        super().__init__()
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(x.sin()) * 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.dropout(x.sin(), p=0.0) * 2,
        lambda x: F.dropout(x.sin(), 0, training=True) * 2,
        lambda x: torch.dropout(x.sin(), 0.0, True) * 2,
        lambda x: F.dropout(x.sin(), 0.3, False) * 2,
        lambda x: F.dropout(x.sin(), 0.0, True, True) * 2,
        lambda x: F.alpha_dropout(x.sin(), 0.5) * 2,
        Dropping(nn.Dropout(0)),
        Dropping(nn.Dropout(0.0, inplace=True)),
        Dropping(nn.Dropout(0.5)).eval(),
    ],
)
def test_dropout_that_drops_nothing_goes(function: Function) -> None:
    record = Record()
    found, (gm,) = run_changed(function, (X,), rewritten(record))
    assert applied(record) == ["without_dropout"]
    assert not [name for name in calls(gm) if "dropout" in name]
    assert torch.equal(found, X.sin() * 2)


def test_dropout_that_drops_stays_and_eager_returns_what_it_is_given() -> None:
    for function in (lambda x: F.dropout(x, 0.5), lambda x: F.dropout(x, 1e-9), Dropping(nn.Dropout(0.1))):
        record = Record()
        run_changed(function, (X,), rewritten(record))
        assert not applied(record)
    assert F.dropout(X, 0.0) is X
    assert F.dropout(X, 0.5, False) is X


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x @ w.t(),
        lambda x, w: torch.matmul(x, w.transpose(-2, -1)),
        lambda x, w: torch.einsum("ik,jk->ij", x, w),
        lambda x, w: torch.mm(x, w.mT),
        lambda x, w: (w @ x.t()).t(),
    ],
)
def test_a_transposed_operand_is_read_where_it_is(function: Function) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(function)
    torch.testing.assert_close(compiled(X, W), function(X, W))
    (plan,) = [s.value for s in compiled.record.stages if s.name == "plan"]
    assert (plan.kernel_count, plan.library_count) == (0, 1)


def test_a_copy_that_is_asked_for_is_made() -> None:
    torch.compiler.reset()
    compiled = lamina.compile(lambda x, w: ((c := w.t().contiguous()), x @ c))
    copied, product = compiled(X, W)
    assert copied.is_contiguous()
    torch.testing.assert_close(product, X @ W.t())
