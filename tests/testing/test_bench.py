from __future__ import annotations

import time

import pytest

import lamina


def nap(seconds: float = 0.002) -> None:
    time.sleep(seconds)


def test_benchmark_gives_the_median_and_its_spread() -> None:
    result = lamina.benchmark(nap, 0.003, repeats=9, warmup=1)
    assert len(result.samples) == 9
    assert 0.003 <= result.median < 0.02
    assert 0 <= result.spread < 0.02
    assert str(result).startswith("nap: ")
    assert " ms " in str(result)


def test_keyword_arguments_reach_the_function() -> None:
    seen = []
    lamina.benchmark(lambda **given: seen.append(given), repeats=1, warmup=0, word=1)
    assert {"word": 1} in seen


def test_short_calls_are_timed_many_at_a_time() -> None:
    result = lamina.benchmark(lambda: None, repeats=3)
    assert result.calls_per_sample > 20
    assert "µs" in str(result)


def test_rivals_take_turns_and_give_ratios() -> None:
    order: list[str] = []

    def fast() -> None:
        order.append("fast")
        nap(0.002)

    def slow() -> None:
        order.append("slow")
        nap(0.010)

    rivals = lamina.alternate({"fast": fast, "slow": slow}, repeats=4, warmup=0)
    assert 2 < rivals.ratio("slow", "fast") < 6
    assert order[-4:] == ["fast", "slow", "slow", "fast"]
    assert len(str(rivals).splitlines()) == 2
    with pytest.raises(KeyError):
        rivals["other"]


def test_warmup_calls_and_returns_the_first_calls_seconds() -> None:
    waits = iter([0.02, 0.0, 0.0])
    first = lamina.warmup(lambda: nap(next(waits)), calls=3)
    assert 0.02 <= first < 0.2
    with pytest.raises(StopIteration):
        next(waits)
