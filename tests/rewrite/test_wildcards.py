"""Wildcards for dimensions, and for the leading dimensions that several tensors share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import lamina
from lamina.base.rule import Match, Rule
from lamina.errors import BadArgument
from lamina.extend import dimension, rule, scalar, tensor
from lamina.testing import check_rule
from tests.rewrite.engine import applied, compiled

X = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))

_ANY: int = dimension()


def _cosine_of_sum(x: Tensor, d: int = _ANY) -> Tensor:
    return torch.sin(x).sum(d).cos()


def _count(function: Callable[..., Any], inputs: tuple[Tensor, ...], one: Rule, **options: Any) -> int:
    return applied(compiled(function, inputs, [one], **options), one.name)


@pytest.mark.parametrize("dim", [-1, -2, -3, -4, 0, 1, 3])
def test_a_dimension_is_any_one(dim: int) -> None:
    seen: list[int] = []

    def where(match: Match) -> bool:
        seen.append(match["d"])
        return True

    one = rule(_cosine_of_sum, lambda x, d: x.sin().sum(d).neg().cos(), name="any sum", where=where, at=("captured",))
    assert _count(lambda x: x.sin().sum(dim).cos(), (X,), one) == 1
    assert set(seen) == {dim if dim < 0 else dim - 4}


def test_one_wildcard_is_one_dimension() -> None:
    def twice(x: Tensor, d: int = _ANY) -> Tensor:
        return x.sin().sum(d, keepdim=True) + x.cos().sum(d, keepdim=True)

    one = rule(twice, lambda x, d: (x.sin() + x.cos()).sum(d, keepdim=True), name="both", at=("captured",))
    assert _count(lambda x: x.sin().sum(1, True) + x.cos().sum(-3, True), (X,), one) == 1
    assert _count(lambda x: x.sin().sum(1, True) + x.cos().sum(2, True), (X,), one) == 0
    assert check_rule(one).ok


@pytest.mark.parametrize("fixed", [-1, -2, -3])
def test_a_dimension_that_is_written_out_stays_what_it_is(fixed: int) -> None:
    """Also where it is one that the pattern is traced with."""

    def mixed(x: Tensor, d: int = _ANY) -> Tensor:
        return x.sin().sum(d, keepdim=True).amax(fixed)

    def after(x: Tensor, d: int) -> Tensor:
        return -(-x.sin().sum(d, keepdim=True)).amin(fixed)

    one = rule(mixed, after, name="mixed", at=("captured",))
    for dim in (-1, -2, -3, -4):
        assert _count(lambda x, dim=dim: x.sin().sum(dim, True).amax(fixed), (X,), one) == 1
        assert _count(lambda x, dim=dim: x.sin().sum(dim, True).amax(fixed - 1), (X,), one) == 0


def test_two_dimensions_and_a_number_are_told_apart() -> None:
    def moved(x: Tensor, d: int = _ANY, e: int = _ANY, n: int = scalar(-3)) -> Tensor:
        return x.sum(d, keepdim=True).amax(e) * n

    def after(x: Tensor, d: int, e: int, n: int) -> Tensor:
        return x.sum(d, keepdim=True).mul(n).amax(e) if n > 0 else x.sum(d, keepdim=True).mul(n).amin(e)

    one = rule(moved, after, name="moved", at=("captured",))
    assert _count(lambda x: x.sum(0, True).amax(2) * 7, (X,), one) == 1
    assert _count(lambda x: x.sum(-1, True).amax(-3) * -2, (X,), one) == 1


def test_calls_that_depend_on_the_dimension_are_refused() -> None:
    def before(x: Tensor, d: int = _ANY) -> Tensor:
        return x.sin().sum(d) if d < -2 else x.sin().cos().sum(d).sum(d)

    with pytest.raises(BadArgument, match="other operations for another dimension"):
        compiled(lambda x: x.sin().sum(1), (X,), [rule(before, lambda x, d: x.sin().sum(d), name="branches")])


def test_a_tensor_has_to_have_the_dimensions() -> None:
    one = rule(lambda x=tensor("n"), d=_ANY: x.sin().sum(d), lambda x, d: x.sin().sum(d), name="flat")
    with pytest.raises(BadArgument, match="more wildcards for dimensions than dimensions"):
        compiled(lambda x: x.sin().sum(1), (X,), [one])


def _picked(x: Any = tensor("*rows", "c"), t: Any = tensor("*rows", dtype=torch.int64)) -> Tensor:
    return x.sin().gather(-1, t.unsqueeze(-1)).squeeze(-1)


picked = rule(_picked, lambda x, t: x.gather(-1, t.unsqueeze(-1)).squeeze(-1).sin(), name="picked", at=("captured",))


@pytest.mark.parametrize("rows", [(), (3,), (2, 3), (2, 3, 4)])
def test_leading_dimensions_of_one_name_are_the_same(rows: tuple[int, ...]) -> None:
    places = torch.zeros(rows, dtype=torch.int64)
    assert _count(_picked, (torch.randn(*rows, 5), places), picked) == 1


def test_leading_dimensions_that_differ_are_none_of_one_name() -> None:
    """``gather`` takes places of fewer rows."""
    assert _count(_picked, (torch.randn(4, 3, 5), torch.zeros(4, 2, dtype=torch.int64)), picked) == 0
    assert _count(_picked, (torch.randn(4, 5), torch.zeros(2, dtype=torch.int64)), picked) == 0


def test_leading_dimensions_may_be_symbols() -> None:
    places = torch.zeros(4, 3, dtype=torch.int64)
    assert _count(_picked, (torch.randn(4, 3, 5), places), picked, dynamic=True) == 1


def test_both_sides_are_checked_over_the_last_and_the_first_dimension() -> None:
    found = check_rule(rule(_cosine_of_sum, lambda x, d: x.sin().sum(d).cos(), name="sums"), dtypes=(torch.float32,))
    assert {"d=-1", "d=-3"} <= {part for case in found.cases for part in case.inputs.split(", ")}
    with pytest.raises(lamina.errors.RuleFailed, match="d=-"):
        check_rule(rule(_cosine_of_sum, lambda x, d: x.sin().sum(-1).cos(), name="wrong"), dtypes=(torch.float32,))
