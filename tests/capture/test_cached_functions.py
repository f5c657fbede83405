"""Functions behind ``functools.cache``: run once for equal arguments, as in eager."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import lamina
from lamina.capture.cached_functions.pure import is_pure

X = torch.arange(1.0, 4.0)
Program = tuple[Callable[[torch.Tensor], Any], Callable[[], Any], Callable[[], Any]]
"""A function, what it has left behind, and a change."""


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def nothing() -> None:
    pass


def side_effects() -> Program:
    ran: list[int] = []

    @functools.lru_cache(None)
    def double(k: int) -> int:
        ran.append(k)
        return k * 2

    return lambda x: x * double(3) + double(k=4), lambda: list(ran), double.cache_clear


def random_numbers() -> Program:
    noise = functools.cache(lambda: torch.rand(3))
    return lambda x: x + noise(), nothing, noise.cache_clear


def state() -> Program:
    held = [1]
    scaled = functools.cache(lambda k: held[0] * k)
    return lambda x: x * scaled(3), nothing, lambda: held.__setitem__(0, 7)


def state_that_is_written_before() -> Program:
    held = [1]
    scaled = functools.cache(lambda k: held[0] * k)

    def function(x: torch.Tensor) -> torch.Tensor:
        held[0] = 5
        return x * scaled(3)

    return function, lambda: scaled(3), scaled.cache_clear


def tensor_that_is_written_before() -> Program:
    held = torch.ones(3)
    scaled = functools.cache(lambda k: held * k)

    def function(x: torch.Tensor) -> Any:
        held.add_(1)
        return x * scaled(3)

    return function, lambda: scaled(3), scaled.cache_clear


def numbers_drawn_before() -> Program:
    noise = functools.cache(lambda: torch.rand(3))
    return lambda x: torch.rand(3) + noise() + x, nothing, noise.cache_clear


def result_that_is_written() -> Program:
    ones = functools.cache(lambda k: torch.ones(3) * k)
    return lambda x: x * ones(2).add_(1), lambda: ones(2), ones.cache_clear


def result_itself() -> Program:
    ones = functools.cache(lambda k: torch.ones(3) * k)
    return lambda x: ones(2), nothing, ones.cache_clear


def method() -> Program:
    class Counter:
        calls = 0

        @functools.lru_cache  # noqa: B019
        def scaled(self, k: int) -> int:
            self.calls += 1
            return self.calls * k

    counter = Counter()
    return lambda x: x * counter.scaled(3), lambda: counter.calls, Counter.scaled.cache_clear


def counts() -> Program:
    double = functools.cache(lambda k: k * 2)
    return lambda x: x * double(3) + double.cache_info().hits, nothing, double.cache_clear


def list_that_is_kept() -> Program:
    numbers = functools.cache(lambda: [1])

    def function(x: torch.Tensor) -> torch.Tensor:
        numbers().append(2)
        return x * len(numbers())

    return function, numbers, numbers.cache_clear


def mode_that_it_runs_in() -> Program:
    weight = torch.nn.Parameter(torch.ones(3))
    scaled = functools.cache(lambda: weight * 2)

    def function(x: torch.Tensor) -> Any:
        with torch.no_grad():
            factor = scaled()
        return x * factor

    return function, lambda: scaled().requires_grad, scaled.cache_clear


PROGRAMS = (
    mode_that_it_runs_in,
    side_effects,
    random_numbers,
    state,
    state_that_is_written_before,
    tensor_that_is_written_before,
)
PROGRAMS += (numbers_drawn_before, result_that_is_written, result_itself, method, counts, list_that_is_kept)


def outcome(make: Callable[[], Program], entry: Callable[[Any], Any]) -> list[Any]:
    torch.manual_seed(0)
    function, left, change = make()
    called, found = entry(function), []
    for at in range(5):
        if at == 3:
            change()
        found += [called(X).clone(), left()]
    return [*found, torch.rand(1)]


@pytest.mark.filterwarnings("ignore:lamina", "ignore:Dynamo detected")
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_a_function_with_a_cache_is_as_in_eager(make: Callable[[], Program]) -> None:
    expected = outcome(make, lambda f: f)
    found = outcome(make, lambda f: lamina.compile(f, backend="eager"))
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_a_result_of_constants_is_in_one_graph() -> None:
    mask = functools.cache(lambda n, dtype: torch.ones(n, dtype=dtype).tril())
    compiled = lamina.compile(lambda x: x @ mask((3, 3), torch.float32), backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), X @ mask((3, 3), torch.float32))
    compiled(X)
    assert mask.cache_info().misses == 1


STATE: dict[str, float] = {}
CALLS: list[int] = []


def _sets_state() -> Any:
    @functools.cache
    def set_up(n: int) -> float:
        STATE["scale"] = 3.0
        CALLS.append(n)
        return 1.0

    def function(x: torch.Tensor) -> Any:
        before, count = STATE["scale"], len(CALLS)
        found = set_up(1)
        return x * before * STATE["scale"], count, found

    return function


def _draws_with_others_cached() -> Any:
    @functools.cache
    def noise(n: int) -> torch.Tensor:
        return torch.rand(n)

    @functools.cache
    def twice(n: int) -> torch.Tensor:
        return noise(n) * 2

    noise(1)
    twice(1)
    return lambda x: (x * noise(3), twice(2), torch.rand(3))


def _raises_at_first() -> Any:
    CALLS.clear()

    @functools.lru_cache(maxsize=0)
    def refused(n: int) -> float:
        CALLS.append(n)
        if len(CALLS) == 1:
            raise ValueError("not yet")
        return 2.0

    def function(x: torch.Tensor) -> Any:
        try:
            return x * refused(1), len(CALLS)
        except ValueError:
            return x, len(CALLS)

    return function


def _seeds() -> Any:
    @functools.cache
    def seeded(n: int) -> float:
        torch.manual_seed(n)
        return 1.0

    return lambda x: (x * seeded(5), torch.rand(2))


@pytest.mark.parametrize("make", [_sets_state, _draws_with_others_cached, _raises_at_first, _seeds])
def test_cached_functions_that_do_more_than_compute(make: Any) -> None:
    def seen(compile: Any) -> list[Any]:
        torch.compiler.reset()
        torch.manual_seed(1)
        STATE["scale"] = 1.0
        CALLS.clear()
        function = compile(make())
        return [str(function(torch.ones(()))) for _ in range(3)]

    assert seen(lamina.compile) == seen(lambda function: function)


@functools.cache
def _table(n: int, base: float = 10.0) -> torch.Tensor:
    steps = torch.arange(n, dtype=torch.float32) / max(n, 1)
    return torch.outer(steps, base**-steps).cos()


def test_what_is_pure() -> None:
    assert is_pure(_table.__wrapped__)
    for name in ("rand", "manual_seed", "seed", "set_grad_enabled", "set_default_dtype", "save", "compile"):
        space: dict[str, Any] = {"torch": torch}
        exec(f"def function(n):\n    return torch.{name}(n)", space)
        assert not is_pure(space["function"]), name
    assert not is_pure(lambda n: CALLS[n])
    assert not is_pure(lambda n: print(n))


def test_a_table_is_no_graph_break() -> None:
    torch.compiler.reset()
    compiled = lamina.compile(lambda x: (x * 2) @ _table(4) + 1)
    torch.testing.assert_close(compiled(torch.ones(4)), torch.full((4,), 2.0) @ _table(4) + 1)
    assert compiled.stats().graphs == 1
