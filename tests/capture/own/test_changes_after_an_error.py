"""Changes of containers and iterators after a lookup that raises: they are not made, whatever makes them."""

from __future__ import annotations

import contextlib
import operator
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lamina
from lamina.base.modes import autocast_depth


class Entries(dict):
    def put(self):
        super().__setitem__("new", 1)

    def drop(self):
        super().__delitem__("old")


CHANGES: list[tuple[Callable[[], Any], Callable[[Any], object]]] = [
    (lambda: Entries(old=0), lambda d: d.put()),
    (lambda: Entries(old=0), lambda d: d.drop()),
    (lambda: Entries(old=0), lambda d: operator.setitem(d, "new", 1)),
    (lambda: defaultdict(list), lambda d: d["new"]),
    (lambda: defaultdict(list), lambda d: d.__getitem__("new")),
    (lambda: defaultdict(list), lambda d: dict.__getitem__(d, "new")),
    (lambda: defaultdict(list), lambda d: operator.getitem(d, "new")),
    (lambda: [5], lambda d: d.__setitem__(0, 1)),
    (lambda: [5], lambda d: d.__delitem__(0)),
    (lambda: [5], lambda d: d.__iadd__([1])),
    (lambda: [5], lambda d: d.__init__([1, 2])),
    (lambda: [5], lambda d: operator.iadd(d, [1])),
    (lambda: [5], lambda d: operator.setitem(d, 0, 1)),
    (lambda: [5], lambda d: operator.delitem(d, 0)),
    (lambda: iter("abc"), lambda d: next(d)),
    (lambda: iter("abc"), lambda d: list(d)),
    (lambda: iter("abc"), lambda d: max(d)),
    (lambda: iter("abc"), lambda d: "".join(d)),
    (lambda: iter("abc"), lambda d: [*d]),
    (lambda: iter("abc"), lambda d: "b" in d),
    (lambda: iter([(1, 2)]), lambda d: dict(d)),
]


@pytest.mark.parametrize(("make", "change"), CHANGES)
@pytest.mark.parametrize("places", [[0, 1], [0, 9]])
def test_a_change_after_an_error_is_not_made(
    make: Callable[[], Any], change: Callable[[Any], object], places: list[int]
) -> None:
    def program(x, i, kept):
        try:
            y = x[i]
            change(kept)
        except IndexError:
            return None
        return y

    compiled = lamina.compile(program, backend="eager", options={"capture": "own"})
    x, i = torch.ones(4), torch.tensor(places)
    wanted, found = make(), make()
    program(x, i, wanted)
    compiled(x, i, found)
    as_list: Callable[[Any], list[Any]] = lambda kept: list(kept.items() if isinstance(kept, dict) else kept)  # noqa: E731
    assert as_list(found) == as_list(wanted)


def _full(x, k):
    return torch.full((3,), k * 100, dtype=torch.int8)


def _full_like(x, k):
    return torch.full_like(x, k * 100, dtype=torch.int8)


def _in_half(x, k):
    return torch.full_like(x, k * 1e5, dtype=torch.float16)


@pytest.mark.parametrize("make", [_full, _full_like, _in_half])
def test_a_number_that_a_dtype_does_not_hold_is_an_error_that_the_program_handles(make: Callable[..., Any]) -> None:
    def handles(x, k):
        try:
            found = make(x, k)
        except RuntimeError:
            return "handled"
        return found

    def leaves_autocast(x, k):
        with torch.autocast("cpu", enabled=False):
            return make(x, k)

    compiled = lamina.compile(handles, options={"capture": "own"})
    within = lamina.compile(leaves_autocast, options={"capture": "own"})
    before = autocast_depth()
    for k in (0, 2, 3):
        wanted, found = handles(torch.ones(4), k), compiled(torch.ones(4), k)
        assert type(wanted) is type(found)
        with contextlib.suppress(RuntimeError):
            within(torch.ones(4), k)
        assert autocast_depth() == before
