"""Second backwards: what eager's nodes hold, of all the operations of a region, decides which may follow which."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
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


def test_a_second_backward_that_needs_nothing_saved_runs_as_in_eager() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2 + 1, y.exp()

    compiled = lamina.compile(function, dynamic=False)
    x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
    linear, curved = compiled(x, y)
    curved.sum().backward()
    linear.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
    torch.testing.assert_close(y.grad, torch.ones(3).exp())
    with pytest.raises(RuntimeError, match="second time"):
        curved.sum().backward()


def _shifted(x: torch.Tensor) -> torch.Tensor:
    return x - 1 + x


def _scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize("function", [_shifted, _scaled])
def test_with_sizes_that_vary_a_second_backward_is_refused_where_eager_refuses_it(function: Any) -> None:
    compiled = lamina.compile(function, dynamic=True)
    for size in (3, 5):
        gradients = []
        for each in (compiled, function):
            x = torch.ones(2, size, requires_grad=True)
            loss = each(x).sum()
            loss.backward()
            with pytest.raises(RuntimeError, match="second time") if function is _scaled else nullcontext():
                loss.backward()
            gradients.append(x.grad)
        torch.testing.assert_close(*gradients)


def _viewed(x: torch.Tensor) -> torch.Tensor:
    return x.t().reshape(-1) - 1


def _broadcast(x: torch.Tensor) -> torch.Tensor:
    return (x[:1] + x).flatten()


def _written(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 1:].sub_(1)
    return y + x


@pytest.mark.by_dynamo("counts Dynamo's graphs, or asks what it leaves to eager", "_shifted", "_written")
@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("function", [_shifted, _viewed, _broadcast, _written])
def test_asking_what_eager_saves_adds_no_guard(function: Any) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(function, dynamic=True)
    torch._dynamo.utils.counters.clear()
    for size in (5, 7, 9, 4, 3):
        loss = compiled(torch.ones(3, size, requires_grad=True)).sum()
        loss.backward()
        with pytest.raises(RuntimeError, match="second time") if function is _written else nullcontext():
            loss.backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(("function", "taken"), [(_shifted, True), (_scaled, False)])
def test_the_record_says_whether_a_backward_may_run_again(function: Any, taken: bool) -> None:
    compiled: Any = lamina.compile(function, dynamic=True)
    loss = compiled(torch.ones(2, 3, requires_grad=True)).sum()
    loss.backward()
    with nullcontext() if taken else pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    decisions = compiled.record.decisions("second backward")
    assert [d.taken for d in decisions] == [taken]


def _of_their_own(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * 2, y.exp(), x + y


def _of_one_trunk(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    trunk = (x * y).tanh()
    return trunk.sin(), trunk.cos(), x.exp()


def _with_views(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    both = x + y
    return both[0], both.exp(), both.t()


def _partly_linear(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x - 1 + y, x[:, 1], x[:, 2] / 3


Outcome = tuple[bool, list[torch.Tensor | None]]


def _outcomes(function: Callable[..., Any], wanted: Sequence[tuple[int, ...]], kept: bool) -> list[Outcome]:
    """Whether each of the backwards, for some results each, runs, and the gradients after it.

    ``kept``: the first one retains the graph.
    """
    inputs = [torch.linspace(start, 1, 6).view(2, 3).requires_grad_() for start in (0.1, 2.0)]
    found = in_turn(function(*inputs), inputs, wanted, kept)
    return [(gradients is not None, gradients or []) for gradients in found]


@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [_of_their_own, _of_one_trunk, _with_views, _partly_linear])
def test_backwards_follow_one_another_as_in_eager(function: Any, way: str) -> None:
    torch.compiler.reset()
    compiled = lamina.compile(function, **WAYS[way])
    some = [places for many in (1, 2, 3) for places in itertools.combinations(range(3), many)]
    outcomes = set()
    three = itertools.chain(itertools.permutations([(0,), (1,), (2,)]), itertools.permutations([(0,), (1, 2), (2,)]))
    for wanted in (*itertools.product(some, repeat=2), *three):
        for kept in (False, True):
            ours, eagers = _outcomes(compiled, wanted, kept), _outcomes(function, wanted, kept)
            assert [ran for ran, _ in ours] == [ran for ran, _ in eagers], (wanted, kept)
            for (_, mine), (_, theirs) in zip(ours, eagers, strict=True):
                assert [g is None for g in mine] == [g is None for g in theirs], (wanted, kept)
                there = [(a, b) for a, b in zip(mine, theirs, strict=True) if a is not None]
                for a, b in there:
                    torch.testing.assert_close(a, b)
            outcomes.add(ours[-1][0])
    assert outcomes == {True, False}


class _Seen(torch.nn.Module):
    """A buffer that holds a parameter: its history goes back through all earlier calls."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.5, 1.0, 2.0]))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.copy_(self.weight)
        return torch.atan2(self.seen, self.weight) * x


