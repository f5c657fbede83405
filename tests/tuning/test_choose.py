"""Choices: by the model, by measurement, remembered across processes; what they say of themselves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lamina.runtime.cache import Cache, digest
from lamina.tuning.choose import guess, measured, remembered, worth_asking, worth_timing
from lamina.tuning.measure import Sampler
from lamina.tuning.values import Candidate, Choice, Policy, Task, policy_of
from tests.processes import python

ALL = policy_of("max-autotune")
QUICK = policy_of("default")
TASK = Task("norm", digest("tune", "norm"), tuple(Candidate(n, ord(n)) for n in "abcd"), 1.0)


class Samplers:
    """Candidates that take a fixed time; ``asked`` counts how often they were wanted."""

    def __init__(self, **microseconds: float) -> None:
        self.microseconds, self.asked = microseconds, 0

    def __call__(self) -> Mapping[str, Sampler]:
        self.asked += 1
        return {label: self.sampler(us) for label, us in self.microseconds.items()}

    def sampler(self, us: float) -> Sampler:
        def run(samples: int) -> Sequence[float]:
            if us < 0:
                raise RuntimeError("launch failed")
            return [us] * samples

        return run


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def choose(cache: Cache, samplers: Samplers, task: Task = TASK, policy: Policy = ALL, **failures: str) -> Choice:
    return measured(task, policy, cache, samplers, failures, 10.0)


def test_the_fastest_wins_and_the_decision_says_by_how_much(cache: Cache) -> None:
    choice = choose(cache, Samplers(a=4.0, b=2.0, c=3.0, d=5.0))
    assert (choice.winner.label, choice.source) == ("b", "measured")
    decision = choice.decision
    assert decision.kind == "tune"
    assert decision.subject == ("norm",)
    assert decision.taken
    assert "100% before the best guess" in decision.reason
    assert dict(decision.facts) == {
        "winner": "b", "a": 4.0, "b": 2.0, "c": 3.0, "d": 5.0, "bound_us": 1.0, "share": 0.5
    }  # fmt: skip


def test_the_best_guess_stays_where_another_is_hardly_faster(cache: Cache) -> None:
    choice = choose(cache, Samplers(a=2.01, b=2.0, c=3.0, d=3.0))
    assert choice.winner.label == "a"
    assert not choice.decision.taken


def test_failures_drop_out_with_their_reasons(cache: Cache) -> None:
    choice = choose(cache, Samplers(a=-1.0, b=2.0, d=2.5), c="it spills")
    assert choice.winner.label == "b"
    facts = dict(choice.decision.facts)
    assert facts["a"] == "RuntimeError: launch failed"
    assert facts["c"] == "it spills"


def test_nothing_that_can_be_timed_leaves_the_guess_and_no_note(cache: Cache) -> None:
    choice = choose(cache, Samplers(a=-1.0), b="x", c="x", d="x")
    assert (choice.winner.label, choice.source) == ("a", "model")
    assert remembered(TASK, ALL, cache) is None


def test_a_second_compilation_times_nothing(cache: Cache) -> None:
    first, second = Samplers(a=4.0, b=2.0, c=3.0, d=5.0), Samplers(a=1.0, b=9.0, c=9.0, d=9.0)
    choose(cache, first)
    again = choose(cache, second)
    assert (again.winner.label, again.source, second.asked) == ("b", "remembered", 0)
    assert again.winner.value == ord("b")
    assert again.times == {"a": 4.0, "b": 2.0, "c": 3.0, "d": 5.0}


def test_a_second_process_times_nothing(cache: Cache, tmp_path: Path) -> None:
    choose(cache, Samplers(a=4.0, b=2.0, c=3.0, d=5.0))
    code = (
        "import sys; from tests.tuning.test_choose import *\n"
        "found = remembered(TASK, ALL, Cache(sys.argv[1]))\n"
        "print(json.dumps([found.winner.label, found.source]))\n"
    )
    done = subprocess.run((*python(), "-c", code, str(tmp_path)), stdout=subprocess.PIPE, text=True, check=True)
    assert json.loads(done.stdout) == ["b", "remembered"]


def test_a_quick_choice_is_not_enough_for_a_thorough_one(cache: Cache) -> None:
    choose(cache, Samplers(a=4.0, b=2.0, c=3.0), policy=QUICK)
    assert remembered(TASK, QUICK, cache) is not None
    assert remembered(TASK, ALL, cache) is None


def test_a_choice_that_reached_the_bound_is_enough_for_all(cache: Cache) -> None:
    choose(cache, Samplers(a=1.02, b=2.0, c=3.0), policy=QUICK)
    found = remembered(TASK, ALL, cache)
    assert found is not None
    assert found.winner.label == "a"


def test_a_thorough_choice_serves_a_quick_one(cache: Cache) -> None:
    choose(cache, Samplers(a=4.0, b=3.0, c=3.5, d=2.0))
    found = remembered(TASK, QUICK, cache)
    assert found is not None
    assert found.winner.label == "d"


def test_a_damaged_note_is_no_note(cache: Cache, tmp_path: Path) -> None:
    choose(cache, Samplers(a=4.0, b=2.0, c=3.0, d=5.0))
    (note,) = tmp_path.rglob(f"{TASK.key}.json")
    note.write_text(note.read_text().replace('"b"', '"d"', 1))
    assert remembered(TASK, ALL, cache) is None


def test_a_note_of_another_shape_is_no_note(cache: Cache) -> None:
    cache.write_note(TASK.key, {"winner": "b", "microseconds": 3, "reasons": {}, "reached": True})
    assert remembered(TASK, ALL, cache) is None


@pytest.mark.parametrize(
    ("predicted", "why"),
    [((100.0, 120.0), "the model is sure"), ((100.0, 102.0), ""), ((100.0, 90.0), ""), ((None, None), "")],
)
def test_the_default_mode_times_where_the_model_is_unsure(
    predicted: tuple[float | None, float | None], why: str
) -> None:
    task = replace(TASK, candidates=tuple(Candidate(n, 0, us) for n, us in zip("ab", predicted, strict=True)))
    assert why in worth_timing(task, QUICK)
    assert bool(why) == bool(worth_timing(task, QUICK))
    assert worth_timing(task, ALL) == ""


def test_the_default_mode_leaves_what_is_small_alone() -> None:
    assert "too little to gain" in worth_asking(1.0, QUICK)
    assert worth_asking(100.0, QUICK) == ""
    assert worth_asking(1.0, ALL) == ""


def test_of_few_kernels_smaller_gains_are_looked_for() -> None:
    few, many = QUICK.for_region(QUICK.few), QUICK.for_region(QUICK.few + 1)
    assert many == QUICK
    assert worth_asking(10.0, few) == "" != worth_asking(10.0, QUICK)
    near = replace(TASK, candidates=(Candidate("a", 0, 100.0), Candidate("b", 0, 130.0)))
    assert worth_timing(near, few) == "" != worth_timing(near, QUICK)
    assert ALL.for_region(1) == ALL


def test_one_candidate_is_never_timed() -> None:
    task = replace(TASK, candidates=TASK.candidates[:1])
    assert worth_timing(task, ALL)
    assert guess(task, "one").decision.reason == "model: one"
