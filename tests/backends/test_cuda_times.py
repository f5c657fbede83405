"""Times of launches on a GPU: which calls note them and what is noted, with events that a test drives."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from lamina.backends import cuda_times
from lamina.backends.cuda_times import timed_calls


class Event:
    """A moment of a clock that launches move."""

    now = 0.0

    def record(self) -> None:
        Event.now += 0.001
        self.at = Event.now

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


def launch_of(key: str, kernel: str, then: str = "") -> Any:
    second = SimpleNamespace(name=then) if then else None
    return SimpleNamespace(key=key, kernel=kernel, source=SimpleNamespace(name=key, then=second))


LAUNCHES = [launch_of("sums", "sums", "sums_rest"), launch_of("sums_rest", "sums"), launch_of("scale", "scale")]
TOOK = {"sums": 2.0, "sums_rest": 1.0, "scale": 4.0}


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_times, "_event", Event)
    monkeypatch.setattr(cuda_times, "gpu_delay", lambda cycles: None)
    monkeypatch.setattr(cuda_times, "is_capturing", lambda: False)
    monkeypatch.setattr("torch.cuda.device", lambda number: nullcontext())
    monkeypatch.setattr("torch.cuda.current_stream", lambda: SimpleNamespace(synchronize=lambda: None))


def kernels() -> dict[str, Any]:
    def launch(milliseconds: float) -> Any:
        def run(*arguments: Any) -> int:
            Event.now += milliseconds
            return 0

        return SimpleNamespace(launch=run)

    return {key: launch(ms) for key, ms in TOOK.items()}


def program(made: Any) -> Any:
    def call(args: list[Any]) -> list[Any]:
        for key in ("sums", "sums_rest", "scale", "scale"):
            made[key].launch(0)
        return list(args)

    return call


def test_the_second_and_some_more_calls_are_timed_and_second_parts_count_with_their_kernel() -> None:
    times: dict[str, list[float]] = {}
    plain = 0

    def call(args: list[Any]) -> list[Any]:
        nonlocal plain
        plain += 1
        return list(args)

    timed = timed_calls(call, program, LAUNCHES, kernels(), 0, times)
    for number in range(15):
        assert timed([number]) == [number]
    assert plain == 5
    assert times["sums"] == pytest.approx([3e-3] * 10)
    assert times["scale"] == pytest.approx([4e-3] * 20)


def test_calls_that_are_recorded_and_clocks_that_fail_harm_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    times: dict[str, list[float]] = {}
    timed = timed_calls(list, program, LAUNCHES, kernels(), 0, times)
    timed([1])
    monkeypatch.setattr(cuda_times, "is_capturing", lambda: True)
    assert timed([1]) == [1]
    assert times == {}
    monkeypatch.setattr(cuda_times, "is_capturing", lambda: False)
    monkeypatch.setattr(Event, "elapsed_time", lambda self, other: 1 / 0)
    assert timed([1]) == [1]
    assert times == {}
