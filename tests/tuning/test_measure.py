"""Races between candidates whose times are made up: early ends, failures, samples in turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle

from lamina.tuning.measure import Sampler, beside_others, in_turns, race


class Clock:
    """Seconds that pass only while candidates run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ran: list[tuple[str, int]] = []

    def __call__(self) -> float:
        return self.now

    def candidate(self, label: str, microseconds: float, seconds: float = 0.0) -> Sampler:
        def run(samples: int) -> Sequence[float]:
            self.now += seconds
            self.ran.append((label, samples))
            return [microseconds] * samples

        return run

    def count(self, label: str) -> int:
        return sum(samples for name, samples in self.ran if name == label)


def broken(samples: int) -> Sequence[float]:
    raise ValueError("no such tile")


def test_every_candidate_has_a_median() -> None:
    clock = Clock()
    results = race({"a": clock.candidate("a", 9.0), "b": clock.candidate("b", 5.0)}, 1.0, 10.0, clock)
    assert [(m.label, m.microseconds, m.reason) for m in results] == [("a", 9.0, ""), ("b", 5.0, "")]


def test_an_outlier_does_not_decide() -> None:
    found: Iterator[float] = iter([5.0, 5.0, 500.0, 5.0, 5.0, *[5.0] * 50])
    (only,) = race({"a": lambda samples: [next(found) for _ in range(samples)]}, None, 10.0)
    assert only.microseconds == 5.0


def test_the_race_ends_at_97_percent_of_the_bound() -> None:
    clock = Clock()
    slow, enough, third = (clock.candidate(n, us) for n, us in (("slow", 20.0), ("enough", 10.3), ("third", 10.1)))
    results = race({"slow": slow, "enough": enough, "third": third}, 10.0, 10.0, clock)
    assert [m.skipped for m in results] == [False, False, True]
    assert "enough reached 97% of the bound" in results[2].reason
    assert clock.count("third") == 0


def test_below_97_percent_it_goes_on() -> None:
    clock = Clock()
    results = race({"a": clock.candidate("a", 10.4), "b": clock.candidate("b", 10.35)}, 10.0, 10.0, clock)
    assert not any(m.skipped for m in results)


def test_time_over_ends_it_with_at_least_one_figure() -> None:
    clock = Clock()
    results = race({n: clock.candidate(n, 7.0, seconds=2.0) for n in "abc"}, None, 1.0, clock)
    assert [m.microseconds for m in results] == [7.0, None, None]
    assert results[1].skipped
    assert "1 s were over" in results[1].reason


def test_one_that_fails_drops_out_alone() -> None:
    clock = Clock()
    results = race({"a": broken, "b": clock.candidate("b", 4.0)}, None, 10.0, clock)
    assert results[0].microseconds is None
    assert not results[0].skipped
    assert results[0].reason == "ValueError: no such tile"
    assert results[1].microseconds == 4.0


def test_close_ones_are_sampled_again_in_turns_and_far_ones_are_not() -> None:
    clock = Clock()
    race({n: clock.candidate(n, us) for n, us in (("a", 10.0), ("b", 10.2), ("far", 15.0))}, None, 10.0, clock)
    assert clock.count("far") < clock.count("a") == clock.count("b")
    assert [label for label, _ in clock.ran[3:]] == ["b", "a", "a", "b"]


def test_turns_go_on_with_those_near_the_fastest_and_the_first() -> None:
    clock = Clock()
    figures = {"first": 11.9, "best": 10.0, "near": 10.3, "middle": 10.9, "far": 15.0}
    results = in_turns({n: clock.candidate(n, us) for n, us in figures.items()}, None, 10.0, clock)
    assert {m.label: m.microseconds for m in results} == figures
    assert clock.count("far") < clock.count("middle") < clock.count("near") == clock.count("best")
    assert clock.count("first") == clock.count("best")
    assert [label for label, _ in clock.ran[5:9]] == ["middle", "near", "best", "first"]


def test_turns_end_when_the_first_is_far_ahead() -> None:
    clock = Clock()
    in_turns({n: clock.candidate(n, us) for n, us in (("a", 10.0), ("b", 12.0))}, None, 10.0, clock)
    assert clock.count("a") == clock.count("b") == clock.ran[0][1]