@pytest.mark.sampled(one_in=2)
@pytest.mark.parametrize("way", WAYS)
def test_a_backward_reaches_earlier_calls_through_a_buffer_written_to(way: str) -> None:
    torch.compiler.reset()
    gradients = []
    for compiled in (True, False):
        module = _Seen()
        called: Any = lamina.compile(module, **WAYS[way]) if compiled else module
        for step in range(4):
            result = called(torch.full((3,), 1.0 + step))
            if step != 1:
                result.sum().backward()
        gradients.append(module.weight.grad)
    torch.testing.assert_close(*gradients)


def test_a_buffer_is_written_beside_inputs_that_are_taken_as_one() -> None:
    class Beside(_Seen):
        def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
            assert y is not None
            self.seen.copy_(self.weight)
            self.seen.mul_(self.weight)
            y.mul_(2)
            return x.exp()

    gradients = []
    for compiled in (True, False):
        module = Beside()
        called: Any = lamina.compile(module, backend="interp", options={"strict": True}) if compiled else module
        x = torch.arange(6.0)
        called(x, x.view(2, 3))
        torch.autograd.backward(module.seen.sum())
        gradients.append((module.weight.grad, x))
    torch.testing.assert_close(*gradients)


def _scaled_part(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    seen.add_(x)
    seen[..., -1] *= 2
    return seen.unsqueeze(0)


def _multiplied_part(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    seen[1:].mul_(x[1:].detach())
    seen.add_(x)
    return seen * 1


def _raised_part(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    seen.add_(x)
    torch._foreach_pow_([seen[:1], seen[1:]], 2.0)
    return seen.view(-1)


def _set_part(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    seen.add_(x)
    seen[torch.tensor([0, 2])] = 1.0
    return seen.view(-1)


def _shifted_part(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    seen.add_(x)
    seen[:1] -= 2
    seen[1] = 0.5
    return seen + 0


@pytest.mark.sampled(one_in=6)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [_scaled_part, _multiplied_part, _raised_part, _set_part, _shifted_part])
def test_a_write_to_a_part_holds_what_eagers_holds(function: Any, way: str) -> None:
    torch.compiler.reset()
    outcomes = []
    for called in (lamina.compile(function, **WAYS[way]), function):
        x, seen = torch.full((3,), 0.5, requires_grad=True), torch.ones(3)
        ran = []
        for given in (x, torch.ones(3), torch.ones(3)):
            try:
                called(given, seen).sum().backward()
            except RuntimeError as error:
                ran.append("second time" in str(error))
            else:
                ran.append(None)
        outcomes.append((ran, x.grad))
    assert outcomes[0][0] == outcomes[1][0]
    torch.testing.assert_close(outcomes[0][1], outcomes[1][1])


@pytest.mark.parametrize("way", WAYS)
def test_what_is_kept_for_another_backward_is_not_to_be_written_to_and_goes_with_the_results(way: str) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin(), y.cos()

    torch.compiler.reset()
    compiled = lamina.compile(function, **WAYS[way])
    for write in (False, True):
        x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
        one, other = compiled(x, y)
        one.sum().backward()
        with torch.no_grad():
            (y if write else x).mul_(2)
        with pytest.raises(RuntimeError, match="inplace") if write else nullcontext():
            other.sum().backward()
        watched = weakref.ref(y)
        del x, y, one, other
        gc.collect()
        assert watched() is None


@pytest.mark.parametrize("way", WAYS)
def test_a_region_that_a_backward_reaches_without_a_gradient_is_not_gone_through(way: str) -> None:
    def first(x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    def second(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin(), y.cos()

    torch.compiler.reset()
    gradients = []
    for ones, both in ((first, second), (lamina.compile(first, **WAYS[way]), lamina.compile(second, **WAYS[way]))):
        x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
        one, other = both(ones(x), ones(y))
        one.sum().backward()
        assert y.grad is None
        other.sum().backward()
        gradients.append((x.grad, y.grad))
    torch.testing.assert_close(*gradients)
