"""Compiling leaves Python's garbage collector as it was."""

import gc
import sys
import threading
from contextlib import suppress

import pytest
import torch

import lamina
from lamina.aot import graph_compiler, run
from lamina.base import collector
from lamina.base.collector import collector_held, hold_collector, release_collector
from lamina.capture.dynamo import compile_callable


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    gc.enable()
    torch._dynamo.reset()


def test_the_last_holder_lets_it_run_again():
    with collector_held():
        with collector_held(lasting=True):
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    with collector_held():
        pass
    assert not gc.isenabled()


def test_one_holder_counts_once():
    hold_collector("a")
    hold_collector("a")
    release_collector("a")
    assert gc.isenabled()
    release_collector("a")
    assert gc.isenabled()


def test_what_the_user_froze_stays_frozen():
    gc.freeze()
    try:
        with collector_held(lasting=True):
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_what_the_user_froze_is_counted_once(monkeypatch):
    """Counting walks through all of it, and was done at each call that was interpreted."""
    asked = []
    monkeypatch.setattr(collector, "_frozen_by_others", False)
    monkeypatch.setattr(gc, "get_freeze_count", lambda: asked.append(1) or 7)
    for _ in range(3):
        with collector_held(lasting=True):
            pass
    assert asked == [1]


def _held_for_a_moment():
    with collector_held():
        pass


@pytest.mark.parametrize("at", range(24))
def test_an_interrupt_leaves_the_collector_as_it_was(at, monkeypatch):
    """It may come at each line: all objects stayed frozen, or the collector off, for the rest of the process."""
    kept: list[int] = []
    monkeypatch.setattr(collector, "_frozen_by_others", False)
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 0)  # the run of the tests has frozen what it is made of
    monkeypatch.setattr(gc, "freeze", lambda: kept.append(1))
    monkeypatch.setattr(gc, "unfreeze", kept.clear)
    lines = 0

    def watch(frame, event, argument):
        nonlocal lines
        if frame.f_code.co_filename != collector.__file__:
            return None
        if event == "line":
            lines += 1
            if lines == at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return watch

    sys.settrace(watch)
    try:
        with suppress(KeyboardInterrupt), collector_held(lasting=True):
            pass
    finally:
        sys.settrace(None)
    assert gc.isenabled()
    assert not kept
    assert not collector._holders
    other = threading.Thread(target=_held_for_a_moment, daemon=True)
    other.start()
    other.join(60)
    assert not other.is_alive(), "a lock was left taken"


def test_threads_that_hold_it_by_turns_leave_it_on():
    """They take no lock: each may be switched from between any two steps."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def hold():
        for _ in range(3000):
            _held_for_a_moment()

    try:
        threads = [threading.Thread(target=hold) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert gc.isenabled()
    assert not collector._holders
    assert not collector._switched_off


def test_no_collection_runs_while_a_step_is_compiled(monkeypatch):
    seen: list[tuple[str, bool]] = []

    def noting(module, name):
        original = getattr(module, name)

        def noted(*args, **kwargs):
            seen.append((name, gc.isenabled()))
            return original(*args, **kwargs)

        monkeypatch.setattr(module, name, noted)

    noting(run, "trace_joint")
    noting(graph_compiler, "partition")
    x = torch.randn(4, requires_grad=True)
    lamina.compile(lambda x: (x.sin() * x).sum())(x).backward()
    assert seen == [("trace_joint", False), ("partition", False)]
    assert gc.isenabled()


def test_no_collection_runs_while_a_step_is_captured():
    seen: list[bool] = []

    def backend(gm, inputs):
        seen.append(gc.isenabled())
        return gm.forward

    compiled = compile_callable(lambda x: x.sin() + 1, backend_callable=backend)
    compiled(torch.randn(4))
    assert seen == [False]
    assert gc.isenabled()


def test_the_collector_runs_again_after_a_capture_that_failed():
    def backend(gm, inputs):
        raise ValueError("refused")

    with pytest.raises(Exception, match="refused"):
        compile_callable(lambda x: x.sin() + 2, backend_callable=backend)(torch.randn(4))
    assert gc.isenabled()
