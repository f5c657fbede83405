"""Calls of our own front end that are interrupted anywhere leave what eager leaves: see ``accidents``."""

from __future__ import annotations

import contextlib
import functools
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from lamina.capture.own import flushing, recorder
from lamina.capture.own.callable import interpreted_callable
from lamina.record import Record
from tests.capture.own.accidents import Lines, accident, draw

FIRST = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 10))]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("seed", FIRST)
def test_a_call_that_is_interrupted_anywhere(seed: int, error: type[BaseException]) -> None:
    found = {case: accident(case[0], case[2], error, calls=case[1]) for case in draw(seed, 50)}
    assert {case: one.wrong for case, one in found.items() if one.wrong} == {}
    assert sum(one.hit for one in found.values()) > 40


def test_tensors_that_are_never_computed_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushing, "rescue", lambda *given: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrong = {accident("list", line, KeyboardInterrupt).wrong for line in range(3000, 6000, 150)}
    assert ("a tensor was never computed",) in wrong


ROOT = Path(__file__).parents[3]


class Late(Exception):
    """What a handler of a signal raises."""


def _late(limit: int, number: int, frame: object) -> None:
    raise Late(limit)


class Signalled(Lines):
    """Sends this process a signal at one of the lines."""

    def happens(self) -> None:
        signal.raise_signal(signal.SIGUSR1)


def handles_interrupts(x: torch.Tensor) -> torch.Tensor:
    try:
        y = x * 2
        z = y + 1
    except KeyboardInterrupt:
        z = x - 100
    return z


def handles_late(x: torch.Tensor) -> torch.Tensor:
    try:
        y = x * 2
        z = y + 1
    except Late:
        z = x - 100
    return z


HANDLERS = (functools.partial(_late, 3), functools.partial(_late, 3).__call__)


def handled(program, handler) -> int:
    """How many interrupts the program handled; each later call has to do what the program does."""
    x, count = torch.ones(3), 0
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for line in range(600, 2600, 200):
            call = interpreted_callable(program, backend_callable=lambda gm, fakes: gm.forward, record=Record())
            watch = Lines(line, KeyboardInterrupt) if program is handles_interrupts else Signalled(line, Late)
            sys.settrace(watch)
            try:
                count += bool((call(x) == -99).all())
            except (KeyboardInterrupt, Late, RuntimeError):  # the last: where a context of ours had not begun
                pass
            finally:
                sys.settrace(None)
            for _ in range(3):
                assert torch.equal(call(x), program(x)), line
    finally:
        signal.signal(signal.SIGUSR1, before)
    return count


@pytest.mark.parametrize("handler", HANDLERS)
def test_a_call_whose_interrupt_the_program_handles_is_not_done_again(handler) -> None:
    assert handled(handles_interrupts, handler) > 3


@pytest.mark.parametrize("handler", range(len(HANDLERS)))
def test_a_call_whose_program_handles_a_signal_is_not_done_again(handler: int) -> None:
    """In a process of its own: a signal once ended that of the tests, for a reason that was not found."""
    text = f"from {__name__} import *; assert handled(handles_late, HANDLERS[{handler}]) > 3"
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode >= 0:
            break
    assert done.returncode == 0, done.stderr[-2000:]


def overflows(x: torch.Tensor, depth: int = 0) -> torch.Tensor:
    try:
        return overflows(x, depth + 1) if depth < 60 else x * 2
    except RecursionError:
        return x - 100


def test_a_full_stack_is_another_callers() -> None:
    x = torch.ones(3)
    call = interpreted_callable(overflows, backend_callable=lambda gm, fakes: gm.forward, record=Record())

    def deeper(left: int) -> torch.Tensor:
        return call(x) if left == 0 else deeper(left - 1)

    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(len(list(_frames())) + 150)
        with_little = deeper(90)
    finally:
        sys.setrecursionlimit(limit)
    assert not torch.equal(with_little, overflows(x))  # else nothing was tried
    for _ in range(3):
        assert torch.equal(call(x), overflows(x))


def _frames():
    frame = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


@pytest.mark.parametrize("program", ["attributes", "list", "written"])
def test_what_is_recorded_of_a_call_that_is_interrupted_is_taken_back(program: str, monkeypatch) -> None:
    plain_form, left = recorder.frozen, [3]

    def interrupted(*given):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return plain_form(*given)

    kept: list[torch.Tensor] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.cos()
        kept.append(y)
        if program == "list":
            kept.append(y.relu())
        if program == "written":
            y.add_(1)
        return y + kept[0]

    x = torch.ones(3)
    for at in range(1, 40):
        call = interpreted_callable(function, backend_callable=lambda gm, fakes: gm.forward, record=Record())
        kept.clear()
        left[0] = at
        monkeypatch.setattr(recorder, "frozen", interrupted)
        with contextlib.suppress(KeyboardInterrupt):
            call(x)
        monkeypatch.setattr(recorder, "frozen", plain_form)
        assert all(type(one) is torch.Tensor for one in kept)
        if kept:
            assert any(torch.allclose(kept[0], x.cos() + more) for more in (0, 1))
        if left[0] > 0:
            break
        for _ in range(3):
            kept.clear()
            found = call(x).clone()
            kept.clear()
            assert torch.equal(found, function(x))
    assert at > 3
