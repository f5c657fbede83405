from __future__ import annotations

import itertools
from collections import Counter
from types import SimpleNamespace

import pytest

import lamina
from lamina import bench


class Machine:
    """A clock that only naps move."""

    def __init__(self) -> None:
        self.now = 0.0

    def nap(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=lambda: made.now))
    return made


def test_benchmark_gives_the_median_and_its_spread(machine: Machine) -> None:
    # Two calls warm up and one is for the count of calls in a sample.
    naps = iter([1.0, 1.0, 0.003, 0.001, 0.002, 0.003, 0.004, 0.005])

    def nap(factor: float) -> None:
        machine.nap(next(naps) * factor)

    result = lamina.benchmark(nap, 2.0, repeats=5, warmup=2)
    assert result.samples == pytest.approx((0.002, 0.004, 0.006, 0.008, 0.010))
    assert result.median == pytest.approx(0.006)
    assert result.spread == pytest.approx(0.004)
    assert str(result) == "nap: 6 ms (spread 4, 5 calls)"


def test_keyword_arguments_reach_the_function() -> None:
    seen = []
    lamina.benchmark(lambda **given: seen.append(given), repeats=1, warmup=0, word=1)
    assert {"word": 1} in seen


def test_short_calls_are_timed_many_at_a_time(machine: Machine) -> None:
    result = lamina.benchmark(lambda: machine.nap(2e-6), repeats=3)
    assert result.calls_per_sample == 100
    assert result.median == pytest.approx(2e-6)
    assert ": 2 µs (spread " in str(result)
    assert str(result).endswith(", 300 calls)")


def test_as_many_samples_are_taken_as_fit(machine: Machine) -> None:
    assert len(lamina.benchmark(lambda: machine.nap(0.0101), seconds=0.5).samples) == 49
    assert len(lamina.benchmark(lambda: machine.nap(1.0), seconds=0.5).samples) == 5


def test_rivals_take_turns_and_give_ratios(machine: Machine) -> None:
    order: list[str] = []

    def fast() -> None:
        order.append("fast")
        machine.nap(0.002)

    def slow() -> None:
        order.append("slow")
        machine.nap(0.010)

    rivals = lamina.alternate({"fast": fast, "slow": slow}, repeats=4, warmup=0)
    assert rivals.ratio("slow", "fast") == pytest.approx(5)
    assert order[-4:] == ["fast", "slow", "slow", "fast"]
    assert [line.split(":")[0] for line in str(rivals).splitlines()] == ["fast", "slow"]
    with pytest.raises(KeyError):
        rivals["other"]


@pytest.mark.parametrize("count", [3, 4, 5])
def test_each_callable_runs_as_often_behind_each_other_and_never_behind_itself(count: int) -> None:
    names = "abcde"[:count]
    turns = [name for order in itertools.islice(bench.orders(names), 2000) for name in order]
    behind = Counter(itertools.pairwise(turns))
    assert len(behind) == count * (count - 1)
    assert max(behind.values()) <= 1.2 * min(behind.values()), behind


def test_warmup_calls_and_returns_the_first_calls_seconds(machine: Machine) -> None:
    waits = iter([0.02, 0.0, 0.0])
    assert lamina.warmup(lambda: machine.nap(next(waits)), calls=3) == pytest.approx(0.02)
    with pytest.raises(StopIteration):
        next(waits)


def test_the_clock_is_the_machines() -> None:
    assert lamina.benchmark(lambda: None, repeats=3).median > 0
