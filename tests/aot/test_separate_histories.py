"""Results of a region that lead autograd to other inputs each: a backward of one leaves alone what is behind others."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import lamina
from tests.aot.backwards import in_turn

WAYS: dict[str, dict[str, Any]] = {
    "sizes that are known": {"dynamic": False},
    "sizes that vary": {"dynamic": True},
    "eager's order": {"dynamic": False, "options": {"numerics": "eager"}},
}
Function = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]


def _detached(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.detach() * w, x * 2, y.exp()


def _adversarial(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (y * w).tanh() - (x.detach() * w).tanh(), (x * w).tanh(), w.sin()


def _overlapping(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    both = (x * y).sin()
    return both * w, both.exp(), x.cos()


def _written(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y.mul_(w)
    return x * 2, w.exp(), x.exp()


def _returning_views(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    both = x.detach() * w
    return x * 2 + y, both.t(), both


def _past_autograd(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    made = x.detach() * w
    w.data.mul_(2)
    return x - 1, w.exp(), made * y


def _written_views(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y[:, 1:].mul_(2)
    both = x * w
    return both.view(-1), both[0], y.sin()


def _given(leaves: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    x, y, w = leaves
    return x.exp(), y * 1.5, w


def _leaves() -> list[torch.Tensor]:
    return [torch.linspace(start, 1, 6).view(2, 3).requires_grad_() for start in (0.1, 2.0, 0.5)]


def _outcomes(function: Function, wanted: Sequence[tuple[int, ...]], kept: bool) -> list[Any]:
    """Whether each of the backwards, for some results each, runs, and the gradients after it, until one is refused."""
    leaves = _leaves()
    given = _given(leaves)
    return in_turn([*function(*given), given[1]], leaves, wanted, kept)


FUNCTIONS = [_detached, _adversarial, _overlapping, _written, _returning_views, _past_autograd, _written_views]


@pytest.mark.sampled(one_in=12)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_backwards_follow_one_another_as_in_eager_where_inputs_have_a_history(function: Function, way: str) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(function, backend="interp", **WAYS[way])
    some = [places for many in (1, 4) for places in itertools.combinations(range(4), many)]
    for wanted in (*itertools.product(some, repeat=2), *itertools.permutations([(0,), (1,), (2,)])):
        for kept in (False, True):
            ours, eagers = _outcomes(compiled, wanted, kept), _outcomes(function, wanted, kept)
            torch.testing.assert_close(ours, eagers)


@pytest.mark.parametrize("way", WAYS)
def test_gradients_of_some_inputs_are_found_alone_and_nothing_is_kept(way: str) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(_overlapping, backend="interp", **WAYS[way])
    watched = []
    for _ in range(2):
        found = []
        for function in (compiled, _overlapping):
            given = _given(leaves := _leaves())
            results = function(*given)
            mine = torch.autograd.grad(results[2].sum(), leaves[0], retain_graph=True)
            loss = results[0].sum() + results[1].sum() + results[2].sum()
            found.append((*mine, *torch.autograd.grad(loss, [given[0], leaves[2]])))
            watched += [weakref.ref(t) for t in (*results, *given[:2])]
        torch.testing.assert_close(*found)
        del given, results, mine, loss, found, leaves
        gc.collect()
        assert not any(reference() for reference in watched)


@pytest.mark.parametrize("way", WAYS)
def test_a_write_is_counted_once(way: str) -> None:
    torch.compiler.reset()
    versions = []
    for function in (lamina.compile(_written, backend="interp", **WAYS[way]), _written):
        given = _given(_leaves())
        before = [t._version for t in given]
        function(*given)
        versions.append([t._version - b for t, b in zip(given, before, strict=True)])
    assert versions[0] == versions[1]
    assert any(versions[1])


@pytest.mark.parametrize("way", WAYS)
def test_views_of_what_an_input_is_leave_its_history_to_the_input(way: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.view(-1)[1:], (y * w)[:, 0], x.t().exp()

    torch.compiler.reset()
    compiled = lamina.compile(function, backend="interp", **WAYS[way])
    for wanted in itertools.permutations([(0,), (1,), (2,)]):
        found = []
        for each in (compiled, function):
            x, y, w = leaves = _leaves()
            found.append(in_turn(each(x.exp().view(2, 3), (y * 2).view(6).view(2, 3), w), leaves, wanted, False))
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("capture", ["dynamo", "own"])
def test_an_input_that_had_no_history_when_it_was_compiled_keeps_its_own(capture: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, y.t()

    compiled = lamina.compile(function, backend="interp", options={"capture": capture})
    for history in (False, True):
        x, y, _ = _leaves()
        double, turned = compiled(x, y.exp() if history else y)
        double.sum().backward()
        turned.sum().backward()
        assert y.grad is not None
        torch.testing.assert_close(y.grad, y.detach().exp() if history else torch.ones_like(y))


def test_they_can_be_differentiated_again() -> None:
    found = []
    for function in (lamina.compile(_overlapping, dynamic=False, backend="interp"), _overlapping):
        leaves = _leaves()
        results = function(*_given(leaves))
        first = torch.autograd.grad(results[1].sum(), leaves[:2], create_graph=True)
        (first[0].square().sum() + first[1].sum()).backward()
        found.append([x.grad for x in leaves])
    torch.testing.assert_close(*found)


def test_it_is_in_the_record_and_not_done_where_it_does_not_matter() -> None:
    compiled: Any = lamina.compile(_detached, dynamic=False, backend="interp")
    compiled(*_leaves())[0].sum().backward()
    assert not compiled.record.decisions("separate histories")
    compiled(*_given(_leaves()))[0].sum().backward()
    (decision,) = compiled.record.decisions("separate histories")
    assert decision.taken
    shared: Any = lamina.compile(lambda x, y: (x * y, x + y), dynamic=False, backend="interp")
    shared(*_given(_leaves())[:2])[0].sum().backward()
    assert not shared.record.decisions("separate histories")