def test_long_runs_have_few_turns() -> None:
    for us, samples in ((400.0, 14), (800.0, 6)):
        clock = Clock()
        in_turns({n: clock.candidate(n, us) for n in "ab"}, None, 10.0, clock)
        assert clock.count("a") == clock.count("b") == samples


def test_turns_end_at_the_bound() -> None:
    clock = Clock()
    in_turns({n: clock.candidate(n, us) for n, us in (("a", 10.0), ("b", 10.1))}, 9.9, 10.0, clock)
    assert len(clock.ran) == 2


def test_turns_whose_time_is_over() -> None:
    clock = Clock()
    results = in_turns({n: clock.candidate(n, 7.0, seconds=2.0) for n in "abc"}, None, 3.0, clock)
    assert [m.microseconds for m in results] == [7.0, None, None]
    assert [m.skipped for m in results] == [False, True, True]
    assert "3 s were over" in results[1].reason
    assert [label for label, _ in clock.ran] == ["a", "b"]


def test_turns_cut_short_keep_figures_of_enough_samples() -> None:
    clock = Clock()
    results = in_turns({n: clock.candidate(n, 7.0, seconds=1.0) for n in "abc"}, None, 8.5, clock)
    assert [(m.microseconds, m.samples) for m in results] == [(7.0, 6), (7.0, 6), (7.0, 6)]
    results = in_turns({n: clock.candidate(n, 7.0, seconds=1.0) for n in "abc"}, None, 4.5, clock)
    assert [(m.microseconds, m.samples, m.skipped) for m in results] == [
        (7.0, 2, False),
        (None, 0, True),
        (None, 0, True),
    ]


def test_one_that_fails_drops_out_of_the_turns() -> None:
    clock = Clock()
    results = in_turns({"a": broken, "b": clock.candidate("b", 4.0), "c": clock.candidate("c", 4.1)}, None, 10.0, clock)
    assert results[0].reason == "ValueError: no such tile"
    assert not results[0].skipped
    assert [m.samples for m in results] == [0, 14, 14]


def drawn(*microseconds: float) -> Sampler:
    """Gives these times one after the other, again and again."""
    times = cycle(microseconds)
    return lambda samples: [next(times) for _ in range(samples)]


def test_other_work_that_meets_half_of_the_samples_does_not_decide() -> None:
    first, second = beside_others({"a": drawn(9.0, 900.0), "b": drawn(10.0)}, None, 10.0)
    assert (first.microseconds, second.microseconds) == (9.0, 10.0)


def test_one_that_is_faster_in_half_of_the_rounds_has_no_figure() -> None:
    first, second = beside_others({"a": drawn(10.0), "b": drawn(9.0, 11.0)}, None, 10.0)
    assert first.microseconds == 10.0
    assert second.microseconds is None
    assert second.reason == "faster than the best guess in 8 of 15 rounds"
    assert not second.skipped


def test_rounds_leave_out_what_is_far_slower_but_never_the_first() -> None:
    clock = Clock()
    figures = {"a": 20.0, "b": 10.0, "c": 12.0, "d": 30.0}
    results = beside_others({n: clock.candidate(n, us) for n, us in figures.items()}, None, 10.0, clock)
    assert {m.label: m.microseconds for m in results} == figures
    assert [clock.count(n) for n in "abcd"] == [15, 15, 6, 3]


def test_rounds_whose_time_is_over_leave_the_first_alone() -> None:
    clock = Clock()
    results = beside_others({n: clock.candidate(n, us, 1.0) for n, us in (("a", 7.0), ("b", 6.0))}, None, 3.0, clock)
    assert [m.microseconds for m in results] == [7.0, None]
    assert results[1].skipped


def test_one_that_fails_has_no_further_round() -> None:
    clock = Clock()
    results = beside_others({"a": broken, "b": clock.candidate("b", 4.0)}, None, 10.0, clock)
    assert [m.microseconds for m in results] == [None, 4.0]
    assert "no such tile" in results[0].reason
