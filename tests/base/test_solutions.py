"""Conditions on sizes are solved for one only where that divides by nothing that may be zero."""

from __future__ import annotations

import pytest
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv
from torch.utils._sympy.solve import try_solve

import lamina
from lamina.base.symbolic.environment import torch_private as _watched  # noqa: F401

n, p = sympy.symbols("n p", integer=True, positive=True)
UNSOLVED = (sympy.Eq(n * FloorDiv(p, 4) - FloorDiv(p, 4), 0), sympy.Ge(n * FloorDiv(p, 4) + 1, FloorDiv(p, 4)))
SOLVED = (
    (sympy.Eq(2 * n - 6, 0), 3),
    (sympy.Eq(n * p, 6 * p), 6),
    (sympy.Ge(3 * n, 9), 3),
    (sympy.Eq(n, FloorDiv(p, 4)), FloorDiv(p, 4)),
)


@pytest.mark.parametrize("relation", UNSOLVED, ids=str)
def test_a_quotient_that_may_be_zero_divides_nothing(relation: sympy.Rel) -> None:
    assert try_solve(relation, n) is None


@pytest.mark.parametrize(("relation", "solution"), SOLVED, ids=str)
def test_what_divides_by_no_zero_is_solved(relation: sympy.Rel, solution: object) -> None:
    solved = try_solve(relation, n)
    assert solved is not None
    assert solved[1] == solution


@pytest.mark.parametrize("relation", [sympy.Eq(n + 5, 3, evaluate=False), sympy.Lt(n + 5, 3, evaluate=False)], ids=str)
def test_a_relation_that_no_size_satisfies_is_not_solved(relation: sympy.Rel) -> None:
    assert try_solve(relation, n) is None


def test_a_condition_that_holds_by_a_zero_says_nothing_of_a_size() -> None:
    def chosen(x: torch.Tensor, step: int) -> torch.Tensor:
        rows = x.shape[0]
        if rows * (step // 4) - 3 * (step // 4) == 0:
            return x.reshape(rows, 1) * 2
        return x

    compiled = lamina.compile(chosen, dynamic=True, options={"strict": True})
    for rows, step in ((5, 2), (3, 9), (7, 3), (7, 9), (4, 0)):
        x = torch.arange(float(rows))
        assert torch.equal(compiled(x, step), chosen(x, step))


def test_gradients_of_an_empty_slice_with_a_step_of_run_time() -> None:
    def total(x: torch.Tensor, step: int) -> torch.Tensor:
        return x[::step, 1:][0:0:step].sum()

    compiled = lamina.compile(total, dynamic=True, options={"strict": True})
    for rows, step in ((0, 2), (0, 3), (6, 2)):
        x = torch.ones(rows, 3, requires_grad=True)
        compiled(x, step).backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.zeros(rows, 3))
