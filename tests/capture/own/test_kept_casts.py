"""Casts that eager's autocast keeps, and takes again within a level of another type: the user is told."""

import warnings

import pytest
import torch

import lamina
from lamina.errors import LaminaWarning


def _levels(outer, inner, cached=True, breaks=False):
    def program(x, w):
        with torch.autocast("cpu", dtype=outer, cache_enabled=cached):
            first = x @ w
            with torch.autocast("cpu", dtype=inner, cache_enabled=cached):
                second = x @ w
                if breaks:
                    print(end="")
            third = x @ w
        return first, second, third

    return program


def _one_after_the_other(outer, inner):
    def program(x, w):
        with torch.autocast("cpu", dtype=outer):
            first = x @ w
        with torch.autocast("cpu", dtype=inner):
            second = x @ w
        return first, second

    return program


BF16, HALF = torch.bfloat16, torch.float16


@pytest.mark.parametrize(
    ("program", "trained", "told"),
    [
        (_levels(BF16, HALF), True, True),
        (_levels(HALF, BF16, breaks=True), True, True),
        (_levels(BF16, BF16), True, False),
        (_levels(BF16, HALF), False, False),
        (_levels(BF16, HALF, cached=False), True, False),
        (_one_after_the_other(BF16, HALF), True, False),
    ],
)
def test_the_user_is_told_where_eager_goes_on_with_another_cast(program, trained, told):
    x, w = (torch.ones(4, 4, requires_grad=trained) for _ in range(2))
    expected = [one.dtype for one in program(x, w)]
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always", LaminaWarning)
        found = [one.dtype for one in lamina.compile(program, options={"capture": "own"})(x, w)]
    assert any("goes on with the first cast" in str(one.message) for one in given) == told
    assert (found == expected) != told


def test_what_is_asked_of_kept_casts_ends_no_graph():
    w = torch.ones(4, 4, requires_grad=True)

    def program(x):
        with torch.autocast("cpu"):
            found = x @ w
        return found.float().sin()

    compiled = lamina.compile(program, options={"capture": "own"})
    compiled(torch.ones(4, 4))
    told = [str(decision.reason) for decision in compiled.record.decisions("break")]
    assert any("another state of autocast" in one for one in told)
    assert not any("is_leaf" in one for one in told)
