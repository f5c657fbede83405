"""Errors that depend on values and that the program handles, beside writes to what was there before the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import lamina
from lamina.capture.own.machine import Machine


def read_after_a_write(x, i, kept):
    x.mul_(2)
    y = x + 1
    try:
        z = y[i]
        w = z * 2
    except IndexError:
        return y * 0
    return w


def read_after_a_write_beside_what_is_kept(x, i, kept):
    y = x + 1
    kept.append(y)
    x.mul_(2)
    z = x.sin()
    try:
        z = z[i].sum()
    except IndexError:
        kept.append(z)
        return y + z
    return y * z


def written_after_a_lookup(x, i, kept):
    y = x * 3
    try:
        z = y[i]
        x.add_(1)
        z = z * 2
    except IndexError:
        return y
    return z


def written_at_unknown_places(x, i, kept):
    y = x * 3
    try:
        x[i] = 1.0
        x[:1].mul_(5)
    except IndexError:
        return y - x
    return y + x


def written_at_unknown_places_twice(x, i, kept):
    y = x * 3
    z = y
    try:
        x[i - 1] = 1.0
        z = x.exp()
        x[i] = 2.0
    except IndexError:
        return y - x, z
    return y + x, z


def of_an_algorithm(x, i, kept):
    x.add_(1)
    y = x * 2
    try:
        c = torch.linalg.cholesky(x[:1].view(1, 1) * (5 - i[1]))
        x.add_(c.view(1))
    except RuntimeError:
        return y, x * 1
    return y + c, x * 2


def of_a_view_that_is_written(x, i, kept):
    part = x[1:]
    part.mul_(2)
    y = part + 1
    try:
        y[i].sum()
    except IndexError:
        return y * 0
    return y


def in_a_function(x, i, kept):
    def looked_up(y):
        kept.append(y.sum())
        return F.embedding(i, y.view(-1, 1))

    x.mul_(2)
    try:
        y = looked_up(x + 1)
    except IndexError:
        y = x - 1
    x.mul_(2)
    return y


def in_a_loop(x, i, kept):
    found = []
    for k in range(3):
        try:
            x.add_(k)
            found.append(x[i + k] * k)
        except IndexError:
            found.append(x * k)
            break
    return found


def drawn_before(x, i, kept):
    y = F.dropout(x, 0.5)
    try:
        y = y[i]
    except IndexError:
        y = y - 1
    return y, torch.rand(2)


PROGRAMS = [
    read_after_a_write,
    read_after_a_write_beside_what_is_kept,
    written_after_a_lookup,
    written_at_unknown_places,
    written_at_unknown_places_twice,
    of_an_algorithm,
    of_a_view_that_is_written,
    in_a_function,
    in_a_loop,
    drawn_before,
]


def outcome(function: Callable[..., Any], places: list[int]) -> list[Any]:
    torch.manual_seed(0)
    x, kept = torch.arange(1.0, 5.0), []
    found = function(x, torch.tensor(places), kept)
    return [found, x, x._version > 0, kept]


@pytest.mark.parametrize("backend", ["interp", "eager"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_was_written_and_computed_before_is_there(program: Callable[..., Any], backend: str) -> None:
    options = {"capture": "own", **({"numerics": "eager"} if backend == "interp" else {})}
    compiled = lamina.compile(program, backend=backend, options=options)
    for places in ([1, 2], [1, 9], [1, 2], [1, 2], [2, 1], [1, 9], [9, 1], [1, 2]):
        torch.testing.assert_close(outcome(compiled, places), outcome(program, places))


@pytest.mark.parametrize("program", [read_after_a_write, written_after_a_lookup, drawn_before])
def test_calls_that_raise_nothing_are_not_interpreted_again(
    program: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = lamina.compile(program, backend="eager", options={"capture": "own"})
    for _ in range(2):
        outcome(compiled, [1, 2])
    run, calls = Machine.run, []
    monkeypatch.setattr(Machine, "run", lambda *given: (calls.append(given[1]), run(*given))[1])
    for places in ([1, 2], [2, 1], [0, 3]):
        outcome(compiled, places)
    assert not calls
    outcome(compiled, [0, 9])
    assert calls


def test_a_lookup_that_is_in_range_ends_no_graph() -> None:
    compiled = lamina.compile(read_after_a_write, backend="eager", options={"capture": "own"})
    outcome(compiled, [1, 2])
    assert not compiled.record.decisions("break")


def filled_between(x, y):
    part = x.unsqueeze(0).expand(2, *x.shape)[1]
    made = x.exp()
    torch._dynamo.graph_break()
    part.fill_(y[0])
    torch._dynamo.graph_break()
    return part.sum(), made


def test_a_view_whose_history_autograd_refuses_to_make_is_used_without_one() -> None:
    compiled = lamina.compile(filled_between, options={"capture": "own", "strict": True})
    for number in range(3):
        torch.manual_seed(number)
        x, y = torch.randn(4, 6, requires_grad=True), torch.randn(6, requires_grad=True)
        with torch.no_grad():
            wanted, found = (call((x * 1)[:], y) for call in (filled_between, compiled))
        torch.testing.assert_close(found, wanted)
